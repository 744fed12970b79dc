"""Formatting of settings as Python expressions."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

__all__ = ["format_value"]

_MAX_LINE = 88
_MAX_ELEMENTS = 6


def format_value(value: Any) -> str:
    """Formats a value for the ``repr`` of settings.

    Dataclasses, also of Flax, omit fields that have their defaults, and take a line per field
    if one line is too short. Large arrays are formatted as type and shape.

    Examples:
        >>> from fedjax_fair import solvers
        >>> print(format_value(solvers.SGD(0.1, batch_size=10, epochs=1)))
        SGD(learning_rate=0.1, batch_size=10, epochs=1)
        >>> format_value({"kernel": jnp.zeros((3, 4))})
        "{'kernel': float32[3, 4]}"
    """
    if isinstance(value, (Tracer, jax.ShapeDtypeStruct)):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (jax.Array, np.ndarray)):
        if value.size > _MAX_ELEMENTS or jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"{value.dtype}{list(value.shape)}"
        return repr(value.tolist())
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {format_value(one)}' for key, one in value.items())}}}"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
        return _call(_name(value), [f"{name}={format_value(one)}" for name, one in fields.items()])
    if isinstance(value, tuple):
        inner = ", ".join(map(format_value, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, functools.partial):
        named = (f"{name}={format_value(one)}" for name, one in value.keywords.items())
        return _call("partial", [*map(format_value, (value.func, *value.args)), *named])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _call(_name(value), _fields(value))
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    return repr(value)


def _call(name: str, arguments: list[str]) -> str:
    """Formats a call on one line, or with an argument per line."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _MAX_LINE and "\n" not in line:
        return line
    indented = (f"    {one},".replace("\n", "\n    ") for one in arguments)
    return "\n".join((f"{name}(", *indented, ")"))


def _name(value: Any) -> str:
    return type(value).__qualname__.rpartition(".")[2].lstrip("_")


def _fields(value: Any) -> list[str]:
    """Formats fields that do not have their defaults, positional ones first."""
    fields = sorted(dataclasses.fields(value), key=lambda field: bool(field.kw_only))
    return [
        f"{field.name}={format_value(getattr(value, field.name))}"
        for field in fields
        if field.repr and not _is_default(field, getattr(value, field.name))
    ]


def _is_default(field: dataclasses.Field, value: Any) -> bool:
    default = field.default
    if value is default:
        return True
    if default is dataclasses.MISSING or type(value) is not type(default):
        return False
    return bool(np.all(value == default))
