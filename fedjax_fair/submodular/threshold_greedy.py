"""Greedy with a decreasing threshold, whose number of evaluations does not grow with ``k``."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from fedjax_fair.submodular.checked_arrays import check_epsilon, is_traced
from fedjax_fair.submodular.greedy_selection import begin, check_function
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.utils import checks

__all__ = ["threshold_greedy"]


# Below 6e-8 a threshold in single precision would not decrease, and the loop not end.
_MIN_EPSILON = 1e-6


def threshold_greedy(function: SetFunction, k: int, epsilon: float) -> MaximizationResult:
    """Adds every item whose gain reaches a threshold, which decreases after every pass.

    For a monotone submodular function the value is at least ``1 - 1/e - epsilon`` of the optimum
    over ``k`` items, with ``O(size / epsilon * log(size / epsilon))`` gains.

    Args:
        function: Monotone and submodular.
        k: Maximum number of items.
        epsilon: Relative decrease of the threshold, in (0, 1), from the largest gain to ``epsilon /
            size`` of it.

    Returns:
        ``num_evaluations`` counts the items visited one by one.

    References:
        Badanidiyuru, Vondrak, *Fast Algorithms for Maximizing Submodular Functions*, SODA 2014

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> threshold_greedy(Modular([9.0, 5.0, 9.5, 10.0]), 3, epsilon=0.2).items.tolist()
        [3, 0, 2]
    """
    checks.positive_int("k", k, at_most=check_function(function))
    check_epsilon(epsilon)
    if not is_traced(epsilon) and epsilon < _MIN_EPSILON:
        raise ValueError(f"{epsilon=}: expected at least {_MIN_EPSILON}, for thresholds to differ.")
    return _threshold_greedy(function, k, epsilon / function.size, 1 - epsilon)


@partial(jax.jit, static_argnums=1)
def _threshold_greedy(function, k, lowest_share, factor) -> MaximizationResult:
    size = function.size
    places = jnp.arange(size, dtype=jnp.int32)
    state, _ = begin(function)
    largest = jnp.max(function.gains(state.memo))
    lowest = lowest_share * largest

    def step(search):
        state, threshold, place, count, items, gains, num_evaluations = search
        offered = function.gains(state.memo)
        ahead = state.free & (places >= place)
        passes = ahead & (offered >= threshold)
        # Until an item is added no gain changes, so items before it need no second evaluation.
        item, exists = jnp.argmax(passes).astype(jnp.int32), passes.any()
        num_evaluations += jnp.sum(ahead & ~(exists & (places > item)), dtype=jnp.int32)
        state, (chosen, gain) = state.take_if(exists, function, item, offered[item])
        items, gains = items.at[count].set(chosen), gains.at[count].set(gain)
        threshold = jnp.where(exists, threshold, factor * threshold)
        place = jnp.where(exists, item + 1, 0)
        count += exists.astype(jnp.int32)
        return state, threshold, place, count, items, gains, num_evaluations

    def unfinished(search):
        _, threshold, _, count, *_ = search
        return (count < k) & (threshold >= lowest) & (threshold > 0)

    zero, empty = jnp.zeros((), jnp.int32), jnp.full(k, -1, jnp.int32)
    search = state, largest, zero, zero, empty, jnp.zeros(k, largest.dtype), jnp.int32(size)
    *_, items, gains, num_evaluations = jax.lax.while_loop(unfinished, step, search)
    return MaximizationResult(items, gains, jnp.sum(gains), num_evaluations)
