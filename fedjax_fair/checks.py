"""Checks at the edge: a ``ValueError`` for a concrete bad value, silence for a traced one.

A factory may be called with tracers, for example inside a ``vmap`` over learning rates; only a
value that is already known can be judged before compilation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.core import Tracer

__all__ = [
    "below_half",
    "finite",
    "items",
    "non_negative",
    "non_negative_int",
    "one_of",
    "positive",
    "positive_int",
    "probability",
    "seeds",
    "unit_interval",
]


def _judge(name: str, value: Any, valid: Any, expectation: str) -> None:
    if isinstance(value, Tracer):
        return
    number = np.asarray(value)
    if not np.issubdtype(number.dtype, np.number) or not np.all(valid(number)):
        raise ValueError(f"{name}={value!r}: expected {expectation}.")


def finite(name: str, value: Any) -> None:
    """Requires a finite number."""
    _judge(name, value, np.isfinite, "a finite number")


def positive(name: str, value: Any) -> None:
    """Requires a finite number above zero."""
    _judge(name, value, lambda x: np.isfinite(x) & (x > 0), "a number > 0")


def non_negative(name: str, value: Any) -> None:
    """Requires a finite number of at least zero."""
    _judge(name, value, lambda x: np.isfinite(x) & (x >= 0), "a number >= 0")


def unit_interval(name: str, value: Any) -> None:
    """Requires a number in ``[0, 1)``."""
    _judge(name, value, lambda x: (x >= 0) & (x < 1), "a number in [0, 1)")


def probability(name: str, value: Any) -> None:
    """Requires a number, or numbers, in ``[0, 1]``; traced ones pass."""
    _judge(name, value, lambda x: (x >= 0) & (x <= 1), "a probability in [0, 1]")


def below_half(name: str, value: Any) -> None:
    """Requires a number in ``[0, 0.5)``; a traced one passes."""
    _judge(name, value, lambda x: (x >= 0) & (x < 0.5), "a number in [0, 0.5)")


def positive_int(name: str, value: Any, *, at_most: float = math.inf) -> None:
    """Requires a Python (or NumPy) integer in ``[1, at_most]``; it decides a shape."""
    limit = "" if at_most == math.inf else f" and <= {at_most}"
    integral = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not integral or not 1 <= value <= at_most:
        raise ValueError(f"{name}={value!r}: expected an integer >= 1{limit}.")


def non_negative_int(name: str, value: Any) -> None:
    """Requires a Python (or NumPy) integer of at least zero."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name}={value!r}: expected an integer >= 0.")


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Requires one of a few words."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}.")


def seeds(name: str, value: Sequence[int]) -> None:
    """Requires one or more different integers in ``[0, 2**32)``."""
    if not value or len(set(value)) < len(value):
        raise ValueError(f"{name}={value!r}: expected one or more different seeds.")
    if not all(isinstance(seed, (int, np.integer)) and 0 <= seed < 2**32 for seed in value):
        raise ValueError(f"{name}={value!r}: expected integers in [0, 2**32).")


def items(name: str, value: Any, size: int) -> None:
    """Requires different integers in ``[0, size)``."""
    if isinstance(value, Tracer):
        return
    numbers = np.asarray(value)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name}={numbers.tolist()}: expected integers.")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
        raise ValueError(f"{name}={numbers.tolist()}: expected items in [0, {size}).")
    if np.unique(numbers).size < numbers.size:
        raise ValueError(f"{name}={numbers.tolist()}: expected different items.")
