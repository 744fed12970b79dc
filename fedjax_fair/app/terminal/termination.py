"""End of a run after its next checkpoint, on SIGTERM, SIGHUP or Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from fedjax_fair.app.terminal.interruptions import Terminated, end_work, is_main_thread
from fedjax_fair.training.loop import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Terminated", "Termination"]


class Termination(Callback):
    """Context in which SIGTERM or SIGHUP ends a run after its next checkpoint, the second at once.

    It is the last callback of the run.

    Args:
        at_once: Whether already the first signal ends the run at once.
        saves: Whether the run has checkpoints. Then Ctrl-C is like SIGTERM while rounds run, and
            ends at once before, where nothing is lost.

    Raises:
        Terminated: When the run has ended.
        KeyboardInterrupt: When Ctrl-C has ended the run.
    """

    def __init__(self, at_once: bool = False, saves: bool = False) -> None:
        self._number: int | None = None
        self._at_once, self._saves = at_once, saves
        self._is_in_rounds = False

    @property
    def requested(self) -> bool:
        """Returns whether a signal was received."""
        return self._number is not None

    def __enter__(self) -> Termination:
        self._terminals = [output for output in (1, 2) if os.isatty(output)]
        self._handlers = {}
        if not is_main_thread():  # Other threads receive no signals.
            return self
        for number in (signal.SIGTERM, signal.SIGHUP, *[signal.SIGINT] * self._saves):
            if signal.getsignal(number) is not signal.SIG_IGN:  # As SIGHUP under nohup.
                self._handlers[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            if handler is not None:  # As for one that was not set by Python.
                signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        for output in self._terminals:
            if not os.isatty(output):  # The terminal was closed, and writing would fail.
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        is_interrupted = number == signal.SIGINT
        if self.requested or self._at_once or (is_interrupted and not self._is_in_rounds):
            end_work(_end_fn(number), frame)
            return
        self._number = number
        if is_interrupted and 2 in self._terminals:
            os.write(2, b"\nThe run ends after this evaluation; Ctrl-C again ends it at once.\n")

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Stores the number of rounds, which begin after the compilation."""
        self._rounds, self._is_in_rounds = rounds, False

    def on_compiled(self, num_bytes: int) -> None:
        """Lets Ctrl-C wait for a checkpoint from now on."""
        self._is_in_rounds = True

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Stops the run if a signal was received."""
        return self.requested

    def on_end(self, results: xr.Dataset) -> None:
        """Raises the exception of the signal, if rounds are missing."""
        self._is_in_rounds = False
        if self._number is not None and results["round"].values[-1] < self._rounds:
            raise _end_fn(self._number)()


def _end_fn(number: int) -> Callable[[], BaseException]:
    return KeyboardInterrupt if number == signal.SIGINT else partial(Terminated, number)
