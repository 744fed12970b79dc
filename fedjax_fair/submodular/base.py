"""Set functions as incremental oracles, and the result of a maximizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, PyTree

__all__ = ["Maximized", "SetFunction"]


class SetFunction(NamedTuple):
    """A function of subsets of ``{0, ..., size - 1}`` that is 0 at the empty set.

    A maximizer adds items one by one and carries a memo, the function's summary of the set so far.
    ``value`` is the definition, and the incremental ``gains``, ``gain`` and ``add`` agree with it.
    All of them are pure, and may close over traced arrays. A function made inside ``jax.jit`` from
    the arrays given to it is compiled once for all arrays of that shape.

    Attributes:
        size: Number of items.
        value: ``value(mask) -> scalar`` of the set given by a mask over all items.
        init: ``init() -> memo`` of the empty set.
        gains: ``gains(memo) -> [size]``, the marginal gain of each item. Entries of items that are
            already in the set are meaningless.
        gain: ``gain(memo, item) -> scalar``, the gain of one item.
        add: ``add(memo, item) -> memo`` of the set with the item.
    """

    size: int
    value: Callable[[Bool[Array, " size"]], Float[Array, ""]]
    init: Callable[[], PyTree]
    gains: Callable[[PyTree], Float[Array, " size"]]
    gain: Callable[[PyTree, Int[Array, ""]], Float[Array, ""]]
    add: Callable[[PyTree, Int[Array, ""]], PyTree]


class Maximized(NamedTuple):
    """A set that a maximizer found.

    Attributes:
        items: The items, all different, in the order in which they were chosen.
        gains: The marginal gain of each of them when it was chosen.
        value: Value of the set.
        calls: Number of gains evaluated; in a federation these are messages.
    """

    items: Int[Array, " k"]
    gains: Float[Array, " k"]
    value: Float[Array, ""]
    calls: Int[Array, ""]
