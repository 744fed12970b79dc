"""Checks of arguments, which raise a ``ValueError`` for a bad value and let traced values pass."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.core import Tracer

MAX_INT = 2**31 - 1
"""The largest integer of JAX's default type."""

_FLOAT32 = np.finfo(np.float32)
_SCALARS = (int, float, np.generic, np.ndarray, jax.Array)


def representable(name: str, value: Any) -> None:
    """Checks that a number does not become 0, infinite or another integer in 32 bits.

    Anything that is not a real number passes.

    Raises:
        ValueError: If it does; the message has the valid range.

    Examples:
        >>> representable("learning_rate", 1e39)
        Traceback (most recent call last):
        ValueError: learning_rate=1e+39: expected a magnitude of at most 3.402823e+38 in float32.
    """
    array = None if isinstance(value, Tracer) else _real_array(value, many=True)
    if array is not None and (limits := _exceeded_limits(array)) is not None:
        raise ValueError(f"{name}={show(value)}: expected {limits}.")


def _check_real(valid: Callable[[Any], Any], expected: str) -> Callable[..., None]:
    """Makes a check of scalars, or also of arrays with ``many=True``."""

    def check(name: str, value: Any, *, many: bool = False, at_most: float = math.inf) -> None:
        if isinstance(value, Tracer):
            return
        array, problem = _real_array(value, many=many), None
        wanted = expected if at_most == math.inf else f"{expected} and <= {at_most:g}"
        if array is None or not np.all(valid(array) & (array <= at_most)):
            problem = wanted
        elif (limits := _exceeded_limits(array)) is not None:
            problem = f"{wanted}, with {limits}"
        elif array.dtype.kind == "f" and not np.all(valid(array.astype(np.float32))):
            problem = f"{wanted}, also when rounded to float32"
        elif np.asarray(value).dtype.kind == "u" and not many:  # Its negative would be large.
            problem = f"{wanted}, as a float or a signed integer"
        if problem is not None:
            raise ValueError(f"{name}={show(value)}: expected {problem}.")

    return check


def show(value: Any) -> str:
    """Prints a value on one line, and long ones in part."""
    if isinstance(value, int) and abs(value) >= 10**20:  # Python refuses to print 4,300 digits.
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1}..."
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _real_array(value: Any, *, many: bool) -> np.ndarray | None:
    """Converts real numbers; None if a value is anything else, or not a scalar unless ``many``."""
    if is_int(value):  # NumPy has no integers beyond 64 bits.
        value = min(max(int(value), -(2**62)), 2**62)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # A ragged list, a random key.
        return None
    if isinstance(value, np.ma.MaskedArray) or array.dtype.kind not in "fiu":
        return None
    is_scalar = array.shape == () and isinstance(value, _SCALARS)
    return array if is_scalar or (many and array.ndim > 0) else None


def _exceeded_limits(array: np.ndarray) -> str | None:
    """Describes the range of 32 bits if finite numbers are outside of it."""
    sizes = np.abs(array.astype(np.float64) if array.dtype.kind in "iu" else array)
    if array.dtype.kind in "iu" and np.any(sizes > MAX_INT):
        return f"a magnitude of at most {MAX_INT} or a float"
    if np.any((sizes > _FLOAT32.max) & np.isfinite(sizes)):
        return f"a magnitude of at most {_FLOAT32.max:.7g} in float32"
    if np.any((sizes < _FLOAT32.tiny) & (sizes > 0)):
        return f"0 or a magnitude of at least {_FLOAT32.tiny:.7g} in float32"
    return None


finite = _check_real(np.isfinite, "a finite number")
positive = _check_real(lambda x: np.isfinite(x) & (x > 0), "a number > 0")
positive_or_infinite = _check_real(lambda x: x > 0, "a number > 0")
below_one = _check_real(lambda x: np.isfinite(x) & (x < 1), "a number < 1")
non_negative = _check_real(lambda x: np.isfinite(x) & (x >= 0), "a number >= 0")
unit_interval = _check_real(lambda x: (x >= 0) & (x < 1), "a number in [0, 1)")
open_interval = _check_real(lambda x: (x > 0) & (x < 1), "a number in (0, 1)")
below_half = _check_real(lambda x: (x >= 0) & (x < 0.5), "a number in [0, 0.5)")
acute_angle = _check_real(lambda x: (x >= 0) & (x <= 90), "an angle in [0, 90] degrees")
fraction = _check_real(lambda x: (x >= 0) & (x <= 1), "a number in [0, 1]")
probability = _check_real(lambda x: (x >= 0) & (x <= 1), "a probability in [0, 1]")


def integer(name: str, value: Any, *, at_least: int = 1, at_most: int) -> None:
    """Checks for an integer in a range that only enters arithmetic, so may be an array."""
    if isinstance(value, Tracer):
        return
    array = _real_array(value, many=False)
    if array is None or array.dtype.kind == "f" or not at_least <= array <= at_most:
        expected = f"an integer >= {at_least} and <= {at_most}"
        raise ValueError(f"{name}={show(value)}: expected {expected}.")


def positive_int(
    name: str, value: Any, *, at_most: float = math.inf, words: tuple[str, ...] = ()
) -> None:
    """Checks for a Python or NumPy integer, or one of some strings.

    Args:
        name: Name of the argument.
        value: The argument.
        at_most: The largest valid integer, by default of 32 bits.
        words: The strings.
    """
    if isinstance(value, str) and value in words:
        return
    if at_most == math.inf and is_int(value) and value > MAX_INT:
        at_most = MAX_INT
    if not (is_int(value) and 1 <= value <= at_most):
        limit = "" if at_most == math.inf else f" and <= {at_most}"
        limit += "".join(f" or {word!r}" for word in words)
        raise ValueError(f"{name}={show(value)}: expected an integer >= 1{limit}.")


def non_negative_int(name: str, value: Any, *, at_most: int = 2**63 - 1) -> None:
    """Checks for a Python or NumPy integer in ``[0, at_most]``."""
    if not is_int(value) or not 0 <= value <= at_most:
        limit = f" and <= {at_most}" if is_int(value) and value > 0 else ""
        raise ValueError(f"{name}={show(value)}: expected an integer >= 0{limit}.")


def is_int(value: Any) -> TypeGuard[int]:
    """Returns whether a value is a Python or NumPy integer, and not a boolean."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Checks for one of some strings."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={show(value)}: expected one of {', '.join(map(repr, choices))}.")


def instance(name: str, value: Any, kind: type, example: str) -> None:
    """Checks for an instance of a type."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} is a {type(value).__name__}: expected a {kind.__name__}, such as {example}."
        )


def function(name: str, value: Any, expectation: str) -> None:
    """Checks for a callable."""
    if not callable(value):
        raise ValueError(f"{name}={show(value)}: expected a function {expectation}.")


def installed(what: str, package: str, extra: str) -> None:
    """Checks for a package that an extra of this one installs.

    Raises:
        ImportError: If it is missing.
    """
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"{what}: expected the package {package}; pip install 'fedjax-fair[{extra}]' installs "
            "it."
        )


def seeds(name: str, value: Any, *, different: bool = True) -> None:
    """Checks for one or more integers in ``[0, 2**32)``, without repetition if ``different``."""
    try:
        values = tuple(value)
    except TypeError:
        values = ()
    if not values or not all(is_int(seed) and 0 <= seed < 2**32 for seed in values):
        raise ValueError(
            f"{name}={show(value)}: expected one or more integers in [0, 2**32), such as (0, 1, 2)."
        )
    if different and len(set(values)) < len(values):
        raise ValueError(f"{name}={show(value)}: expected different seeds; remove repeated ones.")


def items(name: str, value: Any, size: int) -> None:
    """Checks for a sequence of different integers in ``[0, size)``."""
    if isinstance(value, Tracer):
        return
    array = _real_array(value, many=True)
    has_booleans = isinstance(value, (list, tuple)) and any(isinstance(one, bool) for one in value)
    if array is not None and array.ndim == 1 and not array.size:
        return
    if array is None or array.ndim != 1 or array.dtype.kind == "f" or has_booleans:
        expected = "integers"
    elif array.min() < 0 or array.max() >= size:
        expected = f"items in [0, {size})"
    elif np.unique(array).size < array.size:
        expected = "different items"
    else:
        return
    shown = value if array is None else array.tolist()
    raise ValueError(f"{name}={show(shown)}: expected {expected}.")
