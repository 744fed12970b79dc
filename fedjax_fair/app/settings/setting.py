"""Settings: their types, their values from texts and files, and stored descriptions of them.

The stored descriptions are of the package's classes, which need not be imported.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import tyro
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

__all__ = [
    "REQUIRED",
    "Description",
    "Setting",
    "check_value",
    "default_hint",
    "describe_type",
    "is_sequence",
    "members",
    "parse_float",
    "parse_value",
]

REQUIRED = inspect.Parameter.empty
"""Default of a parameter without one."""

_NAMES = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}
_PLURALS = {int: "integers", float: "numbers", str: "strings"}
_MAX_RANGE = 10_000
_PLAIN: dict[str, Any] = {kind.__name__: kind for kind in _NAMES}
_TYPES = _PLAIN | {f"{name}s": tuple[kind, ...] for name, kind in _PLAIN.items()}


class Setting(NamedTuple):
    """A parameter that can be set by a configuration.

    Attributes:
        name: Name of the parameter.
        type: Type of a value, without None.
        default: Default, or ``inspect.Parameter.empty``.
        traced: Whether it only enters arithmetic, so that a sweep over it compiles once.
        help: Its description in the docstring.
    """

    name: str
    type: Any
    default: Any
    traced: bool
    help: str

    def written(self) -> dict[str, Any]:
        """Returns the setting as JSON, which ``read`` reads."""
        names = {kind: name for name, kind in _TYPES.items()}
        kinds = [
            list(get_args(kind)) if get_origin(kind) is Literal else names[kind]
            for kind in members(self.type)
        ]
        default = {} if self.default is REQUIRED else {"default": self.default}
        return {"type": kinds, **default, "traced": self.traced, "help": self.help}

    @classmethod
    def read(cls, name: str, written: Mapping[str, Any]) -> Setting:
        """Reads a setting from JSON.

        Examples:
            >>> setting = Setting("bits", int | Literal["auto"], 4, False, "Bits per number.")
            >>> Setting.read("bits", setting.written()) == setting
            True
        """
        kinds = [
            _TYPES[kind] if isinstance(kind, str) else Literal[*kind] for kind in written["type"]
        ]
        default = written.get("default", REQUIRED)
        default = tuple(default) if isinstance(default, list) else default
        kind = Union[tuple(kinds)]  # noqa: UP007 (a union of computed members)
        return cls(name, kind, default, written["traced"], written["help"])


class Description(NamedTuple):
    """Signature and docstring of a class or function.

    Attributes:
        summary: First sentence of the docstring.
        source: Link to the first reference, as Markdown, or "".
        settings: Settings by name.
        wraps_solver: Whether it requires another solver, as its parameter ``solver``.
    """

    summary: str
    source: str
    settings: Mapping[str, Setting]
    wraps_solver: bool = False

    def written(self) -> dict[str, Any]:
        """Returns the description as JSON, which ``read`` reads."""
        settings = {name: setting.written() for name, setting in self.settings.items()}
        return self._asdict() | {"settings": settings}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Description:
        """Reads a description from JSON."""
        settings = {name: Setting.read(name, item) for name, item in written["settings"].items()}
        return cls(**{**written, "settings": MappingProxyType(settings)})


def default_hint(default: str = "") -> Any:
    """Makes the annotation that shows a default in the help of a field that is None or empty."""

    def hint(shown: str) -> str:
        shown = default if shown in ("None", "") else shown
        return f"(default: {shown})" if shown else ""

    return tyro.conf.arg(help_behavior_hint=hint)


def members(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union without None, or the type itself."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(each for each in kinds if each is not type(None))


def is_sequence(kind: Any) -> bool:
    """Returns True if a value consists of several strings."""
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


def check_value(kind: Any, value: Any) -> Any:
    """Returns a value that a TOML or JSON file has for a setting, with a tuple for a list.

    Examples:
        >>> check_value(tuple[int, ...] | None, [0, 1])
        (0, 1)
        >>> check_value(tuple[int, ...] | None, [0, "1"])
        Traceback (most recent call last):
        ValueError: expected integers.
    """
    value = tuple(value) if isinstance(value, list) else value
    try:
        every_item = CollectionCheckStrategy.ALL_ITEMS
        return check_type(value, kind, collection_check_strategy=every_item)
    except TypeCheckError:
        raise ValueError(f"expected {describe_type(kind)}.") from None


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
