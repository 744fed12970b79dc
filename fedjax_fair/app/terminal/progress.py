"""Progress of runs: a bar for each method, or a line for each evaluation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from fedjax_fair.metrics.quantities import Quantity
from fedjax_fair.results.task_metrics import is_percent, primary
from fedjax_fair.roles import PERSONALIZED
from fedjax_fair.training.loop import Callback, Evaluation
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["show_steps", "show_training"]

_MAX_SILENCE_S = 30.0
"""Longest time without a line."""


@contextmanager
def show_training(
    console: Console | None = None, *, quiet: bool = False
) -> Iterator[Callable[[str], Callback]]:
    """Shows the progress of runs: bars on a terminal, otherwise lines; nothing if ``quiet``.

    The context is a function from the name of a method to its callback.
    """
    console = console or Console()
    if quiet:
        yield lambda method: Callback()
    elif console.is_terminal:
        with _bars(console) as bars:
            yield lambda method: _Bar(method, bars)
    else:
        with _lines(console) as print_line:
            yield lambda method: _Lines(method, print_line)


@contextmanager
def show_steps(
    console: Console | None = None, *, quiet: bool = False
) -> Iterator[Callable[[str], None]]:
    """Shows the current step of work; as ``show_training``."""
    console = console or Console()
    if quiet:
        yield lambda step: None
    elif console.is_terminal:
        with console.status("preparing") as status:
            yield lambda step: status.update(Text(escape_control_chars(step)))
    else:
        with _lines(console) as print_line:
            yield lambda step: print_line(escape_control_chars(step))


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[str], None]]:
    """Prints lines, and the last one again, with its age, after ``_MAX_SILENCE_S`` without any."""
    last, printed, ended = "", time.monotonic(), threading.Event()
    written = printed

    def write(line: str) -> None:
        nonlocal written
        written = time.monotonic()
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def print_line(line: str) -> None:
        nonlocal last, printed
        last, printed = line, time.monotonic()
        write(line)

    def repeat() -> None:
        while not ended.wait(max(0.0, written + _MAX_SILENCE_S - time.monotonic())):
            if time.monotonic() >= written + _MAX_SILENCE_S:
                age = timedelta(seconds=round(time.monotonic() - printed))
                write(f"{last or 'preparing'}  ({age} ago)")

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield print_line
    finally:
        ended.set()
        thread.join()


class _Lines(Callback):
    """Prints quality, speed and remaining time of a run."""

    def __init__(self, method: str, print_line: Callable[[str], None] = print) -> None:
        self._method = escape_control_chars(method)
        self._print_line = print_line
        self._first: Evaluation | None = None

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        self._started = time.monotonic()
        self._print("compiling")

    def on_compiled(self, num_bytes: int) -> None:
        took = time.monotonic() - self._started
        self._print(f"compiled in {took:.0f} s, {num_bytes / 2**20:,.0f} MiB")

    def on_evaluation(self, evaluation: Evaluation) -> None:
        done, rounds = evaluation.round, evaluation.rounds
        speed = ""
        if self._first is None:
            # The time before includes compilation, and rounds of an earlier process.
            self._first = evaluation
        else:
            seconds = max(evaluation.seconds - self._first.seconds, 1e-9)
            pace = max((done - self._first.round) / seconds, 1e-9)
            speed = f"{pace:,.3g} rounds/s"
            if left := rounds - done:
                speed += f", {timedelta(seconds=round(left / pace))} left"
        quantity = evaluation.quantities[0]
        self._show(done, rounds, _format_metrics(evaluation.summaries, quantity), speed)

    def _show(self, done: int, rounds: int, metrics: str, speed: str) -> None:
        self._print(f"round {done}/{rounds}  {metrics}  {speed}".rstrip())

    def _print(self, text: str) -> None:
        self._print_line(f"{self._method}: {text}")


def _bars(console: Console) -> progress.Progress:
    return progress.Progress(
        progress.TextColumn("{task.description:<12}", markup=False),
        progress.BarColumn(bar_width=10),
        progress.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[status]}", markup=False, table_column=Column()),
        console=console,
    )


class _Bar(_Lines):
    """Shows the same as a bar with two lines."""

    def __init__(self, method: str, bars: progress.Progress) -> None:
        super().__init__(method)
        self._bars = bars

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        self._task = self._bars.add_task(self._method, total=rounds, status="compiling")

    def on_compiled(self, num_bytes: int) -> None:
        self._bars.update(self._task, status=f"{num_bytes / 2**20:,.0f} MiB")

    def on_end(self, results: xr.Dataset) -> None:
        """Shows the results if all rounds were done by an earlier process."""
        if self._first is None:
            last, quantity = results.isel(round=-1), primary(results)
            names = {
                f"{prefix}{name}"
                for prefix in ("", PERSONALIZED)
                for name in (quantity.mean, quantity.dissimilarity)
            }
            values = {name: last[name].values for name in names & set(last)}
            self._show(int(last["round"]), 0, _format_metrics(values, quantity), "")

    def _show(self, done: int, rounds: int, metrics: str, speed: str) -> None:
        self._bars.update(self._task, completed=done, status=f"{metrics}\n{speed}".rstrip())


def _format_metrics(values: Mapping[str, np.ndarray], quantity: Quantity) -> str:
    """Formats means over runs, of each model if there are personalized ones."""
    models = {"": ""}
    if PERSONALIZED + quantity.mean in values:
        models = {"global: ": "", "personalized: ": PERSONALIZED}
    is_in_percent = is_percent(quantity.mean, quantity.unit)
    shown = {quantity.heading: quantity.mean, "dissimilarity": quantity.dissimilarity}
    parts = []
    for label, prefix in models.items():
        means = {name: float(np.mean(values[prefix + metric])) for name, metric in shown.items()}
        if label and np.isnan(means[quantity.heading]):
            continue
        parts.append(
            label
            + "  ".join(
                f"{name} {100 * mean:.1f}%" if is_in_percent else f"{name} {mean:.3g}"
                for name, mean in means.items()
            )
        )
    return "  ".join(parts)
