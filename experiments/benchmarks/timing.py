"""Timings in alternation, tables, processes and random data of benchmarks."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

import fedjax_fair as ff
from fedjax_fair.data import FederatedData, from_arrays
from fedjax_fair.roles import Aggregator, Model, Selector

__all__ = [
    "CompileTimes",
    "RepeatedRounds",
    "Times",
    "alternate",
    "environment",
    "federated_round",
    "in_new_process",
    "print_header",
    "print_row",
    "random_data",
    "run_parts",
    "run_python",
    "start",
    "without_settings",
]


class Times(NamedTuple):
    """Seconds of every repetition."""

    seconds: np.ndarray

    @property
    def median(self) -> float:
        """The median."""
        return float(np.median(self.seconds))

    def ratio_to(self, other: Times) -> float:
        """Returns the median over repetitions of the ratio to the neighboring time of another."""
        return float(np.median(self.seconds / other.seconds))


def alternate(*functions: Callable[[], Any], repeats: int) -> list[Times]:
    """Times functions in turn, so that a noisy machine slows all of them equally.

    The first call of each, which compiles, does not count.
    """
    for function in functions:
        jax.block_until_ready(function())
    seconds = np.empty((len(functions), repeats))
    for repeat in range(repeats):
        for i, function in enumerate(functions):
            started = time.perf_counter()
            jax.block_until_ready(function())
            seconds[i, repeat] = time.perf_counter() - started
    return [Times(row) for row in seconds]


def start(
    description: str | None, choices: Mapping[str, Iterable[str]] = {}, **defaults: Any
) -> argparse.Namespace:
    """Parses the command line, and prints the device and the versions.

    Options have the names and the types of their defaults: a flag for False, several values for a
    sequence, text for None. ``choices`` has the values of some of them.
    """
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        option, known = f"--{name.replace('_', '-')}", choices.get(name)
        if default is False:
            parser.add_argument(option, action="store_true")
            continue
        is_several = isinstance(default, list | tuple)
        first = next(iter(default), None) if is_several else default
        kind, number = str if first is None else type(first), "*" if is_several else None
        parser.add_argument(option, type=kind, nargs=number, default=default, choices=known)
    options = parser.parse_args()
    getattr(sys.stdout, "reconfigure", dict)(line_buffering=True)
    print(environment(), end="\n\n")
    return options


def run_parts(
    description: str | None,
    parts: Mapping[str, Callable[[argparse.Namespace], None]],
    usual: Iterable[str] | None = None,
    **defaults: Any,
) -> None:
    """Runs the parts that ``--only`` names, by default ``usual`` or all, with the parsed options.

    ``defaults`` are further options, as of `start`.
    """
    options = start(description, {"only": parts}, only=list(usual or parts), **defaults)
    for name in options.only:
        parts[name](options)


def print_header(names: str) -> None:
    """Prints the header of a Markdown table with these columns, separated by "|"."""
    print(f"| {names} |\n" + "|---" * (names.count("|") + 1) + "|")


def print_row(*cells: Any) -> None:
    """Prints a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |")


def federated_round(
    model: Model,
    selector: Selector | int,
    batch_size: int,
    *,
    rate: Any = 0.01,
    aggregator: Aggregator | None = None,
    clients_per_batch: int | None = None,
    **work: Any,
) -> ff.Round:
    """Returns a round of plain SGD, of random clients if ``selector`` is their number.

    ``work`` is ``steps`` or ``epochs``.
    """
    return ff.Round(
        model,
        ff.selectors.Uniform(selector) if isinstance(selector, int) else selector,
        ff.solvers.SGD(rate, batch_size, **work),
        aggregator or ff.aggregators.Mean(),
        clients_per_batch=clients_per_batch,
    )


class RepeatedRounds:
    """A compiled function of some rounds, called repeatedly on its donated state, as in ``fit``."""

    def __init__(self, round: ff.Round, data: FederatedData, num_rounds: int) -> None:
        self.round, self.data = round, data  # Arguments, as in `fit`.
        self.state = jax.jit(round.init)(jax.random.key(0), data)
        run = jax.jit(partial(ff.run, num_rounds=num_rounds), donate_argnums=1)
        self.program = run.lower(round, self.state, data).compile()

    def __call__(self) -> Any:
        """Runs the rounds, and returns the model."""
        self.state, _ = self.program(self.round, self.state, self.data)
        return self.state.variables


def environment() -> str:
    """Returns the device and the versions."""
    device = jax.devices()[0]
    return (
        f"{device.device_kind} ({jax.device_count()}), {os.cpu_count()} CPU cores, "
        f"{platform.machine()}, Python {platform.python_version()}, JAX {jax.__version__}"
    )


def without_settings(**settings: str) -> dict[str, str]:
    """Returns an environment with the defaults of JAX and no compilation cache, and settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return kept | settings


def run_python(*arguments: Any, **settings: str) -> list[str]:
    """Runs a Python process ``without_settings``, and returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=without_settings(**settings),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a new Python process ``without_settings``, and returns its result."""
    spawn = multiprocessing.get_context("spawn")
    with (
        mock.patch.dict(os.environ, without_settings(), clear=True),
        ProcessPoolExecutor(1, mp_context=spawn) as process,
    ):
        return process.submit(function, *arguments).result()


class CompileTimes(list[float]):
    """The seconds of each compilation of this process from now on."""

    def __init__(self) -> None:
        def listen(event: str, duration_secs: float, **_: Any) -> None:
            if event == "/jax/core/compile/backend_compile_duration":
                self.append(duration_secs)

        jax.monitoring.register_event_duration_secs_listener(listen)


def random_data(
    shape: Iterable[int], clients: int, size: int, classes: int = 10, test_size: int | None = None
) -> FederatedData:
    """Returns random images, equally many for each client; the time does not depend on them.

    The first ``test_size`` of them, by default all, are test examples too.
    """
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (clients * size, *shape), dtype=np.uint8)
    labels = rng.integers(0, classes, len(images)).astype(np.int32)
    return from_arrays(
        images,
        labels,
        np.split(rng.permutation(len(images)), clients),
        test_features=images[:test_size],
        test_labels=labels[:test_size],
        test_client_indices=np.array_split(np.arange(test_size or len(images)), clients),
    )
