"""Explanations of tracing errors that a role causes."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import jax
from jax.core import Tracer

from fedjax_fair.tree import Tree, child_fields

__all__ = ["explain_tracing_errors"]

_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@contextmanager
def explain_tracing_errors() -> Iterator[None]:
    """Names the traced field of a role that needs a value, for example in a Python ``if``.

    Raises:
        ValueError: Instead of JAX's error, if a line of a method of a `Tree` uses such a field.
    """
    try:
        yield
    except _NEEDS_VALUE as error:
        location = _location(error.__traceback__)
        if location is None:
            raise
        raise ValueError(
            f"{location}, which is a traced scalar; use jnp.where, or annotate the field with "
            "another type, such as float, to make it structure."
        ) from error


def _location(trace: TracebackType | None) -> str | None:
    """Describes the innermost line of a role's method that uses a traced field of the role."""
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        role = frame.f_locals.get("self")
        if not isinstance(role, Tree):
            continue
        text = linecache.getline(frame.f_code.co_filename, line).strip()
        for name in re.findall(r"\bself\.(\w+)", text):
            if name in child_fields(role) and any(
                isinstance(leaf, Tracer) for leaf in jax.tree.leaves(getattr(role, name))
            ):
                kind = type(role).__name__
                where = f"{kind}.{frame.f_code.co_name}, line {line}"
                return f"{where}: `{text}` needs the value of {kind}.{name}"
    return None
