"""Greedy by falling thresholds, which looks at few gains however large ``k`` is."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.submodular.base import MaximizationResult, SetFunction
from fedjax_fair.submodular.selection import begin
from fedjax_fair.tree import Number

__all__ = ["threshold_greedy"]


def threshold_greedy(function: SetFunction, k: int, epsilon: float) -> MaximizationResult:
    """Adds every item that gains at least a threshold, which falls by a factor after every pass.

    For a monotone submodular function the value is at least ``1 - 1/e - epsilon`` of the largest
    that ``k`` items can have, with ``O(size / epsilon * log(size / epsilon))`` gains.

    Args:
        function: Monotone and submodular.
        k: Items to choose, at most.
        epsilon: By how much the threshold falls, in (0, 1). It begins at the largest gain and ends
            at ``epsilon / size`` of it.

    Returns:
        The items, ``[k]``: -1, with gain 0, in places that stay empty. ``num_evaluations`` are those of items
        that are looked at one by one.

    Raises:
        ValueError: If a number is out of range.

    References:
        Badanidiyuru, Vondrak, *Fast Algorithms for Maximizing Submodular Functions*, SODA 2014

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> weights = jnp.array([9.0, 5.0, 9.5, 10.0])
        >>> threshold_greedy(Modular(weights), 3, epsilon=0.2).items.tolist()
        [3, 0, 2]
    """
    size = function.size
    checks.positive_int("k", k, at_most=size)
    checks.positive("epsilon", epsilon)
    checks.unit_interval("epsilon", epsilon)
    return _threshold_greedy(function, k, epsilon / size, 1 - epsilon)


@partial(jax.jit, static_argnums=1)
def _threshold_greedy(
    function: SetFunction, k: int, lowest_share: Number, factor: Number
) -> MaximizationResult:
    size = function.size
    places = jnp.arange(size, dtype=jnp.int32)
    state, _ = begin(function)
    largest = jnp.max(function.gains(state.memo))
    lowest = lowest_share * largest

    def step(search):
        state, threshold, place, number, items, gains, num_evaluations = search
        offered = function.gains(state.memo)
        ahead = state.free & (places >= place)
        passes = ahead & (offered >= threshold)
        # The gains of all items before it are as they were, so that none of them passes.
        item, found = jnp.argmax(passes).astype(jnp.int32), passes.any()
        num_evaluations += jnp.sum(ahead & ~(found & (places > item)), dtype=jnp.int32)
        state = jax.lax.cond(found, lambda: state.take(function, item), lambda: state)
        items = items.at[number].set(jnp.where(found, item, -1))
        gains = gains.at[number].set(jnp.where(found, offered[item], 0))
        threshold = jnp.where(found, threshold, factor * threshold)
        place = jnp.where(found, item + 1, 0)
        return (
            state,
            threshold,
            place,
            number + found.astype(jnp.int32),
            items,
            gains,
            num_evaluations,
        )

    def proceed(search):
        _, threshold, _, number, *_ = search
        return (number < k) & (threshold >= lowest) & (threshold > 0)

    zero, empty = jnp.zeros((), jnp.int32), jnp.full(k, -1, jnp.int32)
    search = state, largest, zero, zero, empty, jnp.zeros(k, largest.dtype), jnp.int32(size)
    *_, items, gains, num_evaluations = jax.lax.while_loop(proceed, step, search)
    return MaximizationResult(items, gains, jnp.sum(gains), num_evaluations)
