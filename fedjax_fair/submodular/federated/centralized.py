"""Centralized algorithms on the sum of all clients' functions, and baselines."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key
from numpy.typing import ArrayLike

from fedjax_fair.submodular.federated import trajectory
from fedjax_fair.submodular.federated.importance_factors import compute_factors
from fedjax_fair.submodular.federated.problem import Problem, fill_weights
from fedjax_fair.submodular.federated.secure import secure_aggregate
from fedjax_fair.submodular.federated.trajectory import ContinuousRun, GreedyRun
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
    function = problem.total(weights / largest)

    def step(carry, _):
        mask, memo = carry
        gains = function.gains(memo)
        feasible_gains = jnp.where(matroid.feasible_items(mask), gains, -jnp.inf)
        best = jnp.argmax(feasible_gains).astype(jnp.int32)
        return (mask.at[best].set(True), function.add(memo, best)), (best, gains[best])

    start = (jnp.zeros(problem.size, bool), function.init())
    (chosen, _), (items, gains) = jax.lax.scan(step, start, length=matroid.rank)
    values = jnp.append(0.0, largest * jnp.cumsum(gains))
    return GreedyRun(
        chosen, items, values, trajectory.Communication(*[jnp.zeros(matroid.rank, jnp.int32)] * 4)
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
    weights = trajectory.check_arguments(problem, matroid, client_weights)
    return _continuous_greedy(
        key, problem, matroid, weights, trajectory.step_size(step, rounds), rounds
    )


@partial(jax.jit, static_argnames="rounds")
def _continuous_greedy(key, problem, matroid, weights, step, rounds):
    weights = fill_weights(problem, weights)

    def communicate(_key_cohort, _key_work, x, gradients):
        mean = secure_aggregate(gradients.messages(weights), problem.size)
        base = matroid.max_weight_base(mean)
        return trajectory.RoundResult(
            base.astype(x.dtype), jnp.sum(mean, where=base), jnp.zeros(())
        )

    return trajectory.ascend(problem, matroid, weights, key, rounds, step, communicate, (0, 0, 0))


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
