"""Checks at the edge: a ``ValueError`` for a concrete bad value, silence for a traced one.

A class may be made of tracers, for example inside a ``vmap`` over learning rates; only a
value that is already known can be judged before compilation.
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


def _judge(
    name: str, value: Any, valid: Callable[[Any], Any], expectation: str, *, many: bool = False
) -> None:
    if isinstance(value, Tracer):
        return
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError):  # A ragged list, a random key.
        numbers = np.asarray(None)
    real = np.issubdtype(numbers.dtype, np.integer) or np.issubdtype(numbers.dtype, np.floating)
    if not real or not (many or numbers.shape == ()) or not np.all(valid(numbers)):
        raise ValueError(f"{name}={value!r}: expected {expectation}.")


def finite(name: str, value: Any) -> None:
    """Requires a finite number."""
    _judge(name, value, np.isfinite, "a finite number")


def positive(name: str, value: Any, *, many: bool = False) -> None:
    """Requires a finite number above zero, or an array of such numbers."""
    _judge(name, value, lambda x: np.isfinite(x) & (x > 0), "a number > 0", many=many)


def non_negative(name: str, value: Any, *, many: bool = False) -> None:
    """Requires a finite number of at least zero, or an array of such numbers."""
    _judge(name, value, lambda x: np.isfinite(x) & (x >= 0), "a number >= 0", many=many)


def unit_interval(name: str, value: Any) -> None:
    """Requires a number in ``[0, 1)``."""
    _judge(name, value, lambda x: (x >= 0) & (x < 1), "a number in [0, 1)")


def probability(name: str, value: Any, *, many: bool = False) -> None:
    """Requires a number in ``[0, 1]``, or an array of such numbers; traced ones pass."""
    _judge(name, value, lambda x: (x >= 0) & (x <= 1), "a probability in [0, 1]", many=many)


def below_half(name: str, value: Any) -> None:
    """Requires a number in ``[0, 0.5)``; a traced one passes."""
    _judge(name, value, lambda x: (x >= 0) & (x < 0.5), "a number in [0, 0.5)")


def positive_integer(name: str, value: Any, *, at_most: int) -> None:
    """Requires an integer in ``[1, at_most]`` that only enters arithmetic: it may be an array."""
    expectation = f"an integer >= 1 and <= {at_most}"
    _judge(name, value, lambda x: (x >= 1) & (x <= at_most), expectation)
    if not isinstance(value, Tracer) and not np.issubdtype(np.asarray(value).dtype, np.integer):
        raise ValueError(f"{name}={value!r}: expected {expectation}.")


def positive_int(
    name: str, value: Any, *, at_most: float = math.inf, words: tuple[str, ...] = ()
) -> None:
    """Requires a Python (or NumPy) integer in ``[1, at_most]``, or one of a few words.

    It decides a shape and can not be traced.
    """
    word = isinstance(value, str) and value in words
    limit = "" if at_most == math.inf else f" and <= {at_most}"
    limit += "".join(f" or {word!r}" for word in words)
    if not word and not (is_int(value) and 1 <= value <= at_most):
        raise ValueError(f"{name}={value!r}: expected an integer >= 1{limit}.")


def non_negative_int(name: str, value: Any) -> None:
    """Requires a Python (or NumPy) integer of at least zero, such as the seed of a partition."""
    if not is_int(value) or value < 0:
        raise ValueError(f"{name}={value!r}: expected an integer >= 0.")


def is_int(value: Any) -> TypeGuard[int]:
    """Whether a value is a Python or NumPy integer; a truth value is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Requires one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}.")


def instance(name: str, value: Any, kind: type, example: str) -> None:
    """Requires an object of a type."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} is a {type(value).__name__}: expected a {kind.__name__}, such as {example}."
        )


def function(name: str, value: Any, expectation: str) -> None:
    """Requires something that can be called."""
    if not callable(value):
        raise ValueError(f"{name}={value!r}: expected a function {expectation}.")


def seeds(name: str, value: Any, *, different: bool = True) -> None:
    """Requires one or more integers in ``[0, 2**32)``, different ones unless they may repeat."""
    try:
        given = tuple(value)
    except TypeError:
        given = ()
    if not given or not all(is_int(seed) and 0 <= seed < 2**32 for seed in given):
        raise ValueError(f"{name}={value!r}: expected one or more integers in [0, 2**32).")
    if different and len(set(given)) < len(given):
        raise ValueError(f"{name}={value!r}: expected different seeds.")


def items(name: str, value: Any, size: int) -> None:
    """Requires different integers in ``[0, size)``."""
    if isinstance(value, Tracer):
        return
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError):  # A ragged list, a random key.
        raise ValueError(f"{name}={value!r}: expected integers.") from None
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name}={numbers.tolist()}: expected integers.")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
        raise ValueError(f"{name}={numbers.tolist()}: expected items in [0, {size}).")
    if np.unique(numbers).size < numbers.size:
        raise ValueError(f"{name}={numbers.tolist()}: expected different items.")
