"""Arrays from outside, checked where their values are known.

A constant of a function that is being traced becomes a tracer with the first operation on it, so it
is checked before, and stays a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair import checks

__all__ = [
    "as_finite",
    "as_items",
    "as_mask",
    "as_non_negative",
    "as_partial",
    "as_probabilities",
    "as_symmetric",
    "is_traced",
]


def is_traced(values: Any) -> bool:
    """Whether any of the values is unknown before the compiled function runs."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def as_partial(function: Callable) -> Partial:
    """A function as a pytree, whose structure it is unless it is a ``Partial`` already."""
    return function if isinstance(function, Partial) else Partial(function)


def as_finite(name: str, values: Any, shape: str) -> Array:
    """An array of floats with as many axes as ``shape`` names, finite unless it is traced.

    Raises:
        ValueError: If it has another number of axes, an empty one, or a number is not finite.
    """
    return _as_floats(name, values, shape, _finite, "finite numbers")


def as_non_negative(name: str, values: Any, shape: str) -> Array:
    """As ``as_finite``, and nothing below zero."""
    return _as_floats(name, values, shape, _non_negative, "finite numbers >= 0")


def as_probabilities(name: str, values: Any, shape: str) -> Array:
    """As ``as_finite``, and in [0, 1]."""
    return _as_floats(name, values, shape, _probability, "numbers in [0, 1]")


def as_symmetric(name: str, values: Any, *, negative: bool = False) -> Float[Array, "n n"]:
    """A square matrix of finite numbers that equals its transpose up to rounding.

    Raises:
        ValueError: If it is not, or a number is below zero and must not be.
    """
    matrix = (as_finite if negative else as_non_negative)(name, values, "n n")
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name}: expected a square matrix, got shape {matrix.shape}.")
    if not isinstance(matrix, Tracer):
        with jax.ensure_compile_time_eval():
            _assert_symmetric(name, matrix)
    return matrix


def as_mask(name: str, values: Any) -> Bool[Array, "..."]:
    """Booleans, of any shape.

    Raises:
        ValueError: If there are numbers other than 0 and 1.
    """
    array = _as_constant(values)
    if array.dtype != bool:
        _assert_valid(name, array, _zero_or_one, "0 or 1")
    return _on_device(array.astype(bool))


def as_items(name: str, values: Any, size: int) -> Int[Array, " items"]:
    """Different items of ``size``.

    Raises:
        ValueError: If it is no vector, or not of different integers in ``[0, size)``.
    """
    array = _as_constant(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected a vector of items, got shape {array.shape}.")
    checks.items(name, array, size)
    return _on_device(array.astype(np.int32))


def _as_constant(values: Any) -> Any:
    """As it is where it is on a device or traced, and otherwise as an array of NumPy."""
    if isinstance(values, Array) or is_traced(values):
        return jnp.asarray(values)
    return np.asarray(values)


def _on_device(array: Any) -> Array:
    if isinstance(array, Array):
        return array
    with jax.ensure_compile_time_eval():
        return jax.device_put(_aligned_copy(array))


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy, since what was given may change, that JAX takes as it is on a CPU.

    JAX copies what does not begin at a multiple of 64 bytes, several times as slowly as NumPy.
    """
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    aligned = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    aligned[...] = array
    return aligned


def _as_floats(name: str, values: Any, shape: str, valid: Callable, expectation: str) -> Array:
    array = _as_constant(values)
    floats = jnp.issubdtype(array.dtype, jnp.floating)
    with np.errstate(over="ignore"):  # To infinity, which is refused.
        dtype = jax.dtypes.canonicalize_dtype(array.dtype) if floats else np.float32
        array = array.astype(dtype, copy=False)
    axes = shape.split()
    if array.ndim != len(axes) or 0 in array.shape:
        raise ValueError(f"{name}: expected shape [{', '.join(axes)}], got {array.shape}.")
    # Of an interval the extremes tell, which takes no memory; both are NaN if any number is.
    within = isinstance(array, np.ndarray) and valid(array.min()) and valid(array.max())
    if not within:
        _assert_valid(name, array, valid, expectation)
    return _on_device(array)


def _assert_valid(name: str, array: Any, valid: Callable, expectation: str) -> None:
    if isinstance(array, Tracer) or not array.size:
        return
    if isinstance(array, np.ndarray):
        good = valid(array)
        invalid, place = not good.all(), np.argmin(good)
    else:
        with jax.ensure_compile_time_eval():
            invalid, place = _first_invalid(array, valid)
    if bool(invalid):
        place = tuple(int(k) for k in np.unravel_index(int(place), array.shape))
        where = ", ".join(map(str, place))
        found = float(np.asarray(array)[place])
        raise ValueError(f"{name}[{where}]={found}: expected {expectation}.")


# Operators alone, which NumPy and JAX share; comparisons with NaN are false.
def _finite(values: Any) -> Any:
    return abs(values) < float("inf")


def _non_negative(values: Any) -> Any:
    return (values >= 0) & (values < float("inf"))


def _probability(values: Any) -> Any:
    return (values >= 0) & (values <= 1)


def _zero_or_one(values: Any) -> Any:
    return (values == 0) | (values == 1)


# Checks of what is on a device are compiled as one program each, rather than operation by
# operation.
@partial(jax.jit, static_argnames="valid")
def _first_invalid(array: Array, valid: Callable) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Whether any number is invalid, and the place of the first one."""
    good = valid(array)
    return ~good.all(), jnp.argmin(good)


def _assert_symmetric(name: str, matrix: Array) -> None:
    largest_gap, largest, place = _asymmetry(matrix)
    if float(largest_gap) > 1e-5 * float(largest):
        i, j = (int(k) for k in np.unravel_index(int(place), matrix.shape))
        raise ValueError(
            f"{name}: expected a symmetric matrix, but {name}[{i}, {j}]={float(matrix[i, j])} "
            f"and {name}[{j}, {i}]={float(matrix[j, i])}."
        )


@jax.jit
def _asymmetry(matrix: Float[Array, "n n"]) -> tuple[Array, Array, Array]:
    gap = jnp.abs(matrix - matrix.T)
    return jnp.max(gap), jnp.max(jnp.abs(matrix)), jnp.argmax(gap)
