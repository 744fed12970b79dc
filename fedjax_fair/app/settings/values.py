"""Conversion of strings into values of settings, by type."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["describe_type", "is_sequence", "members", "parse_float", "parse_value"]

_NAMES = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}
_PLURALS = {int: "integers", float: "numbers", str: "strings"}
_MAX_RANGE = 10_000


def members(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union without None, or the type itself."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(each for each in kinds if each is not type(None))


def is_sequence(kind: Any) -> bool:
    """Whether a value consists of several strings."""
    return any(get_origin(member) is tuple for member in members(kind))


def describe_type(kind: Any) -> str:
    """Describes the values of a type, for error messages.

    Examples:
        >>> describe_type(int | Literal["auto", "all"] | None), describe_type(tuple[int, ...])
        ("an integer or 'auto' or 'all'", 'integers')
    """
    names: list[str] = []
    for member in members(kind):
        if get_origin(member) is Literal:
            names += map(repr, get_args(member))
        elif get_origin(member) is tuple:
            names.append(_PLURALS[get_args(member)[0]])
        else:
            names.append(_NAMES[member])
    return " or ".join(names)


def parse_value(kind: Any, texts: Sequence[str]) -> Any:
    """Converts strings into a value: one string, or any number of them for a tuple.

    Items of a tuple may also be separated by commas, and ``0:3`` is ``0, 1, 2``.

    Examples:
        >>> parse_value(tuple[int, ...], ["0", "3:6,9"])
        (0, 3, 4, 5, 9)
        >>> parse_value(tuple[str, ...], ["fedavg,subtrunc:lam=0.1,b=5,divfl"])
        ('fedavg', 'subtrunc:lam=0.1,b=5', 'divfl')
    """
    for member in members(kind):
        try:
            return _convert(member, texts)
        except _RangeError:
            raise
        except ValueError:
            continue
    raise ValueError(f"expected {describe_type(kind)}.")


class _RangeError(ValueError):
    """A value of the right type is out of range."""


def _convert(kind: Any, texts: Sequence[str]) -> Any:
    if get_origin(kind) is tuple:
        if not texts:
            raise ValueError
        split = _integers if get_args(kind)[0] is int else _names
        return tuple(part for text in texts for part in split(text))
    (text,) = texts
    choices = (False, True) if kind is bool else get_args(kind)
    if choices:
        return choices[list(map(str, choices)).index(text)]
    return parse_float(text) if kind is float else kind(text)


def parse_float(text: str) -> float:
    """Converts a string into a number that is not rounded to 0 or infinity.

    Examples:
        >>> parse_float("1e-3")
        0.001
    """
    value, digits = float(text), text.casefold().partition("e")[0]
    if (value == 0 and re.search("[1-9]", digits)) or (math.isinf(value) and "inf" not in digits):
        raise _RangeError(f"{text} is beyond the range of numbers.")
    return value


def _integers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, colon, end = part.partition(":")
        start, stop = int(first), int(end) if colon else int(first) + 1
        if stop - start > _MAX_RANGE:
            raise _RangeError(f"expected at most {_MAX_RANGE:,} integers in a range.")
        if stop <= start:
            raise ValueError
        yield from range(start, stop)


def _names(text: str) -> list[str]:
    names: list[str] = []
    for part in text.split(","):
        if names and ":" in names[-1] and "=" in part and ":" not in part:
            names[-1] += f",{part}"  # Another setting of the method before it.
        else:
            names.append(part)
    return names
