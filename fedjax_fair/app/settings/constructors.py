"""Constructors of roles and functions, and the settings in their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedjax_fair.app.overview import STORED
from fedjax_fair.app.settings.setting import (
    REQUIRED,
    Description,
    Setting,
    describe_type,
    members,
)

__all__ = [
    "LazyModule",
    "Reference",
    "Renamed",
    "Wrapping",
    "class_names",
    "class_of",
    "classes_in",
    "construct",
    "describe",
    "describe_signature",
    "settings_of",
]

_SCALARS = (int, float, bool, str)


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
        outer = {name: settings.pop(name) for name in sorted(names)}
        return self.outer(**outer, **{self.parameter: self.inner(**settings)})


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
    named = classes_in(role)[0]
    return named.resolve() if isinstance(named, Reference) else named


def class_names(role: Callable[..., Any]) -> list[str]:
    """Returns the names of the class of a role and of the class that it wraps, as in Python.

    Examples:
        >>> class_names(Wrapping(Reference("solvers.Ditto"), Reference("solvers.SGD"), "solver"))
        ['fedjax_fair.solvers.Ditto', 'fedjax_fair.solvers.SGD']
    """
    return [
        f"fedjax_fair.{named.name}"
        if isinstance(named, Reference)
        else f"{named.__module__}.{named.__qualname__}"
        for named in classes_in(role)
    ]


def classes_in(role: Callable[..., Any]) -> list[Any]:
    """Returns the classes, functions or references within a role, the outermost first."""
    match role:
        case Wrapping(outer, inner):
            return [*classes_in(outer), *classes_in(inner)]
        case Renamed(inner) | partial(func=inner):
            return classes_in(inner)
    return [role]


@cache
def describe(constructor: Callable[..., Any]) -> Description:
    """Describes a class, a function, or a `Reference`, `Wrapping`, `Renamed` or ``partial`` of one.

    A reference is described by the stored descriptions, if they contain it.

    Examples:
        >>> from fedjax_fair import selectors
        >>> describe(Reference("selectors.SubTrunc")) == describe(selectors.SubTrunc)
        True
    """
    match constructor:
        case Reference(name):
            written = STORED["descriptions"].get(name)
            return describe(constructor.resolve()) if written is None else Description.read(written)
        case Wrapping(outer, inner):
            found, settings = describe(outer), dict(settings_of(inner))
            if twice := settings.keys() & found.settings.keys():
                names = ", ".join(sorted(twice))
                raise TypeError(f"{constructor}: expected {names} in one of them.")
            settings |= found.settings
        case Renamed(inner, names):
            found = describe(inner)
            renamed = {names.get(name, name): setting for name, setting in found.settings.items()}
            settings = {name: setting._replace(name=name) for name, setting in renamed.items()}
        case partial(func=Reference() as reference, args=args, keywords=given):
            found = describe(reference)
            # Parameters that come first are settings in all classes with a partial of this kind.
            settings = {
                name: setting._replace(default=given.get(name, setting.default))
                for name, setting in list(found.settings.items())[len(args) :]
            }
        case _:
            return describe_signature(constructor)
    return found._replace(settings=MappingProxyType(settings))


def settings_of(constructor: Callable[..., Any]) -> Mapping[str, Setting]:
    """Returns the settings of a constructor by name; as `describe`."""
    return describe(constructor).settings


def describe_signature(constructor: Callable[..., Any]) -> Description:
    """Describes a class, a function, or a ``functools.partial`` of one, by importing it.

    Examples:
        >>> from fedjax_fair import selectors
        >>> lam = describe_signature(selectors.SubTrunc).settings["lam"]
        >>> lam.type, lam.default, lam.traced
        (<class 'float'>, 0.5, True)
    """
    import docstring_parser
    from jaxtyping import AbstractArray

    function = constructor.func if isinstance(constructor, partial) else constructor
    docstring = inspect.getdoc(function) or getattr(function, "__name__", "")
    summary = next(iter(docstring.splitlines()), "").partition(". ")[0].rstrip(".")
    hints = get_type_hints(function)
    params = docstring_parser.parse(function.__doc__ or "").params
    helps = {item.arg_name: _without_markup(item.description or "") for item in params}
    settings = {}
    parameters = inspect.signature(constructor).parameters
    for name, parameter in parameters.items():
        kinds = members(hints[name])
        plain = [kind for each in kinds if (kind := _plain(each)) is not None]
        if plain:
            scalars = [kind for kind in plain if get_origin(kind) is not tuple]
            kind = Union[tuple(scalars or plain)]  # noqa: UP007 (a union of computed members)
            traced = any(isinstance(k, type) and issubclass(k, AbstractArray) for k in kinds)
            settings[name] = Setting(name, kind, parameter.default, traced, helps.get(name, ""))
    solver = parameters.get("solver")
    wraps_solver = solver is not None and solver.default is REQUIRED
    return Description(summary, _source(docstring), MappingProxyType(settings), wraps_solver)


def _plain(kind: Any) -> Any:
    """Returns the type of values that can be written as strings, or None."""
    if kind in _SCALARS or get_origin(kind) is Literal:
        return kind
    if get_origin(kind) is Sequence and get_args(kind)[0] in _SCALARS:
        return tuple[get_args(kind)[0], ...]
    return None


def _without_markup(text: str) -> str:
    r"""Returns a description for a terminal, with the words of its formulas.

    Examples:
        >>> _without_markup(r"At most :math:`\lambda_{\max}`, or *all*; see `Mean`.")
        'At most lambda_max, or all; see Mean.'
    """
    formulas = re.compile(r":math:`([^`]*)`")
    text = formulas.sub(lambda formula: re.sub(r"[\\{}]", "", formula[1]), " ".join(text.split()))
    return re.sub(r":\w+:(?=`)|`|\*(?=\w)|(?<=\w)\*", "", text)


def _source(docstring: str) -> str:
    """Returns a link to the first reference in a docstring, as Markdown."""
    reference = " ".join(docstring.partition("References:\n")[2].split())
    match = re.match(r"([\w-]+)(,? .*?)?, \*.*?\*.*?(\d{4}).*?(https://[^\s;]+)", reference)
    if match is None:
        return ""
    first, others, year, link = match.groups()
    return f"[{first}{' et al.' if others else ''}, {year}]({link})"


def construct(
    constructor: Callable[..., Any], section: Any, *arguments: Any, **defaults: Any
) -> Any:
    """Calls a constructor with the values of its settings.

    Args:
        constructor: As for ``settings_of``.
        section: Values by attribute; None is the default.
        *arguments: First arguments, which are no settings.
        **defaults: Defaults of parameters that it may have.

    Raises:
        ValueError: If a setting is missing, or a number needs more than 32 bits.
    """
    from fedjax_fair.roles.role_errors import explain_errors
    from fedjax_fair.utils import checks
    from fedjax_fair.utils.printing import format_value

    values = {}
    for name, setting in settings_of(constructor).items():
        value = getattr(section, name, None)
        if value is None:
            value = defaults.get(name)
        if value is not None:
            for number in value if isinstance(value, tuple) else (value,):
                checks.representable(name, number)
            values[name] = value
        elif setting.default is REQUIRED:
            is_choice = all(get_origin(member) is Literal for member in members(setting.type))
            expected = describe_type(setting.type) if is_choice else "a value"
            raise ValueError(f"{name}=None: expected {expected}.")
    with explain_errors(f"{format_value(class_of(constructor))}(...)"):
        return constructor(*arguments, **values)
