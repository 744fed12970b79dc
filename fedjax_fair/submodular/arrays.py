"""Conversion of arguments to arrays, with checks of all values that are known.

The first operation on a constant inside a traced function makes it a tracer, so constants are
checked before and stay constants.
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
    """Returns whether any leaf is a tracer."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def as_partial(function: Callable) -> Partial:
    """Returns a function as a pytree: a ``Partial`` as it is, any other as structure."""
    return function if isinstance(function, Partial) else Partial(function)


def as_finite(name: str, values: Any, shape: str) -> Array:
    """Returns floats with the axes named in ``shape``.

    Raises:
        ValueError: If the number of axes differs, an axis is empty, or an element is not finite.
    """
    return _as_floats(name, values, shape, _finite, "finite numbers")


def as_non_negative(name: str, values: Any, shape: str, size: int | None = None) -> Array:
    """Returns floats >= 0, checked as in `as_finite`; a vector of length ``size`` if given."""
    array = _as_floats(name, values, shape, _non_negative, "finite numbers >= 0")
    if size is not None and array.shape[0] != size:
        raise ValueError(f"{name}: expected {size} {shape}, got {array.shape[0]}.")
    return array


def as_probabilities(name: str, values: Any, shape: str) -> Array:
    """Returns floats in [0, 1], checked as in `as_finite`."""
    return _as_floats(name, values, shape, _probability, "numbers in [0, 1]")


def as_symmetric(name: str, values: Any, *, negative: bool = False) -> Float[Array, "n n"]:
    """Returns a square matrix that equals its transpose up to rounding.

    Raises:
        ValueError: If it is not square or symmetric, not finite, or negative unless allowed.
    """
    matrix = (as_finite if negative else as_non_negative)(name, values, "n n")
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name}: expected a square matrix, got shape {matrix.shape}.")
    if isinstance(matrix, Tracer):
        return matrix
    with jax.ensure_compile_time_eval():
        largest_gap, largest, place = _asymmetry(matrix)
        if float(largest_gap) > 1e-5 * float(largest):
            i, j = (int(k) for k in np.unravel_index(int(place), matrix.shape))
            raise ValueError(
                f"{name}: expected a symmetric matrix, but {name}[{i}, {j}]={float(matrix[i, j])} "
                f"and {name}[{j}, {i}]={float(matrix[j, i])}."
            )
    return matrix


def as_mask(name: str, values: Any, shape: tuple[int, ...] | None = None) -> Bool[Array, "..."]:
    """Returns booleans, of any shape unless it is given.

    Raises:
        ValueError: If an element is neither 0 nor 1, or the shape differs.
    """
    array = _as_constant(values)
    if array.dtype != bool:
        _assert_valid(name, array, _zero_or_one, "0 or 1")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}.")
    return _on_device(array.astype(bool))


def as_items(name: str, values: Any, size: int) -> Int[Array, " items"]:
    """Returns a vector of items.

    Raises:
        ValueError: If it is not a vector of distinct integers in ``[0, size)``.
    """
    array = _as_constant(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected a vector of items, got shape {array.shape}.")
    checks.items(name, array, size)
    return _on_device(array.astype(np.int32))


def _as_constant(values: Any) -> Any:
    """Returns JAX arrays and tracers as they are, and anything else as a NumPy array."""
    if isinstance(values, Array) or is_traced(values):
        return jnp.asarray(values)
    return np.asarray(values)


def _on_device(array: Any) -> Array:
    if isinstance(array, Array):
        return array
    with jax.ensure_compile_time_eval():
        return jax.device_put(_aligned_copy(array))


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    """Copies an array, which the caller may change, to memory that JAX uses without copying.

    On a CPU JAX copies arrays that are not aligned to 64 bytes, several times as slowly as NumPy.
    """
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    aligned = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    aligned[...] = array
    return aligned


def _as_floats(name: str, values: Any, shape: str, valid: Callable, expectation: str) -> Array:
    array = _as_constant(values)
    floats = jnp.issubdtype(array.dtype, jnp.floating)
    with np.errstate(over="ignore"):  # Overflow gives infinity, which is rejected below.
        dtype = jax.dtypes.canonicalize_dtype(array.dtype) if floats else np.float32
        array = array.astype(dtype, copy=False)
    axes = shape.split()
    if array.ndim != len(axes) or 0 in array.shape:
        raise ValueError(f"{name}: expected shape [{', '.join(axes)}], got {array.shape}.")
    # Every valid range is an interval, so the extremes decide without a mask of all elements. Both
    # are NaN if any element is.
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
        value = float(np.asarray(array)[place])
        raise ValueError(f"{name}[{where}]={value}: expected {expectation}.")


# These use only operators that NumPy and JAX share; comparisons with NaN are false.
def _finite(values: Any) -> Any:
    return abs(values) < float("inf")


def _non_negative(values: Any) -> Any:
    return (values >= 0) & (values < float("inf"))


def _probability(values: Any) -> Any:
    return (values >= 0) & (values <= 1)


def _zero_or_one(values: Any) -> Any:
    return (values == 0) | (values == 1)


# A check of a device array is one compiled function, instead of one for each operation.
@partial(jax.jit, static_argnames="valid")
def _first_invalid(array: Array, valid: Callable) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    good = valid(array)
    return ~good.all(), jnp.argmin(good)


@jax.jit
def _asymmetry(matrix: Float[Array, "n n"]) -> tuple[Array, Array, Array]:
    """Returns the largest difference to the transpose, the largest element, and the place."""
    gap = jnp.abs(matrix - matrix.T)
    return jnp.max(gap), jnp.max(jnp.abs(matrix)), jnp.argmax(gap)
