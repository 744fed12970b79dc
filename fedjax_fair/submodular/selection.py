"""State and loop that the greedy maximizers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.submodular.base import MaximizationResult, SetFunction
from fedjax_fair.submodular.constraints import Constraints

__all__ = ["Selection", "begin", "best_item", "best_of", "grow"]


class Selection(NamedTuple):
    """A growing set.

    Attributes:
        memo: The function's memo of the set.
        free: Items outside of the set.
        candidate_mask: Items to select before all others.
    """

    memo: PyTree
    free: Bool[Array, " size"]
    candidate_mask: Bool[Array, " size"]

    def eligible(self, constraints: Constraints | None = None) -> Bool[Array, " size"]:
        """Returns the items that may be selected next."""
        free = self.free if constraints is None else constraints.feasible_items(~self.free)
        first = free & self.candidate_mask
        return jnp.where(first.any(), first, free)

    def take(self, function: SetFunction, item: Int[Array, ""]) -> Selection:
        """Returns the set with one more item."""
        memo = function.add(self.memo, item)
        return Selection(memo, self.free.at[item].set(False), self.candidate_mask)


def begin(
    function: SetFunction,
    candidate_mask: Bool[Array, " size"] | None = None,
    initial_items: Int[Array, " initial"] | None = None,
) -> tuple[Selection, Float[Array, ""]]:
    """Returns the initial set and its value."""
    everything = jnp.ones(function.size, bool)
    candidates = everything if candidate_mask is None else candidate_mask
    state = Selection(function.init(), everything, candidates)
    if initial_items is None:
        return state, jnp.zeros(())
    state, _ = jax.lax.scan(lambda s, item: (s.take(function, item), None), state, initial_items)
    return state, function.value(~state.free)


def grow(
    state: PyTree,
    k: int,
    choose: Callable[[Any], tuple],
    take: Callable[[Any, Int[Array, ""]], Any],
) -> MaximizationResult:
    """Adds items until there are ``k`` or no item may be added.

    Args:
        state: The initial state.
        k: Maximum number of items.
        choose: ``choose(state) -> (state, item, gain, accepted, num_evaluations)``.
        take: ``take(state, item) -> state``.

    Returns:
        The items, ``[k]``; the value is the sum of their gains.
    """

    def step(carry):
        count, state, _, items, gains, num_evaluations = carry
        state, item, gain, accepted, evaluations = choose(state)
        # The last item is not added to the memo, which costs as much as choosing it.
        state = jax.lax.cond(accepted & (count + 1 < k), lambda: take(state, item), lambda: state)
        items = items.at[count].set(jnp.where(accepted, item, -1))
        gains = gains.at[count].set(jnp.where(accepted, gain, 0))
        return count + 1, state, accepted, items, gains, num_evaluations + evaluations

    gain_dtype = jax.eval_shape(choose, state)[2].dtype
    zero, no_items = jnp.zeros((), jnp.int32), jnp.full(k, -1, jnp.int32)
    carry = (zero, state, jnp.array(True), no_items, jnp.zeros(k, gain_dtype), zero)
    with jax.named_scope(f"selections_{k}"):
        carry = jax.lax.while_loop(lambda carry: (carry[0] < k) & carry[2], step, carry)
    *_, items, gains, num_evaluations = carry
    return MaximizationResult(items, gains, jnp.sum(gains), num_evaluations)


def best_item(gains: Float[Array, " size"], eligible: Bool[Array, " size"]) -> Int[Array, ""]:
    """Returns the eligible item with the largest gain, also where gains are infinite or NaN."""
    return jnp.argmax(jnp.where(eligible, _comparable(gains), -jnp.inf)).astype(jnp.int32)


def best_of(items: Int[Array, " some"], gains: Float[Array, " some"]) -> Int[Array, ""]:
    """Returns the position of the largest gain; of equal ones, that of the smallest item."""
    gains = _comparable(gains)
    largest = gains == jnp.max(gains)
    return jnp.argmin(jnp.where(largest, items, jnp.iinfo(items.dtype).max))


def _comparable(gains: Float[Array, " some"]) -> Float[Array, " some"]:
    """Replaces NaN and minus infinity by the lowest finite value."""
    lowest = jnp.finfo(gains.dtype).min
    return jnp.maximum(jnp.where(jnp.isnan(gains), lowest, gains), lowest)
