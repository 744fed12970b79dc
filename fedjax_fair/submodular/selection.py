"""What maximizers that add one item after another have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.submodular.arrays import as_items, as_mask
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.constraints import Constraints

__all__ = ["Selection", "as_start", "begin", "best_item", "best_of", "grow"]


class Selection(NamedTuple):
    """A set that grows.

    Attributes:
        memo: The function's memo of it.
        free: Items outside of it.
        candidate_mask: Items to choose before all others.
    """

    memo: PyTree
    free: Bool[Array, " size"]
    candidate_mask: Bool[Array, " size"]

    def eligible(self, constraints: Constraints | None = None) -> Bool[Array, " size"]:
        """The items that may be chosen next."""
        free = self.free if constraints is None else constraints.feasible_items(~self.free)
        first = free & self.candidate_mask
        return jnp.where(first.any(), first, free)

    def take(self, function: SetFunction, item: Int[Array, ""]) -> Selection:
        """The set with one more item."""
        memo = function.add(self.memo, item)
        return Selection(memo, self.free.at[item].set(False), self.candidate_mask)


def as_start(
    size: int, candidate_mask: ArrayLike | None, initial_items: ArrayLike | None
) -> tuple[Bool[Array, " size"] | None, Int[Array, " initial_items"] | None]:
    """The items to choose before all others and those chosen already, checked."""
    allowed = None if candidate_mask is None else as_mask("candidate_mask", candidate_mask)
    if allowed is not None and allowed.shape != (size,):
        raise ValueError(f"candidate_mask: expected shape ({size},), got {allowed.shape}.")
    return allowed, None if initial_items is None else as_items(
        "initial_items", initial_items, size
    )


def begin(
    function: SetFunction,
    candidate_mask: Bool[Array, " size"] | None = None,
    initial_items: Int[Array, " initial_items"] | None = None,
) -> tuple[Selection, Float[Array, ""]]:
    """The initial set and its value."""
    everything = jnp.ones(function.size, bool)
    allowed = everything if candidate_mask is None else candidate_mask
    state = Selection(function.init(), everything, allowed)
    if initial_items is None:
        return state, jnp.zeros(())
    state, _ = jax.lax.scan(
        lambda state, item: (state.take(function, item), None), state, initial_items
    )
    return state, function.value(~state.free)


def grow(
    state: PyTree,
    k: int,
    choose: Callable[[Any], tuple],
    take: Callable[[Any, Int[Array, ""]], Any],
) -> tuple[Int[Array, " k"], Float[Array, " k"], Int[Array, ""]]:
    """Adds items until there are ``k`` or no other one may be chosen.

    Args:
        state: The initial state.
        k: Items at most.
        choose: ``choose(state) -> (state, item, gain, found, num_evaluations)``.
        take: ``take(state, item) -> state``.

    Returns:
        Items, -1 where there is none, their gains, 0 where there is none, and the sum of the num_evaluations.
    """

    def step(carry):
        number, state, _, items, gains, num_evaluations = carry
        state, item, gain, found, step_evaluations = choose(state)
        # The last item is added to no memo, which is as much work as choosing it.
        state = jax.lax.cond(found & (number + 1 < k), lambda: take(state, item), lambda: state)
        items = items.at[number].set(jnp.where(found, item, -1))
        gains = gains.at[number].set(jnp.where(found, gain, 0))
        return number + 1, state, found, items, gains, num_evaluations + step_evaluations

    gain_dtype = jax.eval_shape(choose, state)[2].dtype
    zero, nothing = jnp.zeros((), jnp.int32), jnp.full(k, -1, jnp.int32)
    carry = (zero, state, jnp.array(True), nothing, jnp.zeros(k, gain_dtype), zero)
    with jax.named_scope(f"selections_{k}"):
        *_, items, gains, num_evaluations = jax.lax.while_loop(
            lambda c: (c[0] < k) & c[2], step, carry
        )
    return items, gains, num_evaluations


def best_item(gains: Float[Array, " size"], eligible: Bool[Array, " size"]) -> Int[Array, ""]:
    """The eligible item with the largest gain, also where gains are infinite or NaN."""
    return jnp.argmax(jnp.where(eligible, _comparable(gains), -jnp.inf)).astype(jnp.int32)


def best_of(items: Int[Array, " some"], gains: Float[Array, " some"]) -> Int[Array, ""]:
    """The place of the item with the largest gain; of equal ones, that with the smallest index."""
    gains = _comparable(gains)
    largest = gains == jnp.max(gains)
    return jnp.argmin(jnp.where(largest, items, jnp.iinfo(items.dtype).max))


def _comparable(gains: Float[Array, " some"]) -> Float[Array, " some"]:
    """The gains with NaN and minus infinity as the lowest finite number."""
    lowest = jnp.finfo(gains.dtype).min
    return jnp.maximum(jnp.where(jnp.isnan(gains), lowest, gains), lowest)
