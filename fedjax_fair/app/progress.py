"""What a person sees while a run goes on: a bar for each method, or a line for each evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from fedjax_fair.simulate import RoundInfo
from fedjax_fair.text import escape_control_chars
from fedjax_fair.training.fit import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["CallbackFn", "examples_in", "show_steps", "show_training"]

CallbackFn = Callable[[str, int | None], Callback]
"""Makes a callback of the name of a method and its batch size."""


@contextmanager
def show_training(console: Console | None = None, *, quiet: bool = False) -> Iterator[CallbackFn]:
    """Shows how runs go on: bars on a terminal, lines in a file or a pipe, or nothing.

    Args:
        console: Where; by default the standard output.
        quiet: Whether to show nothing.
    """
    console = console or Console()
    if quiet:
        yield lambda method, batch_size: Callback()
    elif console.is_terminal:
        with _Bars(console) as bars:
            yield lambda method, batch_size: _Bar(bars, method, batch_size)
    else:
        yield lambda method, batch_size: _Lines(console, method, batch_size)


@contextmanager
def show_steps(
    console: Console | None = None, *, quiet: bool = False
) -> Iterator[Callable[[str], None]]:
    """Shows which of several steps of work is going on, and for how long.

    Args:
        console: Where; by default the standard output.
        quiet: Whether to show nothing.
    """
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
        ) as shown:
            task = shown.add_task("preparing", total=None)
            yield lambda step: shown.update(task, description=escape_control_chars(step))
    else:
        yield lambda step: console.print(escape_control_chars(step), markup=False, highlight=False)


class _Shown(Callback):
    """The news of a run: how good the model is, how fast rounds are done, what is left."""

    def __init__(self, method: str, batch_size: int | None) -> None:
        self._method = escape_control_chars(method)
        self._batch_size = batch_size
        self._first: Evaluation | None = None
        self._examples = 0

    def on_evaluation(self, evaluation: Evaluation) -> None:
        done, news = evaluation.round, quality(evaluation.summaries)
        if self._first is None:
            # What came before it is compilation, or was done by an earlier process.
            self._first = evaluation
            self.show(done, evaluation.rounds, news)
            return
        seconds = max(evaluation.seconds - self._first.seconds, 1e-9)
        pace = (done - self._first.round) / seconds
        speed = [f"{pace:,.3g} rounds/s"]
        if self._batch_size is not None and evaluation.info is not None:
            sizes = np.asarray(evaluation.clients.train_sizes)
            self._examples += examples_in(evaluation.info, sizes, self._batch_size)
            speed.append(f"{self._examples / seconds:,.0f} examples/s")
        if left := evaluation.rounds - done:
            speed.append(f"{timedelta(seconds=round(left / max(pace, 1e-9)))} left")
        self.show(done, evaluation.rounds, news, ", ".join(speed))

    def show(self, done: int, rounds: int, news: str, speed: str = "") -> None:
        """Shows the news after a round."""
        raise NotImplementedError


def quality(summaries: dict[str, np.ndarray]) -> str:
    """Accuracy and how unequal it is, a mean over runs."""
    accuracy, dissimilarity = (
        100 * float(np.mean(summaries[name]))
        for name in ("accuracy_mean_clients", "client_dissimilarity")
    )
    return f"accuracy {accuracy:.1f} %  dissimilarity {dissimilarity:.1f} %"


def examples_in(info: RoundInfo, sizes: np.ndarray, batch_size: int) -> int:
    """Training examples that clients have gone through, all seeds together.

    Args:
        info: What rounds have recorded, ``clients`` and ``steps`` ``[seeds, rounds, cohort]``.
        sizes: Training examples of each client, ``[seeds, clients]``.
        batch_size: Examples of a minibatch at most; the last of an epoch holds what is left.
    """
    clients, steps = np.asarray(info.clients), np.asarray(info.steps, np.int64)
    trained = clients >= 0
    runs = np.arange(len(clients))[:, None, None]
    own = np.where(trained, sizes[runs, clients], 1).astype(np.int64)
    epochs, rest = np.divmod(steps, -(-own // batch_size))
    return int(np.sum((epochs * own + rest * np.minimum(batch_size, own)) * trained))


class _Lines(_Shown):
    def __init__(self, console: Console, method: str, batch_size: int | None) -> None:
        super().__init__(method, batch_size)
        self._print = lambda text: console.print(
            f"{self._method}: {text}", markup=False, highlight=False, soft_wrap=True
        )

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        self._started = time.monotonic()
        self._print("compiling")

    def on_compiled(self, num_bytes: int) -> None:
        took = time.monotonic() - self._started
        self._print(f"compiled in {took:.0f} s, {num_bytes / 2**20:,.0f} MiB")

    def show(self, done: int, rounds: int, news: str, speed: str = "") -> None:
        self._print(f"round {done}/{rounds}  {news}  {speed}".rstrip())


class _Bars(progress.Progress):
    """One bar a method; use it in a ``with`` statement."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            progress.TextColumn("{task.description:<12}", markup=False),
            progress.BarColumn(bar_width=10),
            progress.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            _News(Column()),  # Of two lines, so that eighty columns are enough.
            console=console,
        )


class _News(progress.ProgressColumn):
    """The news, and how long a program has been compiled until there are any."""

    def render(self, task: progress.Task) -> Text:
        news = task.fields["news"]
        return Text(news or f"compiling ({task.elapsed or 0:.0f} s so far)")


class _Bar(_Shown):
    def __init__(self, bars: _Bars, method: str, batch_size: int | None) -> None:
        super().__init__(method, batch_size)
        self._bars = bars

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        self._task = self._bars.add_task(self._method, total=rounds, news="")

    def on_compiled(self, num_bytes: int) -> None:
        self._bars.update(self._task, news=f"{num_bytes / 2**20:,.0f} MiB")

    def show(self, done: int, rounds: int, news: str, speed: str = "") -> None:
        self._bars.update(self._task, completed=done, news=f"{news}\n{speed}".rstrip())

    def on_end(self, results: xr.Dataset) -> None:
        """Where all rounds had been done by an earlier process, there was no evaluation."""
        if self._first is None:
            last = results.isel(round=-1)
            names = ("accuracy_mean_clients", "client_dissimilarity")
            done = int(last["round"])
            self.show(done, done, quality({name: last[name].values for name in names}))
