"""Inputs that a result depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Literal
from jaxtyping import PyTree

__all__ = ["dependence"]


def dependence(function: Callable[..., Any], *inputs: PyTree) -> tuple[PyTree, ...]:
    """Returns for each array of the inputs whether the result of a function depends on it.

    The operations of a loop or a jitted function count as one, that reads all its inputs.

    Examples:
        >>> dependence(lambda x, y: {"sum": 2 * x}, 1.0, {"y": 2.0})
        (True, {'y': False})
    """
    shapes = jax.tree.map(jax.typeof, inputs)
    jaxpr = jax.make_jaxpr(function)(*shapes).jaxpr
    needed = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    for equation in reversed(jaxpr.eqns):
        if any(var in needed for var in equation.outvars):
            needed |= {var for var in equation.invars if not isinstance(var, Literal)}
    return jax.tree.unflatten(jax.tree.structure(inputs), [var in needed for var in jaxpr.invars])
