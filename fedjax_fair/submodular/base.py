"""Set functions as incremental oracles, and the result of a maximizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree

__all__ = ["Maximized", "SetFunction", "as_finite", "as_non_negative", "as_symmetric"]


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


def as_finite(name: str, values: Any, shape: str) -> Array:
    """An array of floats with as many axes as ``shape`` names, finite unless it is traced.

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
        with jax.ensure_compile_time_eval():  # A constant of a function that is being traced.
            _assert_symmetric(name, matrix)
    return matrix


def _assert_symmetric(name: str, matrix: Array) -> None:
    largest_gap, largest, place = _asymmetry(matrix)
    if float(largest_gap) > 1e-5 * float(largest):
        i, j = (int(k) for k in np.unravel_index(int(place), matrix.shape))
        raise ValueError(
            f"{name}: expected a symmetric matrix, but {name}[{i}, {j}]={float(matrix[i, j])} "
            f"and {name}[{j}, {i}]={float(matrix[j, i])}."
        )


# Checks are compiled as one program each, rather than operation by operation.
@jax.jit
def _asymmetry(matrix: Float[Array, "n n"]) -> tuple[Array, Array, Array]:
    gap = jnp.abs(matrix - matrix.T)
    return jnp.max(gap), jnp.max(jnp.abs(matrix)), jnp.argmax(gap)


@partial(jax.jit, static_argnames="valid")
def _first_invalid(array: Array, valid: Callable) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Whether any number is invalid, and the place of the first one."""
    good = valid(array)
    return ~good.all(), jnp.argmin(good)


def _non_negative(values: Array) -> Bool[Array, "..."]:
    return jnp.isfinite(values) & (values >= 0)


def _as_array(name: str, values: Any, shape: str, valid: Callable, expectation: str) -> Array:
    array = jnp.asarray(values)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.float32)
    axes = shape.split()
    if array.ndim != len(axes) or 0 in array.shape:
        raise ValueError(f"{name}: expected shape [{', '.join(axes)}], got {array.shape}.")
    if not isinstance(array, Tracer):
        with jax.ensure_compile_time_eval():
            _assert_valid(name, array, valid, expectation)
    return array


def _assert_valid(name: str, array: Array, valid: Callable, expectation: str) -> None:
    invalid, place = _first_invalid(array, valid)
    if bool(invalid):
        place = tuple(int(k) for k in np.unravel_index(int(place), array.shape))
        where = ", ".join(map(str, place))
        raise ValueError(f"{name}[{where}]={float(array[place])}: expected {expectation}.")
