"""Entry points of the command line, ``fedjax-fair``.

Other modules are imported in functions, because signals are handled before.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from fedjax_fair.app.terminal.interruptions import (
    Terminated,
    exit_on_signals,
    ignore_signals,
    ignore_signals_at_exit,
    interruptible,
    restored_signal_handlers,
)

__all__ = ["main", "program"]

_BROKEN_PIPE = 128 + 13
"""Exit status of a program that SIGPIPE ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Arguments; by default those of the process.

    Returns:
        The exit status: 0; 2 after an error of the user, which is printed as one line, with
        ``--traceback`` after the calls that led to it; 130 after an interruption, 143 after
        SIGTERM, 129 after SIGHUP, 141 if its output was closed.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    with restored_signal_handlers():
        return _run(words)


def _run(words: list[str]) -> int:
    """Runs one command; after its interruption, signals are ignored."""
    report = partial(_report, with_traceback="--traceback" in words)
    try:
        dispatch, rest = _prepare([word for word in words if word != "--traceback"])
    except Exception as error:
        return report(error)
    try:
        with interruptible():
            try:
                dispatch(rest)
            except BrokenPipeError:
                _abort(_BROKEN_PIPE)
                return _BROKEN_PIPE
            except Exception as error:
                return report(error)
            except (KeyboardInterrupt, Terminated) as end:
                return _end(end)
    except (KeyboardInterrupt, Terminated) as end:
        # While an error is reported, or the context is entered or left.
        return _end(end)
    return 0


def _end(end: KeyboardInterrupt | Terminated) -> int:
    """Reports what ended the work, and returns the exit status; signals are then ignored."""
    ignore_signals()
    is_terminated = isinstance(end, Terminated)
    words = ["terminated" if is_terminated else "interrupted", *getattr(end, "__notes__", ())]
    with contextlib.suppress(OSError):  # The reader of a pipe is also interrupted.
        print(f"fedjax-fair: {'; '.join(words)}", file=sys.stderr, flush=True)
    status = end.status if is_terminated else 130
    _abort(status)
    return status


def program() -> NoReturn:
    """Runs the command of this process and exits with its status."""
    exit_on_signals()
    atexit.register(ignore_signals_at_exit)  # Called after what others register.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Names that a terminal cannot show.
    warnings.formatwarning = _format_warning
    try:
        status = _run(sys.argv[1:])
    except SystemExit as end:  # Of --help.
        status = end.code if isinstance(end.code, int) else 0
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or _BROKEN_PIPE
        # Python would report it again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if status > 128:
        os._exit(status)  # A normal exit would wait for background compilation.
    sys.exit(status)


_printed_once = set[str]()


def _format_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Formats a warning as one line, without the line of code that caused it."""
    from fedjax_fair.utils.terminal import escape_control_chars

    if str(message).startswith(start := "Error reading persistent compilation cache entry"):
        if start in _printed_once:  # JAX reports each file, in every process.
            return ""
        _printed_once.add(start)
        import jax

        folder = getattr(jax.config, "jax_compilation_cache_dir", None)
        message = f"{message}; compiled again; delete {folder} to keep functions again"
    words = map(escape_control_chars, str(message).split())
    return f"fedjax-fair: warning: {' '.join(words)}\n"


def _prepare(arguments: list[str]) -> tuple[Callable[..., None], list[str]]:
    """Loads plugins; returns the function that runs a command, and the other arguments."""
    from fedjax_fair.app.overview import is_overview, print_overview

    if is_overview(arguments):
        return print_overview, arguments
    rest = _load_plugins(arguments)
    # Imported only now, because the options include the methods of plugins.
    from fedjax_fair.app.commands.dispatch import dispatch

    return dispatch, rest


def _load_plugins(arguments: list[str]) -> list[str]:
    """Loads the file of each ``--plugin``, and returns the other arguments."""
    rest, words, files = [], iter(arguments), []
    for word in words:
        flag, equals, file = word.partition("=")
        if flag != "--plugin":
            rest.append(word)
            continue
        file = file if equals else next(words, None)
        if not file:
            raise ValueError("--plugin: expected a Python file.")
        files.append(file)
    if rest[:2] == ["benchmark", "enter"]:
        files += [word for word in rest[2:] if word.endswith(".py")]
    if files:
        from fedjax_fair.app.settings import plugins

        for file in files:
            plugins.load(os.path.expanduser(file))
    return rest


def _report(error: Exception, with_traceback: bool) -> int:
    """Prints an error of the user as one line, and raises any other."""
    message = _message(error)
    if message is None:
        import jax

        if jax.distributed.is_initialized():  # Other processes must not wait for this one.
            sys.excepthook(type(error), error, error.__traceback__)
            _abort(1)
        raise error
    from fedjax_fair.utils.terminal import escape_control_chars

    if with_traceback:
        import traceback

        traceback.print_exception(error)
    else:
        message += getattr(error, "hint", "")
    print("fedjax-fair:", *map(escape_control_chars, message.split()), file=sys.stderr)
    _abort(2)
    return 2


def _message(error: Exception) -> str | None:
    """Returns the message of an error of the user, or None."""
    from fedjax_fair.utils.terminal import one_line

    if isinstance(error, (ValueError, OSError, ImportError)):
        return one_line(error)
    import traceback

    import jax

    from fedjax_fair.training.loop import DivergenceError

    if isinstance(error, DivergenceError):
        return one_line(error)
    of_jax = one_line(error) if isinstance(error, jax.errors.JaxRuntimeError) else ""
    if "RESOURCE_EXHAUSTED" in of_jax or isinstance(error, MemoryError):
        return f"out of memory: {one_line(error)}"
    if re.search("Disallowed .*transfer", of_jax):
        return f"JAX_TRANSFER_GUARD: expected 'allow' or 'log'; JAX reports {of_jax}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames[-1].filename.endswith("xla_bridge.py"):  # JAX finds no device.
        reason = f" ({error})" if str(error) else ""
        return (
            f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}: none of these devices can be "
            f"used{reason}; expected available ones, such as cpu."
        )
    return None


def _abort(status: int) -> None:
    if "jax" in sys.modules:
        from fedjax_fair.parallel import processes

        processes.abort(status)
