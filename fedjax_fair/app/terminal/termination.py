"""End of a run after its next checkpoint, on SIGTERM or SIGHUP."""

from __future__ import annotations

import os
import signal
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

    It is the last callback of the run. With ``at_once`` the first one ends the run at once.

    Raises:
        Terminated: When the run has ended.
    """

    def __init__(self, at_once: bool = False) -> None:
        self._number: int | None = None
        self._at_once = at_once

    @property
    def requested(self) -> bool:
        """Whether a signal was received."""
        return self._number is not None

    def __enter__(self) -> Termination:
        self._terminals = [output for output in (1, 2) if os.isatty(output)]
        self._handlers = {}
        if not is_main_thread():  # Other threads receive no signals.
            return self
        for number in (signal.SIGTERM, signal.SIGHUP):
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
        if self.requested or self._at_once:
            end_work(partial(Terminated, number), frame)
        self._number = number

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Stores the number of rounds."""
        self._rounds = rounds

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Stops the run if a signal was received."""
        return self.requested

    def on_end(self, results: xr.Dataset) -> None:
        """Raises ``Terminated`` if rounds are missing."""
        if self._number is not None and results["round"].values[-1] < self._rounds:
            raise Terminated(self._number)
