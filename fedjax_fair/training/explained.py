"""Explains errors of tracing that stand for a mistake in a role."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import jax
from jax.core import Tracer

from fedjax_fair.tree import Tree, child_fields

__all__ = ["explained"]

_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@contextmanager
def explained() -> Iterator[None]:
    """Names the field of a role whose value was needed while tracing, as by a Python ``if``.

    Raises:
        ValueError: In place of JAX's error, if a line of a method of a `Tree` uses such a field.
    """
    try:
        yield
    except _NEEDS_VALUE as error:
        place = _place(error.__traceback__)
        if place is None:
            raise
        raise ValueError(
            f"{place}, which is a traced number; use jnp.where, or make it structure by another "
            "annotation, such as float."
        ) from error


def _place(found: TracebackType | None) -> str | None:
    """The innermost line of a method that uses a traced field of its own."""
    for frame, line in reversed(list(traceback.walk_tb(found))):
        own: Any = frame.f_locals.get("self")
        if not isinstance(own, Tree):
            continue
        text = linecache.getline(frame.f_code.co_filename, line).strip()
        for name in re.findall(r"\bself\.(\w+)", text):
            if name in child_fields(own) and _is_traced(getattr(own, name)):
                kind = type(own).__name__
                where = f"{kind}.{frame.f_code.co_name}, line {line}"
                return f"{where}: `{text}` needs the value of {kind}.{name}"
    return None


def _is_traced(value: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
