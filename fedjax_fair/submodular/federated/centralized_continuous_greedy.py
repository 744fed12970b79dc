"""Centralized continuous greedy (Calinescu, Chekuri, Pal, Vondrak, 2011)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key
from numpy.typing import ArrayLike

from fedjax_fair.submodular.federated.problem import Problem, as_client_weights, filled_weights
from fedjax_fair.submodular.federated.secure import secure_aggregate
from fedjax_fair.submodular.federated.trajectory import (
    ContinuousRun,
    Sent,
    ascend,
    check_sizes,
    step_size,
)
from fedjax_fair.submodular.matroids import Matroid

__all__ = ["centralized_continuous_greedy"]


def centralized_continuous_greedy(
    key: Key[Array, ""],
    problem: Problem,
    matroid: Matroid,
    rounds: int,
    *,
    step: float | None = None,
    client_weights: ArrayLike | None = None,
) -> ContinuousRun:
    """Continuous greedy on the gradient of the whole sum.

    Args:
        key: Random key, for problems whose gradients are estimated.
        problem: The clients' functions.
        matroid: Which sets are allowed.
        rounds: Number of steps.
        step: Step size, at most ``1 / rounds``, which is the default.
        client_weights: ``p_i``, summing to 1; by default all equal.

    Returns:
        The run; nothing is communicated.

    Raises:
        ValueError: If ``step * rounds > 1``, the matroid is of other items, or the weights do not
            sum to 1.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> matroid, key = matroids.Uniform(1, 3), jax.random.key(0)
        >>> centralized_continuous_greedy(key, problem, matroid, 4).x.tolist()
        [1.0, 0.0, 0.0]
    """
    check_sizes(problem, matroid)
    weights = as_client_weights(problem, client_weights)
    return _continuous_greedy(
        key, problem, matroid, weights, step_size(step, rounds), rounds=rounds
    )


@partial(jax.jit, static_argnames="rounds")
def _continuous_greedy(key, problem, matroid, weights, step, *, rounds):
    weights = filled_weights(problem, weights)

    def communicate(_key_cohort, _key_work, x, gradients):
        mean = secure_aggregate(gradients.messages(weights), problem.size)
        base = matroid.max_weight_base(mean)
        return Sent(base.astype(x.dtype), jnp.sum(mean, where=base), jnp.zeros(()))

    return ascend(problem, matroid, weights, key, rounds, step, communicate, (0, 0, 0))
