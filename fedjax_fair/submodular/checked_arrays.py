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

from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import one_line


def is_traced(values: Any) -> bool:
    """Returns whether any leaf is a tracer."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def check_epsilon(value: Any, name: str = "epsilon") -> None:
    """Checks for a scalar in (0, 1)."""
    checks.positive(name, value)
    checks.unit_interval(name, value)


def check_result(name: str, function: Callable, shape: tuple[int, ...], *arguments: Any) -> None:
    """Checks by tracing that a function returns real numbers of a shape."""
    checks.function(name, function, "in JAX")
    try:
        result = jax.eval_shape(function, *arguments)
    except Exception as error:  # Whatever a user's function raises.
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{name}: expected a function in JAX, but it raises {reason}") from error
    dtype = getattr(result, "dtype", object)
    is_real = any(jnp.issubdtype(dtype, real) for real in (np.bool, np.integer, np.floating))
    if not is_real or result.shape != shape:
        raise ValueError(f"{name}: expected to return real numbers of shape {shape}, got {result}.")


def as_known_epsilon(value: Any) -> float:
    """Returns a scalar in (0, 1) that decides shapes, and so must not be traced."""
    if is_traced(value):
        raise ValueError(
            "epsilon is traced: expected a value that is known before compilation; pass a Python "
            "float outside of jit."
        )
    check_epsilon(value)
    return float(value)


def check_key(key: Any) -> None:
    """Checks for one random key, typed or as integers."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (shape == () if is_typed else dtype == np.uint32 and shape in ((2,), (4,))):
        got = type(key).__name__ if dtype is None else f"{dtype}{shape}"
        raise ValueError(f"key: expected a random key, such as jax.random.key(0), got {got}.")


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
        raise ValueError(
            f"{name}: expected {size} {shape}, got {array.shape[0]}; pass one for each."
        )
    return array


def as_probabilities(name: str, values: Any, shape: str) -> Array:
    """Returns floats in [0, 1], checked as in `as_finite`."""
    return _as_floats(name, values, shape, _probability, "numbers in [0, 1]")


def check_square(name: str, shape: tuple[int, ...]) -> None:
    """Raises ``ValueError`` if a matrix of a shape is not square."""
    if shape[0] != shape[1]:
        raise ValueError(
            f"{name}: expected a square matrix, got shape {shape}; pass one row and one column "
            "per item."
        )


def as_symmetric(name: str, values: Any, *, negative: bool = False) -> Float[Array, "n n"]:
    """Returns a square matrix that equals its transpose up to rounding.

    Raises:
        ValueError: If it is not square or symmetric, not finite, or negative unless allowed.
    """
    matrix = (as_finite if negative else as_non_negative)(name, values, "n n")
    check_square(name, matrix.shape)
    if isinstance(matrix, Tracer):
        return matrix
    with jax.ensure_compile_time_eval():
        largest_gap, largest, place = _asymmetry(matrix)
        if float(largest_gap) > 1e-5 * float(largest):
            i, j = (int(k) for k in np.unravel_index(int(place), matrix.shape))
            raise ValueError(
                f"{name}: expected a symmetric matrix, but {name}[{i}, {j}]={float(matrix[i, j])} "
                f"and {name}[{j}, {i}]={float(matrix[j, i])}; use (A + A.T) / 2."
            )
    return matrix


def as_mask(name: str, values: Any, shape: tuple[int, ...] | None = None) -> Bool[Array, "..."]:
    """Returns booleans, of any shape unless it is given.

    Raises:
        ValueError: If an element is neither 0 nor 1, or the shape differs.
    """
    array = _as_constant(name, values)
    if array.dtype != bool:
        _assert_valid(name, array, _zero_or_one, "0 or 1")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}; reshape it.")
    return _on_device(array.astype(bool))


def as_items(name: str, values: Any, size: int) -> Int[Array, " items"]:
    """Returns a vector of items.

    Raises:
        ValueError: If it is not a vector of distinct integers in ``[0, size)``.
    """
    array = _as_constant(name, values)
    if array.ndim != 1:
        raise ValueError(
            f"{name}: expected a vector of items, got shape {array.shape}; pass a list of indices."
        )
    checks.items(name, array, size)
    return _on_device(array.astype(np.int32))


def as_host(name: str, values: Any) -> np.ndarray:
    """Returns real numbers as a NumPy array.

    Raises:
        ValueError: If they are traced, or not real numbers, or some are masked.
    """
    if is_traced(values):
        raise ValueError(
            f"{name} is traced: expected values that are known before compilation; call this "
            "outside of jit and vmap."
        )
    return np.asarray(_as_constant(name, values))


def _as_constant(name: str, values: Any) -> Any:
    """Returns JAX arrays and tracers as they are, and anything else as a NumPy array."""
    is_array = isinstance(values, (Array, np.ndarray))
    parts = [values] if is_array else jax.tree.leaves(values)
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise ValueError(f"{name}: expected no masked elements; fill or remove them.")
    is_jax = isinstance(values, Array) or any(isinstance(part, Tracer) for part in parts)
    try:
        array = jnp.asarray(values) if is_jax else np.asarray(values)
        kind, got = array.dtype, f"{array.dtype}{array.shape}"
    except (TypeError, ValueError):
        array, kind, got = None, object, f"a {type(values).__name__} of different lengths"
    if not any(jnp.issubdtype(kind, real) for real in (np.bool, np.integer, np.floating)):
        raise ValueError(
            f"{name}: expected an array of real numbers, got {got}; convert it to floats."
        )
    return array


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
    given = _as_constant(name, values)
    floats = jnp.issubdtype(given.dtype, jnp.floating)
    with np.errstate(over="ignore"):  # Overflow gives infinity, which is rejected below.
        dtype = jax.dtypes.canonicalize_dtype(given.dtype) if floats else np.float32
        array = given.astype(dtype, copy=False)
    axes = shape.split()
    if array.ndim != len(axes) or 0 in array.shape:
        raise ValueError(
            f"{name}: expected shape [{', '.join(axes)}], got {array.shape}; reshape it."
        )
    # Every valid range is an interval, so the extremes decide without a mask of all elements. Both
    # are NaN if any element is.
    if not isinstance(array, np.ndarray):
        _assert_valid(name, array, valid, expectation)
    elif not (valid(array.min()) and valid(array.max())):
        _assert_valid(name, array, valid, expectation, given)
    elif (largest := float(max(-array.min(), array.max()))) > jnp.finfo(dtype).max / array.size:
        got = f"elements up to {largest:.3g}"
        raise ValueError(
            f"{name}: expected a finite sum in {array.dtype}, got {got}; scale the values."
        )
    return _on_device(array)


def _assert_valid(
    name: str, array: Any, valid: Callable, expectation: str, given: Any = None
) -> None:
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
        value, where = np.asarray(array)[place], ", ".join(map(str, place))
        if given is not None and np.isfinite(exact := np.asarray(given)[place]) > np.isfinite(
            value
        ):
            value, expectation = exact, f"{expectation} in single precision"
        raise ValueError(f"{name}[{where}]={float(value)}: expected {expectation}.")


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
