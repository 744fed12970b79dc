"""Times two or more functions side by side, so that a noisy machine slows all of them alike."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = ["Times", "alternate", "environment", "without_settings"]


class Times(NamedTuple):
    """Seconds of every repetition."""

    seconds: np.ndarray

    @property
    def median(self) -> float:
        """Median time."""
        return float(np.median(self.seconds))

    def ratio_to(self, other: Times) -> float:
        """Median over repetitions of this time over the other's, taken right beside it."""
        return float(np.median(self.seconds / other.seconds))


def alternate(*functions: Callable[[], Any], repeats: int) -> list[Times]:
    """Calls the functions in turn; the first call of each, which compiles, does not count."""
    for function in functions:
        jax.block_until_ready(function())
    seconds = np.empty((len(functions), repeats))
    for repeat in range(repeats):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            jax.block_until_ready(function())
            seconds[i, repeat] = time.perf_counter() - start
    return [Times(row) for row in seconds]


def environment() -> str:
    """The device and the versions, in a line."""
    device = jax.devices()[0]
    return (
        f"{device.device_kind} ({jax.device_count()}), {os.cpu_count()} CPU cores, "
        f"{platform.machine()}, Python {platform.python_version()}, JAX {jax.__version__}"
    )


def without_settings() -> dict[str, str]:
    """Variables for a process in which JAX has its defaults, and keeps or finds no programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
