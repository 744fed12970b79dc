"""Interruptions: Ctrl-C, and SIGTERM and SIGHUP of schedulers and terminals.

This module imports nothing of the package, because it also handles signals during imports.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = [
    "Terminated",
    "exit_on_signals",
    "ignore_signals",
    "interruptible",
    "restored_signal_handlers",
]

_TIMEOUT_S = 2.0
"""Time until an interruption without effect is raised again."""
_RETRY_S = 0.01
"""Time until an interruption that Python has ignored, or that came in an import, is raised."""
_NUMBERS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal (its number) has ended the work, which can be continued."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.status = 128 + number


def exit_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and SIGHUP end the process with one line, until others handle them.

    Nothing is raised, because an exception could crash an extension module that is imported.
    Signals that the process ignores, as under ``nohup``, stay ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    word = b"interrupted" if number == signal.SIGINT else b"terminated"
    try:
        os.write(2, b"fedjax-fair: " + word + b"\n")
    finally:  # Also if the terminal is gone.
        os._exit(128 + number)


def ignore_signals() -> None:
    """Ignores Ctrl-C, SIGTERM and SIGHUP; without effect in other threads, which receive none."""
    if _is_main_thread():
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def restored_signal_handlers() -> Iterator[None]:
    """Restores the handlers of signals that are set or ignored in the context."""
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    try:
        yield
    finally:
        if _is_main_thread():
            for number, handler in before.items():
                if handler is not None:  # As for one that was not set by Python.
                    signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes Ctrl-C raise ``KeyboardInterrupt`` in the context until that ends the work.

    Python ignores exceptions in finalizers, and libraries in some callbacks. An interruption that
    Python would report as ignored is raised again at once, any other after a timeout. Until then,
    further ones have no effect, so that they do not interrupt what the first one leads to. In an
    import, which may not be interrupted, it waits for the end.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and signal.getitimer(signal.ITIMER_REAL)[0]:
            return
        if _is_in_import(frame):
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
            return
        signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
        raise KeyboardInterrupt

    hook = sys.unraisablehook

    def retry(exception: sys.UnraisableHookArgs) -> None:
        if exception.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        else:
            hook(exception)

    if not _is_main_thread():
        yield  # Other threads receive no signals.
        return
    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)
    }
    sys.unraisablehook = retry
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:  # Not if signals are now ignored.
                signal.signal(number, handler)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
