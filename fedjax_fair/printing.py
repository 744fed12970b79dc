"""Prints settings as one would write them: methods, set functions and networks."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

__all__ = ["printed"]

_MAX_LINE = 88
_MAX_SHOWN = 6


def printed(value: Any) -> str:
    """Returns what stands for a value where settings are printed.

    Dataclasses, those of Flax among them, print the fields that are not their defaults, each on a
    line where one line is too short for all. Large arrays print as type and shape.

    Args:
        value: Any value.

    Examples:
        >>> from fedjax_fair import solvers
        >>> print(printed(solvers.SGD(0.1, batch_size=10, epochs=1)))
        SGD(learning_rate=0.1, batch_size=10, epochs=1)
        >>> printed({"kernel": jnp.zeros((3, 4))})
        "{'kernel': float32[3, 4]}"
    """
    if isinstance(value, (Tracer, jax.ShapeDtypeStruct)):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (jax.Array, np.ndarray)):
        if value.size > _MAX_SHOWN or jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"{value.dtype}{list(value.shape)}"
        return repr(value.tolist())
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {printed(one)}' for key, one in value.items())}}}"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
        return _called(_name(value), [f"{name}={printed(one)}" for name, one in fields.items()])
    if isinstance(value, tuple):
        inner = ", ".join(map(printed, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, functools.partial):
        named = (f"{name}={printed(one)}" for name, one in value.keywords.items())
        return _called("partial", [*map(printed, (value.func, *value.args)), *named])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _called(_name(value), _fields(value))
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    return repr(value)


def _called(name: str, arguments: list[str]) -> str:
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _MAX_LINE and "\n" not in line:
        return line
    indented = (f"    {one},".replace("\n", "\n    ") for one in arguments)
    return "\n".join((f"{name}(", *indented, ")"))


def _name(value: Any) -> str:
    return type(value).__qualname__.rpartition(".")[2].lstrip("_")


def _fields(value: Any) -> list[str]:
    """Fields that are not their defaults; those that are given by position come first."""
    fields = sorted(dataclasses.fields(value), key=lambda field: bool(field.kw_only))
    return [
        f"{field.name}={printed(getattr(value, field.name))}"
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
