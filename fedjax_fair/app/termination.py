"""An end from outside: SIGTERM, as schedulers send it before they kill."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING

from fedjax_fair.training.fit import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Terminated", "Termination"]


class Terminated(BaseException):
    """The process was ended from outside, and has kept what it has done."""


class Termination:
    """In a ``with`` statement, SIGTERM ends a run after its next checkpoint; a second one at once.

    Args:
        at_once: Whether there are no checkpoints to wait for.

    Raises:
        Terminated: When the run has ended, from `fit`; or at once.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.requested = False
        self._at_once = at_once

    def __enter__(self) -> Termination:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested or self._at_once:
            raise Terminated
        self.requested = True

    def watch(self, shown: Callback) -> Callback:
        """The same callback, which stops the run if that was requested."""
        return _Watch(self, shown)


class _Watch(Callback):
    def __init__(self, termination: Termination, shown: Callback) -> None:
        self._termination = termination
        self._shown = shown
        self.on_compiled = shown.on_compiled

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        self._rounds = rounds
        self._shown.on_start(rounds, seeds)

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        return bool(self._shown.on_evaluation(evaluation)) or self._termination.requested

    def on_end(self, results: xr.Dataset) -> None:
        self._shown.on_end(results)
        if self._termination.requested and results["round"].values[-1] < self._rounds:
            raise Terminated
