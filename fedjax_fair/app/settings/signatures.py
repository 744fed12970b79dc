"""Descriptions of classes and functions from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
from jaxtyping import AbstractArray

from fedjax_fair.app.settings.setting import REQUIRED, Description, Setting
from fedjax_fair.app.settings.values import members

__all__ = ["describe"]

_SCALARS = (int, float, bool, str)


def describe(constructor: Callable[..., Any]) -> Description:
    """Describes a class, a function, or a ``functools.partial`` of one.

    Examples:
        >>> from fedjax_fair import selectors
        >>> lam = describe(selectors.SubTrunc).settings["lam"]
        >>> lam.type, lam.default, lam.traced
        (<class 'float'>, 0.5, True)
    """
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
