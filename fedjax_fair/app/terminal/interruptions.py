"""Interruptions: Ctrl-C, and SIGTERM and SIGHUP of schedulers and terminals.

This module imports nothing of the package, because it also handles signals during imports.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = [
    "Terminated",
    "end_work",
    "exit_on_signals",
    "ignore_signals",
    "ignore_signals_at_exit",
    "interruptible",
    "is_main_thread",
    "restored_signal_handlers",
]

_TIMEOUT_S = 2.0
"""Time until an interruption without effect is raised again."""
_RETRY_S = 0.01
"""Time until an interruption that Python has ignored, or that came in an import, is raised."""
_NUMBERS = (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""SIGINT is the last one to be restored, because it may raise at once."""

_wanted: Callable[[], BaseException] | None = None
"""Makes the exception that ends the work, from the first interruption on."""


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
    """Ignores Ctrl-C, SIGTERM and SIGHUP; without effect in other threads, which receive none.

    A function ignores them, because Python reports a signal that comes while it sets ``SIG_IGN``.
    """
    if is_main_thread():
        for number in _NUMBERS:
            signal.signal(number, _ignore)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def ignore_signals_at_exit() -> None:
    """Ignores them while Python ends, which sets ``SIG_DFL`` where functions handle signals."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def restored_signal_handlers() -> Iterator[None]:
    """Restores the handlers of signals that are set or ignored in the context."""
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    try:
        yield
    finally:
        if is_main_thread():
            for number, handler in before.items():
                if handler is not None:  # As for one that was not set by Python.
                    signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes Ctrl-C raise ``KeyboardInterrupt`` in the context until that ends the work.

    It stays ignored where the process ignores it, as of ``command &`` in a script.

    Python ignores exceptions in finalizers, and libraries in some callbacks. An interruption that
    Python would report as ignored is raised again at once, any other after a timeout. Until then,
    further ones have no effect, so that they do not interrupt what the first one leads to. In an
    import, which may not be interrupted, it waits for the end.
    """
    global _wanted
    hook = sys.unraisablehook

    def retry(exception: sys.UnraisableHookArgs) -> None:
        global _wanted
        if exception.exc_type in (KeyboardInterrupt, Terminated):
            _wanted = _wanted or exception.exc_type
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        else:
            hook(exception)

    if not is_main_thread():
        yield  # Other threads receive no signals.
        return
    _wanted = None
    # SIGALRM first, whose default ends the process.
    numbers = [signal.SIGALRM, signal.SIGINT]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        numbers.pop()
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    sys.unraisablehook = retry
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if _wanted is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            # Not if signals are now ignored, or if Python did not set the handler.
            if signal.getsignal(number) is _interrupt and handler is not None:
                signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT or _wanted is None:  # Or the time of another timer.
        end_work(KeyboardInterrupt, frame)
    else:
        _raise_end(_wanted, frame)


def end_work(end: Callable[[], BaseException], frame: FrameType | None) -> None:
    """Raises an exception for a signal; in ``interruptible``, again until it ends the work."""
    global _wanted
    if signal.getsignal(signal.SIGALRM) is not _interrupt:
        raise end()
    if _wanted is None or not signal.getitimer(signal.ITIMER_REAL)[0]:
        _wanted = end
        _raise_end(end, frame)


# Compilation runs in threads that cannot be stopped, and Python waits for them. If the exception
# does not end the work in time, `cli` prints one line and ends the process with `os._exit`; files
# of a run folder are always written completely.
def _raise_end(end: Callable[[], BaseException], frame: FrameType | None) -> None:
    if _is_in_import(frame):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        return
    signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
    raise end()


def is_main_thread() -> bool:
    """Returns whether this thread may handle signals."""
    return threading.current_thread() is threading.main_thread()


def _is_in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
