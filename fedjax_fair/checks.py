"""Checks of arguments, which raise a ``ValueError`` for a bad value and let traced values pass.

Settings may be traced, for example in a ``vmap`` over learning rates, and only concrete values can
be checked before compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
from jax.core import Tracer

__all__ = [
    "below_half",
    "finite",
    "fraction",
    "function",
    "instance",
    "is_int",
    "items",
    "non_negative",
    "non_negative_int",
    "one_of",
    "positive",
    "positive_int",
    "positive_integer",
    "probability",
    "seeds",
    "unit_interval",
]


def _check_real(valid: Callable[[Any], Any], expected: str) -> Callable[..., None]:
    """Makes a check of scalars, or also of arrays with ``many=True``."""

    def check(name: str, value: Any, *, many: bool = False) -> None:
        if isinstance(value, Tracer):
            return
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):  # A ragged list, a random key.
            array = np.asarray(None)
        is_real = array.dtype.kind in "fiu"
        if not is_real or not (many or array.shape == ()) or not np.all(valid(array)):
            raise ValueError(f"{name}={value!r}: expected {expected}.")

    return check


finite = _check_real(np.isfinite, "a finite number")
positive = _check_real(lambda x: np.isfinite(x) & (x > 0), "a number > 0")
non_negative = _check_real(lambda x: np.isfinite(x) & (x >= 0), "a number >= 0")
unit_interval = _check_real(lambda x: (x >= 0) & (x < 1), "a number in [0, 1)")
below_half = _check_real(lambda x: (x >= 0) & (x < 0.5), "a number in [0, 0.5)")
fraction = _check_real(lambda x: (x >= 0) & (x <= 1), "a number in [0, 1]")
probability = _check_real(lambda x: (x >= 0) & (x <= 1), "a probability in [0, 1]")


def positive_integer(name: str, value: Any, *, at_most: int) -> None:
    """Checks for an integer in ``[1, at_most]`` that only enters arithmetic, so may be an array."""
    expected = f"an integer >= 1 and <= {at_most}"
    _check_real(lambda x: (x.dtype.kind in "iu") & (x >= 1) & (x <= at_most), expected)(name, value)


def positive_int(
    name: str, value: Any, *, at_most: float = math.inf, words: tuple[str, ...] = ()
) -> None:
    """Checks for a Python or NumPy integer in ``[1, at_most]``, or one of some strings."""
    if isinstance(value, str) and value in words:
        return
    if not (is_int(value) and 1 <= value <= at_most):
        limit = "" if at_most == math.inf else f" and <= {at_most}"
        limit += "".join(f" or {word!r}" for word in words)
        raise ValueError(f"{name}={value!r}: expected an integer >= 1{limit}.")


def non_negative_int(name: str, value: Any) -> None:
    """Checks for a Python or NumPy integer >= 0."""
    if not is_int(value) or value < 0:
        raise ValueError(f"{name}={value!r}: expected an integer >= 0.")


def is_int(value: Any) -> TypeGuard[int]:
    """Returns whether a value is a Python or NumPy integer, and not a boolean."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Checks for one of some strings."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}.")


def instance(name: str, value: Any, kind: type, example: str) -> None:
    """Checks for an instance of a type."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} is a {type(value).__name__}: expected a {kind.__name__}, such as {example}."
        )


def function(name: str, value: Any, expectation: str) -> None:
    """Checks for a callable."""
    if not callable(value):
        raise ValueError(f"{name}={value!r}: expected a function {expectation}.")


def seeds(name: str, value: Any, *, different: bool = True) -> None:
    """Checks for one or more integers in ``[0, 2**32)``, without repetition if ``different``."""
    try:
        values = tuple(value)
    except TypeError:
        values = ()
    if not values or not all(is_int(seed) and 0 <= seed < 2**32 for seed in values):
        raise ValueError(f"{name}={value!r}: expected one or more integers in [0, 2**32).")
    if different and len(set(values)) < len(values):
        raise ValueError(f"{name}={value!r}: expected different seeds.")


def items(name: str, value: Any, size: int) -> None:
    """Checks for different integers in ``[0, size)``."""
    if isinstance(value, Tracer):
        return
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # A ragged list, a random key.
        raise ValueError(f"{name}={value!r}: expected integers.") from None
    expected = None
    if array.size and not np.issubdtype(array.dtype, np.integer):
        expected = "integers"
    elif array.size and not (array.min() >= 0 and array.max() < size):
        expected = f"items in [0, {size})"
    elif np.unique(array).size < array.size:
        expected = "different items"
    if expected is not None:
        raise ValueError(f"{name}={array.tolist()}: expected {expected}.")
