"""Settings read from signatures: name, type, default and help.

Parameters that are scalars, strings or tuples of them become options of the command line, fields
of a configuration and axes of a sweep. Functions and optimizers do not.
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

from fedjax_fair.app.values import members

__all__ = ["Setting", "construct", "section", "settings_of"]

_SCALARS = (int, float, bool, str)
_MAX_READERS = 6
_REQUIRED = inspect.Parameter.empty


class Setting(NamedTuple):
    """A parameter that can be set by a configuration.

    Attributes:
        name: Name of the parameter.
        type: Type of a value, without None.
        default: Default value; ``inspect.Parameter.empty`` if there is none.
        traced: Whether it only enters arithmetic, so that a sweep over it compiles once.
        help: Its description in the docstring.
    """

    name: str
    type: Any
    default: Any
    traced: bool
    help: str


@cache
def settings_of(constructor: Callable[..., Any]) -> Mapping[str, Setting]:
    """Reads the settings of a class or function by name.

    It has annotations and a Google docstring, and may be a ``functools.partial`` with other
    defaults.

    Examples:
        >>> from fedjax_fair import selectors
        >>> lam = settings_of(selectors.SubTrunc)["lam"]
        >>> lam.type, lam.default, lam.traced
        (<class 'float'>, 0.5, True)
    """
    function = constructor.func if isinstance(constructor, partial) else constructor
    hints = get_type_hints(function)
    params = docstring_parser.parse(function.__doc__ or "").params
    helps = {item.arg_name: _without_markup(item.description or "") for item in params}
    settings = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        kinds = members(hints[name])
        plain = [kind for each in kinds if (kind := _plain(each)) is not None]
        scalars = [kind for kind in plain if get_origin(kind) is not tuple]
        if plain:
            traced = any(
                isinstance(each, type) and issubclass(each, AbstractArray) for each in kinds
            )
            kind = Union[tuple(scalars or plain)]  # noqa: UP007 (a union of computed members)
            settings[name] = Setting(name, kind, parameter.default, traced, helps.get(name, ""))
    return types.MappingProxyType(settings)


def construct(
    constructor: Callable[..., Any],
    part: Any,
    names: Mapping[str, str] = types.MappingProxyType({}),
    **defaults: Any,
) -> Any:
    """Calls a constructor with the values of its settings.

    Args:
        constructor: As for ``settings_of``.
        part: Section with the values; None stands for the default.
        names: Fields by parameter, where they differ.
        **defaults: Defaults of parameters, if it has them.

    Raises:
        ValueError: If a required setting is missing.
    """
    settings = settings_of(constructor)
    values = {name: defaults[name] for name in settings if name in defaults}
    for name in settings:
        value = getattr(part, names.get(name, name), None)
        if value is not None:
            values[name] = value
    for name, setting in settings.items():
        if setting.default is _REQUIRED and name not in values:
            raise ValueError(f"{names.get(name, name)}=None: expected a value.")
    return constructor(**values)


def section(
    constructors: Mapping[str, Iterable[Callable[..., Any]]],
    fixed: type = object,
    names: Mapping[str, Mapping[str, str]] = types.MappingProxyType({}),
    *,
    hidden: Sequence[str] = (),
) -> Any:
    """Makes the base class of a section of a configuration, whose fields are None by default.

    Args:
        constructors: Classes and functions by the name that selects them.
        fixed: A frozen dataclass of other fields.
        names: Fields by parameter, where they differ, by the same name.
        hidden: Parameters that do not become fields.

    Raises:
        TypeError: If a field has different types.
    """
    uses: dict[str, list[tuple[str, Setting]]] = {}
    for selected, group in constructors.items():
        for constructor in group:
            for setting in settings_of(constructor).values():
                if setting.name not in hidden:
                    key = names.get(selected, {}).get(setting.name, setting.name)
                    uses.setdefault(key, []).append((selected, setting))
    generated = []
    for key, users in uses.items():
        kinds = {str(setting.type) for _, setting in users}
        if len(kinds) > 1:
            raise TypeError(f"{key}: {', '.join(kinds)}; expected one type for all constructors.")
        kind = Annotated[users[0][1].type | None, Doc(_help(users))]
        generated.append((key, kind, field(default=None)))
    return make_dataclass("Section", generated, bases=(fixed,), frozen=True)


def _plain(kind: Any) -> Any:
    """Returns the type of values that can be written as strings, or None."""
    if kind in _SCALARS or get_origin(kind) is Literal:
        return kind
    if get_origin(kind) is Sequence and get_args(kind)[0] in _SCALARS:
        return tuple[get_args(kind)[0], ...]
    return None


def _without_markup(text: str) -> str:
    text = re.sub(r":\w+:`([^`]*)`", r"\1", " ".join(text.split()))
    return text.replace("``", "").replace("`", "")


def _help(users: Sequence[tuple[str, Setting]]) -> str:
    """Returns the description of a field, the names that use it, and its default."""
    text = next((s.help for _, s in users if not s.help.startswith("As for")), "")
    names = list(dict.fromkeys(name for name, _ in users))
    readers = ", ".join(names) if len(names) <= _MAX_READERS else "most methods"
    default = users[0][1].default
    is_common = len({repr(setting.default) for _, setting in users}) == 1
    shown = f"; {default}" if is_common and default not in (None, _REQUIRED) else ""
    return f"{text.rstrip('.')} ({readers}{shown})."
