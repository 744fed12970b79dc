"""Settings as the fields of roles have them: name, type, default, meaning.

A class such as ``selectors.SubTrunc`` is the only place that names its settings. Those that can be
written down (numbers, strings, tuples of numbers) become options of the command line, fields of a
configuration and axes of a sweep; functions and optimizers do not.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, make_dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import docstring_parser
from jaxtyping import AbstractArray
from typing_extensions import Doc

__all__ = ["Setting", "section", "settings_of"]

_PLAIN = (int, float, bool, str)


class Setting(NamedTuple):
    """A setting of a constructor.

    Attributes:
        name: Its parameter.
        type: Type of a value that can be written down, without None.
        default: What it is where nothing is said; ``inspect.Parameter.empty`` if it is required.
        traced: Whether it only enters arithmetic, so that a sweep over it compiles once.
        help: What the docstring says of it.
    """

    name: str
    type: Any
    default: Any
    traced: bool
    help: str


@cache
def settings_of(constructor: Callable[..., Any]) -> Mapping[str, Setting]:
    """The settings of a constructor that can be written down, by name.

    Args:
        constructor: A class or function with annotations and a Google docstring, or a
            ``functools.partial`` of one, whose keywords are its defaults.

    Returns:
        A ``Setting`` for each parameter whose annotation names a number, a word or a tuple of them.

    Examples:
        >>> from fedjax_fair import selectors
        >>> lam = settings_of(selectors.SubTrunc)["lam"]
        >>> lam.type, lam.default, lam.traced
        (<class 'float'>, 0.5, True)
    """
    function = constructor.func if isinstance(constructor, partial) else constructor
    hints = get_type_hints(function)
    meanings = {
        item.arg_name: item.description or ""
        for item in docstring_parser.parse(function.__doc__ or "").params
    }
    settings = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        members = _members(hints[name])
        plain = [kind for member in members if (kind := _plain(member)) is not None]
        scalars = [kind for kind in plain if get_origin(kind) is not tuple]
        if plain:
            traced = any(isinstance(m, type) and issubclass(m, AbstractArray) for m in members)
            meaning = _plain_text(meanings.get(name, ""))
            kind = Union[tuple(scalars or plain)]  # noqa: UP007 (made of what was found)
            settings[name] = Setting(name, kind, parameter.default, traced, meaning)
    return types.MappingProxyType(settings)


def section(
    constructors: Mapping[str, Iterable[Callable[..., Any]]],
    fixed: type = object,
    names: Mapping[str, str] | None = None,
    *,
    hidden: Sequence[str] = (),
) -> Any:
    """Makes the base of a section of a configuration: the settings of many constructors.

    Args:
        constructors: Constructors by the word that chooses them. A field that several share has to mean
            one kind of value; it is None where nothing is said.
        fixed: A frozen dataclass of fields that belong to no constructor.
        names: Names of fields for parameters that are called otherwise here.
        hidden: Parameters that are not set here.

    Returns:
        A frozen dataclass, which a type checker takes as it comes.
    """
    names = names or {}
    found: dict[str, list[tuple[str, Setting]]] = {}
    for word, made_of in constructors.items():
        for constructor in made_of:
            for setting in settings_of(constructor).values():
                if setting.name not in hidden:
                    key = names.get(setting.name, setting.name)
                    found.setdefault(key, []).append((word, setting))
    generated = []
    for key, uses in found.items():
        kinds = {str(setting.type): setting.type for _, setting in uses}
        if len(kinds) > 1:
            raise TypeError(f"{key}: {', '.join(kinds)}; expected one type for all constructors.")
        kind = Annotated[uses[0][1].type | None, Doc(_help(uses))]
        generated.append((key, kind, field(default=None)))
    return make_dataclass("Section", generated, bases=(fixed,), frozen=True)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _plain(member: Any) -> Any:
    """The type of what can be written down, or None."""
    if member in _PLAIN or get_origin(member) is Literal:
        return member
    if get_origin(member) is Sequence and get_args(member)[0] in _PLAIN:
        return tuple[get_args(member)[0], ...]
    return None


def _plain_text(text: str) -> str:
    """A docstring's first sentences without its markup."""
    text = re.sub(r":\w+:`([^`]*)`", r"\1", " ".join(text.split()))
    return text.replace("``", "").replace("`", "")


def _help(uses: Sequence[tuple[str, Setting]]) -> str:
    """What a setting means, which methods read it, and its defaults where they agree."""
    meaning = next((s.help for _, s in uses if not s.help.startswith("As for")), "")
    words = list(dict.fromkeys(word for word, _ in uses))
    defaults = {repr(setting.default) for _, setting in uses}
    default = uses[0][1].default
    known = len(defaults) == 1 and default not in (None, inspect.Parameter.empty)
    readers = ", ".join(words) if len(words) <= _MANY else "most methods"
    return f"{meaning.rstrip('.')} ({readers}{f'; {default}' if known else ''})."


_MANY = 6
