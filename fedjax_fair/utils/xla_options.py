"""Options of XLA that this package asks for, as far as the installed version knows them.

An unknown compile option ends compilation; an unknown flag in ``XLA_FLAGS`` ends the interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any

import jax

__all__ = ["BRIEF_CPU_OPTIONS", "brief_jit", "known", "undecided"]

_REMOVED: dict[str, tuple[int, int, int]] = {"xla_cpu_use_fusion_emitters": (0, 11, 1)}
"""The version of JAX that removed an option."""


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that the installed version has.

    Examples:
        >>> known({"xla_backend_optimization_level": 0})
        {'xla_backend_optimization_level': 0}
    """
    return {
        name: value
        for name, value in options.items()
        if name not in _REMOVED or jax.__version_info__ < _REMOVED[name]
    }


BRIEF_CPU_OPTIONS = known(
    {
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    }
)
"""For programs that run briefly on a CPU, which compile in two thirds of the time.

Evaluations have the same bits as without, noise floors are equal within rounding. Optimization
levels 0 and 1 would add numbers in another order.
"""


def undecided(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that ``XLA_FLAGS`` does not set."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if f"--{name}=" not in flags}


def brief_jit(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Returns ``jax.jit(function, **settings)``, with `BRIEF_CPU_OPTIONS` on a CPU.

    It cannot be called in another jitted function.

    Examples:
        >>> brief_jit(lambda x: x + 1)(1).item()
        2
    """

    @cache
    def jitted(backend: str) -> Callable[..., Any]:
        options = undecided(BRIEF_CPU_OPTIONS) if backend == "cpu" else {}
        return jax.jit(function, compiler_options=options or None, **settings)

    return wraps(function)(lambda *arguments: jitted(jax.default_backend())(*arguments))
