"""Set functions as incremental oracles, and what a maximizer returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree

__all__ = ["Maximized", "SetFunction", "as_finite", "as_non_negative", "as_symmetric"]


class SetFunction(NamedTuple):
    """A function of subsets of ``{0, ..., size - 1}`` that is 0 at the empty set.

    A maximizer grows a set item by item and carries a memo along: whatever the function has to
    know of the set so far. ``value`` is the definition, the rest is what makes it fast; both agree.
    All of them are pure, and may close over traced arrays. A function made inside ``jax.jit`` from
    the arrays given to it is compiled once for all arrays of that shape.

    Attributes:
        size: Number of items.
        value: ``value(mask) -> scalar`` of the set given by a mask over all items.
        init: ``init() -> memo`` of the empty set.
        gains: ``gains(memo) -> [size]``, by how much each item would raise the value. What it says
            of items that are already in the set means nothing.
        gain: ``gain(memo, item) -> scalar``, the same for one.
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
        gains: By how much each of them raised the value when it was chosen.
        value: Value of the set.
        calls: How many times the gain of an item was looked at; in a federation these are messages.
    """

    items: Int[Array, " k"]
    gains: Float[Array, " k"]
    value: Float[Array, ""]
    calls: Int[Array, ""]


def as_finite(name: str, values: Any, shape: str) -> Array:
    """An array of floats with as many axes as ``shape`` names; its numbers are finite if known.

    Raises:
        ValueError: If it has another number of axes, an empty one, or a number is not finite.
    """
    return _as_array(name, values, shape, jnp.isfinite, "finite numbers")


def as_non_negative(name: str, values: Any, shape: str) -> Array:
    """As ``as_finite``, and nothing below zero."""
    return _as_array(name, values, shape, _non_negative, "finite numbers >= 0")


def as_symmetric(name: str, values: Any, *, negative: bool = False) -> Float[Array, "n n"]:
    """A square matrix of finite numbers that equals its transpose up to rounding.

    Raises:
        ValueError: If it is not, or a number is below zero and must not be.
    """
    matrix = (as_finite if negative else as_non_negative)(name, values, "n n")
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name}: expected a square matrix, got shape {matrix.shape}.")
    if not isinstance(matrix, Tracer):
        gap = jnp.abs(matrix - matrix.T)
        if float(jnp.max(gap)) > 1e-5 * float(jnp.max(jnp.abs(matrix))):
            i, j = (int(k) for k in np.unravel_index(int(jnp.argmax(gap)), gap.shape))
            raise ValueError(
                f"{name}: expected a symmetric matrix, but {name}[{i}, {j}]={float(matrix[i, j])} "
                f"and {name}[{j}, {i}]={float(matrix[j, i])}."
            )
    return matrix


def _non_negative(values: Array) -> Bool[Array, "..."]:
    return jnp.isfinite(values) & (values >= 0)


def _as_array(name: str, values: Any, shape: str, valid: Callable, expectation: str) -> Array:
    array = jnp.asarray(values)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.float32)
    axes = shape.split()
    if array.ndim != len(axes) or 0 in array.shape:
        raise ValueError(f"{name}: expected shape [{', '.join(axes)}], got {array.shape}.")
    if not isinstance(array, Tracer) and not bool((good := valid(array)).all()):
        place = tuple(int(k) for k in np.unravel_index(int(jnp.argmin(good)), array.shape))
        where = ", ".join(map(str, place))
        raise ValueError(f"{name}[{where}]={float(array[place])}: expected {expectation}.")
    return array
