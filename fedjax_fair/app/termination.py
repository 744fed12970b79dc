"""Ends from outside: Ctrl-C, and SIGTERM, as schedulers send it before they kill."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from fedjax_fair.training.fit import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Terminated", "Termination", "interruptible"]

_TIMEOUT_S = 2.0
"""Seconds after which an interruption that nothing has noticed is raised again."""
_RETRY_S = 0.01
"""Seconds after which one is raised again that Python is known to have ignored."""


@contextmanager
def interruptible() -> Iterator[None]:
    """In a ``with`` statement, Ctrl-C raises ``KeyboardInterrupt`` until that ends the work.

    Once is not enough: Python ignores exceptions in finalizers and in the callbacks of its garbage
    collector, and other libraries in callbacks of theirs. Where Python would print what it ignored,
    the exception is raised again at once; elsewhere, when nothing has noticed it for a while.
    """
    if threading.current_thread() is not threading.main_thread():  # Which has no signals.
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
        raise KeyboardInterrupt

    show = sys.unraisablehook

    def ignored(exception: sys.UnraisableHookArgs) -> None:
        if exception.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        else:
            show(exception)

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGINT, signal.SIGALRM)}
    sys.unraisablehook = ignored
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = show
        for one, handler in before.items():
            signal.signal(one, handler)


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

    def wrap(self, shown: Callback) -> Callback:
        """The same callback, which stops the run if that was requested."""
        return _StoppingCallback(self, shown)


class _StoppingCallback(Callback):
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
