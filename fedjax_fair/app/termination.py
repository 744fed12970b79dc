"""Interruptions: Ctrl-C, and SIGTERM, which schedulers send before they kill a process."""

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
"""Time until an interruption without effect is raised again."""
_RETRY_S = 0.01
"""Time until an interruption that Python has ignored is raised again."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes Ctrl-C raise ``KeyboardInterrupt`` in the context until that ends the work.

    Python ignores exceptions in finalizers, and libraries in some callbacks. An interruption that
    Python would report as ignored is raised again at once, any other after a timeout.
    """
    if threading.current_thread() is not threading.main_thread():  # Only it receives signals.
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
        raise KeyboardInterrupt

    hook = sys.unraisablehook

    def retry(exception: sys.UnraisableHookArgs) -> None:
        if exception.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        else:
            hook(exception)

    signals = (signal.SIGINT, signal.SIGALRM)
    handlers = {number: signal.signal(number, interrupt) for number in signals}
    sys.unraisablehook = retry
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Terminated(BaseException):
    """SIGTERM has ended the work, which can be continued."""


class Termination(Callback):
    """Context in which SIGTERM ends a run after its next checkpoint; the second one at once.

    It is the last callback of the run. With ``at_once`` the first SIGTERM ends the run at once.

    Raises:
        Terminated: When the run has ended.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.requested = False
        self._at_once = at_once

    def __enter__(self) -> Termination:
        self._handler = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested or self._at_once:
            raise Terminated
        self.requested = True

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Stores the number of rounds."""
        self._rounds = rounds

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Stops the run if SIGTERM was received."""
        return self.requested

    def on_end(self, results: xr.Dataset) -> None:
        """Raises ``Terminated`` if rounds are missing."""
        if self.requested and results["round"].values[-1] < self._rounds:
            raise Terminated
