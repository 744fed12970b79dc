"""Constructors of roles and functions, some of them names that are imported on use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal, get_origin

from fedjax_fair.app.settings.setting import REQUIRED, Description, Setting, stored
from fedjax_fair.app.settings.values import describe_type, members

__all__ = [
    "LazyModule",
    "Reference",
    "Renamed",
    "Wrapping",
    "class_names",
    "class_of",
    "construct",
    "describe",
    "innermost",
    "settings_of",
]


@dataclass(frozen=True)
class Reference:
    """A class or function of the package by name, such as ``selectors.DivFL``, imported on use."""

    name: str

    def resolve(self) -> Any:
        """Imports it."""
        return resolve_name(f"fedjax_fair.{self.name}")

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Calls it."""
        return self.resolve()(*arguments, **settings)


class LazyModule:
    """Stands for a module of the package; its attributes are references.

    Examples:
        >>> LazyModule("selectors").DivFL
        Reference(name='selectors.DivFL')
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Reference:
        return Reference(f"{self._name}.{name}")


@dataclass(frozen=True)
class Wrapping:
    """Constructor of a role that wraps another one, with the settings of both.

    Attributes:
        outer: Class of the wrapper.
        inner: Class of the wrapped role.
        parameter: Parameter of the wrapper for the wrapped role.
    """

    outer: Callable[..., Any]
    inner: Callable[..., Any]
    parameter: str

    def __call__(self, **settings: Any) -> Any:
        """Makes the role."""
        names = settings.keys() & settings_of(self.outer).keys()
        own = {name: settings.pop(name) for name in sorted(names)}
        return self.outer(**own, **{self.parameter: self.inner(**settings)})


@dataclass(frozen=True, eq=False)
class Renamed:
    """Constructor whose parameters have other names as settings.

    Attributes:
        constructor: Class or function.
        names: Settings by parameter; parameters that it lacks are ignored.
    """

    constructor: Callable[..., Any]
    names: Mapping[str, str]

    def __call__(self, **settings: Any) -> Any:
        """Calls the constructor; its errors name the settings."""
        parameters = {setting: parameter for parameter, setting in self.names.items()}
        given = {parameters.get(name, name): value for name, value in settings.items()}
        try:
            return self.constructor(**given)
        except ValueError as error:
            message = str(error)
            for parameter, setting in self.names.items():
                message = re.sub(rf"\b{parameter}=", f"{setting}=", message)
            raise ValueError(message) from error


def class_of(role: Callable[..., Any]) -> Any:
    """Returns the class or function within a `Reference`, `Wrapping`, `Renamed` or ``partial``."""
    named = innermost(role)
    return named.resolve() if isinstance(named, Reference) else named


def class_names(role: Callable[..., Any]) -> list[str]:
    """Returns the names of the class of a role and of the class that it wraps, as in Python.

    Examples:
        >>> class_names(Wrapping(Reference("solvers.Ditto"), Reference("solvers.SGD"), "solver"))
        ['fedjax_fair.solvers.Ditto', 'fedjax_fair.solvers.SGD']
    """
    if isinstance(role, Wrapping):
        return [*class_names(role.outer), *class_names(role.inner)]
    named = innermost(role)
    if isinstance(named, Reference):
        return [f"fedjax_fair.{named.name}"]
    return [f"{named.__module__}.{named.__qualname__}"]


def innermost(role: Callable[..., Any]) -> Any:
    """Returns the class, the function or the reference within a role."""
    while isinstance(role, (partial, Wrapping, Renamed)):
        inner = {partial: "func", Wrapping: "outer", Renamed: "constructor"}
        role = getattr(role, inner[type(role)])
    return role


@cache
def describe(constructor: Callable[..., Any]) -> Description:
    """Describes a class, a function, or a `Reference`, `Wrapping`, `Renamed` or ``partial`` of one.

    A reference is described by the stored descriptions, if they contain it.

    Examples:
        >>> from fedjax_fair import selectors
        >>> describe(Reference("selectors.SubTrunc")) == describe(selectors.SubTrunc)
        True
    """
    if isinstance(constructor, Reference):
        written = stored()["descriptions"].get(constructor.name)
        return describe(constructor.resolve()) if written is None else Description.read(written)
    if isinstance(constructor, Wrapping):
        found = describe(constructor.outer)
        inner, outer = settings_of(constructor.inner), found.settings
        if twice := inner.keys() & outer.keys():
            raise TypeError(f"{constructor}: expected {', '.join(sorted(twice))} in one of them.")
        return found._replace(settings=MappingProxyType({**inner, **outer}))
    if isinstance(constructor, Renamed):
        names, found = constructor.names, describe(constructor.constructor)
        renamed = {names.get(name, name): setting for name, setting in found.settings.items()}
        settings = {name: setting._replace(name=name) for name, setting in renamed.items()}
        return found._replace(settings=MappingProxyType(settings))
    if isinstance(constructor, partial) and isinstance(constructor.func, Reference):
        found = describe(constructor.func)
        # Parameters that come first are settings in all classes with a partial of this kind.
        left = list(found.settings.items())[len(constructor.args) :]
        given = constructor.keywords
        settings = {
            name: setting._replace(default=given.get(name, setting.default))
            for name, setting in left
        }
        return found._replace(settings=MappingProxyType(settings))
    # Imported only here, because it imports parsers of docstrings and types of arrays.
    from fedjax_fair.app.settings import signatures

    return signatures.describe(constructor)


def settings_of(constructor: Callable[..., Any]) -> Mapping[str, Setting]:
    """Returns the settings of a constructor by name; as `describe`."""
    return describe(constructor).settings


def construct(
    constructor: Callable[..., Any],
    part: Any,
    **defaults: Any,
) -> Any:
    """Calls a constructor with the values of its settings.

    Args:
        constructor: As for ``settings_of``.
        part: Section with the values; None is the default.
        **defaults: Defaults of parameters that it may have.

    Raises:
        ValueError: If a setting is missing, or a number needs more than 32 bits.
    """
    from fedjax_fair.roles.role_errors import explain_errors
    from fedjax_fair.utils import checks
    from fedjax_fair.utils.printing import format_value

    values = {}
    for name, setting in settings_of(constructor).items():
        value = getattr(part, name, None)
        if value is None:
            value = defaults.get(name)
        if value is not None:
            for number in value if isinstance(value, tuple) else (value,):
                checks.representable(name, number)
            values[name] = value
        elif setting.default is REQUIRED:
            values_of = describe_type(setting.type) if _is_literal(setting.type) else "a value"
            raise ValueError(f"{name}=None: expected {values_of}.")
    with explain_errors(f"{format_value(class_of(constructor))}(...)"):
        return constructor(**values)


def _is_literal(kind: Any) -> bool:
    return all(get_origin(member) is Literal for member in members(kind))
