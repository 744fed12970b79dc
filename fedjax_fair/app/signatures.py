"""Settings read from signatures: name, type, default and help.

Parameters that are scalars, strings or tuples of them become options of the command line, fields
of a configuration and axes of a sweep.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import docstring_parser
import tyro
from jaxtyping import AbstractArray
from typing_extensions import Doc

from fedjax_fair.app.values import describe_type, members
from fedjax_fair.roles.role_errors import explain_errors
from fedjax_fair.utils import checks
from fedjax_fair.utils.printing import format_value

__all__ = [
    "REQUIRED",
    "Setting",
    "Wrapping",
    "class_of",
    "construct",
    "default_hint",
    "section",
    "settings_of",
]

_SCALARS = (int, float, bool, str)
_MAX_READERS = 6
REQUIRED = inspect.Parameter.empty
"""Default of a parameter without one."""
_NO_NAMES: Mapping[str, Any] = types.MappingProxyType({})


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


def class_of(role: Callable[..., Any]) -> Any:
    """Returns the class or function within a ``functools.partial`` or a `Wrapping`."""
    while isinstance(role, (partial, Wrapping)):
        role = role.outer if isinstance(role, Wrapping) else role.func
    return role


@cache
def settings_of(constructor: Callable[..., Any]) -> Mapping[str, Setting]:
    """Reads the settings of a class, function, ``functools.partial`` or `Wrapping` by name.

    Examples:
        >>> from fedjax_fair import selectors
        >>> lam = settings_of(selectors.SubTrunc)["lam"]
        >>> lam.type, lam.default, lam.traced
        (<class 'float'>, 0.5, True)
    """
    if isinstance(constructor, Wrapping):
        inner, outer = settings_of(constructor.inner), settings_of(constructor.outer)
        if twice := inner.keys() & outer.keys():
            raise TypeError(f"{constructor}: expected {', '.join(sorted(twice))} in one of them.")
        return types.MappingProxyType({**inner, **outer})
    function = constructor.func if isinstance(constructor, partial) else constructor
    hints = get_type_hints(function)
    params = docstring_parser.parse(function.__doc__ or "").params
    helps = {item.arg_name: _without_markup(item.description or "") for item in params}
    settings = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        kinds = members(hints[name])
        plain = [kind for each in kinds if (kind := _plain(each)) is not None]
        if plain:
            scalars = [kind for kind in plain if get_origin(kind) is not tuple]
            kind = Union[tuple(scalars or plain)]  # noqa: UP007 (a union of computed members)
            traced = any(isinstance(k, type) and issubclass(k, AbstractArray) for k in kinds)
            settings[name] = Setting(name, kind, parameter.default, traced, helps.get(name, ""))
    return types.MappingProxyType(settings)


def construct(
    constructor: Callable[..., Any],
    part: Any,
    names: Mapping[str, str] = _NO_NAMES,
    **defaults: Any,
) -> Any:
    """Calls a constructor with the values of its settings.

    Args:
        constructor: As for ``settings_of``.
        part: Section with the values; None is the default.
        names: Fields by parameter, where they differ.
        **defaults: Defaults of parameters that it may have.

    Raises:
        ValueError: If a setting is missing, or a number needs more than 32 bits.
    """
    values = {}
    for name, setting in settings_of(constructor).items():
        field_name = names.get(name, name)
        value = getattr(part, field_name, None)
        if value is None:
            value = defaults.get(name)
        if value is not None:
            for number in value if isinstance(value, tuple) else (value,):
                checks.representable(field_name, number)
            values[name] = value
        elif setting.default is REQUIRED:
            values_of = describe_type(setting.type) if _is_literal(setting.type) else "a value"
            raise ValueError(f"{field_name}=None: expected {values_of}.")
    with explain_errors(f"{format_value(constructor)}(...)"):
        return constructor(**values)


def section(
    constructors: Mapping[str, Callable[..., Any]],
    fixed: type = object,
    names: Mapping[str, Mapping[str, str]] = _NO_NAMES,
    *,
    hidden: Sequence[str] = (),
) -> Any:
    """Makes the base class of a section of a configuration, whose fields are None by default.

    Args:
        constructors: Constructors by the name that selects them.
        fixed: A frozen dataclass of other fields.
        names: Fields by parameter, where they differ, by the same name.
        hidden: Parameters that do not become fields.
    """
    users: dict[str, dict[str, Setting]] = {}
    for selected, constructor in constructors.items():
        for name, setting in settings_of(constructor).items():
            if name not in hidden:
                key = names.get(selected, _NO_NAMES).get(name, name)
                users.setdefault(key, {})[selected] = setting
    generated = []
    for key, settings in users.items():
        kind, *others = {str(setting.type): setting.type for setting in settings.values()}.values()
        if others:
            raise TypeError(f"{key}: {kind}, {others}; expected one type for all constructors.")
        annotation = Annotated[kind | None, Doc(_help(settings)), default_hint(_defaults(settings))]
        generated.append((key, annotation, field(default=None)))
    return make_dataclass("Section", generated, bases=(fixed,), frozen=True)


def _plain(kind: Any) -> Any:
    """Returns the type of values that can be written as strings, or None."""
    if kind in _SCALARS or get_origin(kind) is Literal:
        return kind
    if get_origin(kind) is Sequence and get_args(kind)[0] in _SCALARS:
        return tuple[get_args(kind)[0], ...]
    return None


def _is_literal(kind: Any) -> bool:
    return all(get_origin(member) is Literal for member in members(kind))


def _without_markup(text: str) -> str:
    r"""Returns a description for a terminal, with the words of its formulas.

    Examples:
        >>> _without_markup(r"At most :math:`\lambda_{\max}`, or *all*; see `Mean`.")
        'At most lambda_max, or all; see Mean.'
    """
    formulas = re.compile(r":math:`([^`]*)`")
    text = formulas.sub(lambda formula: re.sub(r"[\\{}]", "", formula[1]), " ".join(text.split()))
    return re.sub(r":\w+:(?=`)|`|\*(?=\w)|(?<=\w)\*", "", text)


def _help(users: Mapping[str, Setting]) -> str:
    """Returns the description of a field and the names that use it."""
    text = next((s.help for s in users.values() if not s.help.startswith("As for")), "")
    readers = ", ".join(users) if len(users) <= _MAX_READERS else "most methods"
    return f"{text.rstrip('.')} ({readers})."


def _defaults(users: Mapping[str, Setting]) -> str:
    """Returns the default of a field, or its defaults with the names that use each but the most."""
    names: dict[str, list[str]] = {}
    for name, setting in users.items():
        if setting.default not in (None, REQUIRED):
            value = setting.default
            text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            names.setdefault(text, []).append(name)
    first, *others = sorted(names, key=lambda text: -len(names[text])) or [""]
    return "; ".join([first, *(f"{text} for {', '.join(names[text])}" for text in others)])


def default_hint(default: str = "") -> Any:
    """Makes the annotation that shows a default in the help of a field that is None or empty."""

    def hint(shown: str) -> str:
        shown = default if shown in ("None", "") else shown
        return f"(default: {shown})" if shown else ""

    return tyro.conf.arg(help_behavior_hint=hint)
