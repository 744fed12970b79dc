"""Centralized algorithms on the sum of all clients' functions, and baselines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key
from numpy.typing import ArrayLike

from fedjax_fair.submodular.federated import trajectory
from fedjax_fair.submodular.federated.fedcg import fedcg
from fedjax_fair.submodular.federated.importance_factors import compute_factors
from fedjax_fair.submodular.federated.problem import Problem, fill_weights
from fedjax_fair.submodular.federated.trajectory import ContinuousRun, GreedyRun
from fedjax_fair.submodular.greedy import greedy
from fedjax_fair.submodular.matroids import Matroid, heaviest_base

__all__ = [
    "centralized_continuous_greedy",
    "centralized_greedy",
    "random_base",
    "top_singletons",
]


def centralized_greedy(
    problem: Problem, matroid: Matroid, *, client_weights: ArrayLike | None = None
) -> GreedyRun:
    """Adds the item with the largest gain until the set is a base.

    It reaches half of the optimum, and ``1 - 1/e`` of it for a uniform matroid.

    Args:
        problem: The clients' functions.
        matroid: Constraint on sets.
        client_weights: As for ``fedcg``.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> centralized_greedy(problem, matroids.Uniform(2, 3)).items.tolist()
        [0, 1]
    """
    weights = trajectory.check_arguments(problem, matroid, client_weights)
    return _greedy(problem, matroid, weights)


@jax.jit
def _greedy(problem, matroid, weights):
    weights = fill_weights(problem, weights)
    # Equal weights become exactly 1, so that sums of ratings are exact and equal gains tie.
    largest = jnp.max(weights)
    selected = greedy(problem.total(weights / largest), matroid=matroid)
    return GreedyRun(
        chosen=jnp.zeros(problem.size, bool).at[selected.items].set(True),
        items=selected.items,
        values=jnp.append(0.0, largest * jnp.cumsum(selected.gains)),
        communication=trajectory.no_communication(matroid.rank),
    )


def centralized_continuous_greedy(
    key: Key[Array, ""],
    problem: Problem,
    matroid: Matroid,
    rounds: int,
    *,
    step: float | None = None,
    client_weights: ArrayLike | None = None,
) -> ContinuousRun:
    """Maximizes the multilinear extension of the sum, without communication.

    Args:
        key: Random key, for estimated gradients.
        problem: The clients' functions.
        matroid: Constraint on sets.
        rounds: Number of steps.
        step: As for ``fedcg``.
        client_weights: As for ``fedcg``.

    References:
        Calinescu, Chekuri, Pal, Vondrak, *Maximizing a Monotone Submodular Function Subject to a
        Matroid Constraint*, 2011

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> key = jax.random.key(0)
        >>> centralized_continuous_greedy(key, problem, matroids.Uniform(1, 3), 4).x.tolist()
        [1.0, 0.0, 0.0]
    """
    # A server that receives all gradients knows the gradient of the sum.
    run = fedcg(
        key, problem, matroid, rounds, step=step, send="gradient", client_weights=client_weights
    )
    return run._replace(communication=trajectory.no_communication(rounds))


@jax.jit
def random_base(key: Key[Array, ""], matroid: Matroid) -> Bool[Array, " size"]:
    """Samples the heaviest base of random weights: any base of a uniform or partition matroid."""
    return matroid.max_weight_base(jax.random.uniform(key, (matroid.size,)))


def top_singletons(
    problem: Problem, matroid: Matroid, *, client_weights: ArrayLike | None = None
) -> Bool[Array, " size"]:
    """Returns the base of the items with the largest values alone.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        >>> top_singletons(problem, matroids.Uniform(2, 3)).tolist()
        [True, True, False]
    """
    weights = trajectory.check_arguments(problem, matroid, client_weights)
    return heaviest_base(matroid, compute_factors(problem, weights).singles)
