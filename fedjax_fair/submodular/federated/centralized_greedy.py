"""Centralized greedy, on the sum of all clients' functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedjax_fair.submodular.federated.problem import Problem, as_client_weights, filled_weights
from fedjax_fair.submodular.federated.trajectory import Communication, GreedyRun, check_sizes
from fedjax_fair.submodular.matroids import Matroid

__all__ = ["centralized_greedy"]


def centralized_greedy(
    problem: Problem, matroid: Matroid, *, client_weights: ArrayLike | None = None
) -> GreedyRun:
    """Adds the item with the largest gain until there is a base.

    The value is at least half of the best, and ``1 - 1/e`` of it for a uniform matroid.

    Args:
        problem: The clients' functions.
        matroid: Which sets are allowed.
        client_weights: ``p_i``, summing to 1; by default all equal.

    Raises:
        ValueError: If the matroid is of other items, or the weights do not sum to 1.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> centralized_greedy(problem, matroids.Uniform(2, 3)).items.tolist()
        [0, 1]
    """
    check_sizes(problem, matroid)
    return _centralized_greedy(problem, matroid, as_client_weights(problem, client_weights))


@jax.jit
def _centralized_greedy(problem, matroid, weights):
    weights = filled_weights(problem, weights)
    # Relative to the largest, equal weights are 1: sums of ratings are exact, and ties are ties.
    largest = jnp.max(weights)
    function = problem.total(weights / largest)

    def step(carry, _):
        mask, memo = carry
        gains = function.gains(memo)
        best = jnp.argmax(jnp.where(matroid.feasible_items(mask), gains, -jnp.inf)).astype(
            jnp.int32
        )
        return (mask.at[best].set(True), function.add(memo, best)), (best, gains[best])

    start = (jnp.zeros(problem.size, bool), function.init())
    (chosen, _), (items, gains) = jax.lax.scan(step, start, length=matroid.rank)
    nothing = jnp.zeros(matroid.rank, jnp.int32)
    return GreedyRun(
        chosen=chosen,
        items=items,
        values=jnp.append(0.0, largest * jnp.cumsum(gains)),
        communication=Communication(nothing, nothing, nothing, nothing),
    )
