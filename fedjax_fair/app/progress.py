"""Progress of runs: a bar for each method, or a line for each evaluation."""

from __future__ import annotations

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

from fedjax_fair.text import escape_control_chars
from fedjax_fair.training.fit import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["show_steps", "show_training"]

_METRICS = {"accuracy": "accuracy_mean_clients", "dissimilarity": "client_dissimilarity"}


@contextmanager
def show_training(
    console: Console | None = None, *, quiet: bool = False
) -> Iterator[Callable[[str], Callback]]:
    """Shows the progress of runs: bars on a terminal, otherwise lines; nothing if ``quiet``.

    Yields:
        A function from the name of a method to its callback.
    """
    console = console or Console()
    if quiet:
        yield lambda method: Callback()
    elif console.is_terminal:
        with _Bars(console) as bars:
            yield lambda method: _Bar(bars, method)
    else:
        yield lambda method: _Lines(console, method)


@contextmanager
def show_steps(
    console: Console | None = None, *, quiet: bool = False
) -> Iterator[Callable[[str], None]]:
    """Shows the current step of work and its duration; as ``show_training``."""
    console = console or Console()
    if quiet:
        yield lambda step: None
    elif console.is_terminal:
        with progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as bar:
            task = bar.add_task("preparing", total=None)
            yield lambda step: bar.update(task, description=escape_control_chars(step))
    else:
        yield lambda step: console.print(escape_control_chars(step), markup=False, highlight=False)


class _Display(Callback):
    """Reports quality, speed and remaining time of a run."""

    def __init__(self, method: str) -> None:
        self._method = escape_control_chars(method)
        self._first: Evaluation | None = None

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
        self.show(done, rounds, _format_metrics(evaluation.summaries), speed)

    def show(self, done: int, rounds: int, metrics: str, speed: str = "") -> None:
        """Shows metrics and speed after a round."""
        raise NotImplementedError


def _format_metrics(values: Mapping[str, np.ndarray]) -> str:
    """Formats means over runs."""
    means = {name: 100 * float(np.mean(values[metric])) for name, metric in _METRICS.items()}
    return "  ".join(f"{name} {mean:.1f}%" for name, mean in means.items())


class _Lines(_Display):
    def __init__(self, console: Console, method: str) -> None:
        super().__init__(method)
        self._print = lambda text: console.print(
            f"{self._method}: {text}", markup=False, highlight=False, soft_wrap=True
        )

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        self._started = time.monotonic()
        self._print("compiling")

    def on_compiled(self, num_bytes: int) -> None:
        took = time.monotonic() - self._started
        self._print(f"compiled in {took:.0f} s, {num_bytes / 2**20:,.0f} MiB")

    def show(self, done: int, rounds: int, metrics: str, speed: str = "") -> None:
        self._print(f"round {done}/{rounds}  {metrics}  {speed}".rstrip())


class _Bars(progress.Progress):
    """Shows a bar for each method; a context manager."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            progress.TextColumn("{task.description:<12}", markup=False),
            progress.BarColumn(bar_width=10),
            progress.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            _Status(Column()),  # Two lines, which fit 80 columns.
            console=console,
        )


class _Status(progress.ProgressColumn):
    """Shows the status of a run, or how long it has been compiling."""

    def render(self, task: progress.Task) -> Text:
        compiling = f"compiling ({task.elapsed or 0:.0f} s so far)"
        return Text(task.fields["status"] or compiling)


class _Bar(_Display):
    def __init__(self, bars: _Bars, method: str) -> None:
        super().__init__(method)
        self._bars = bars

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        self._task = self._bars.add_task(self._method, total=rounds, status="")

    def on_compiled(self, num_bytes: int) -> None:
        self._bars.update(self._task, status=f"{num_bytes / 2**20:,.0f} MiB")

    def show(self, done: int, rounds: int, metrics: str, speed: str = "") -> None:
        self._bars.update(self._task, completed=done, status=f"{metrics}\n{speed}".rstrip())

    def on_end(self, results: xr.Dataset) -> None:
        """Shows the results if all rounds were done by an earlier process."""
        if self._first is None:
            last = results.isel(round=-1)
            values = {metric: last[metric].values for metric in _METRICS.values()}
            self.show(int(last["round"]), int(last["round"]), _format_metrics(values))
