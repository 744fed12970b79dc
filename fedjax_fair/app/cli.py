"""Entry points of the command line, ``fedjax-fair``."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import jax

from fedjax_fair.app import plugins
from fedjax_fair.app.termination import Terminated, interruptible
from fedjax_fair.parallel import processes
from fedjax_fair.text import escape_control_chars
from fedjax_fair.training.cache import enable_compilation_cache
from fedjax_fair.training.fit import DivergenceError

if TYPE_CHECKING:
    from fedjax_fair.app.presets import Preset

__all__ = ["main", "program"]


def main(
    arguments: Sequence[str] | None = None, presets: Mapping[str, Preset] | None = None
) -> int:
    """Runs one command.

    Args:
        arguments: Arguments; by default those of the process.
        presets: Presets of ``run``, ``sweep`` and ``plan`` by name; by default the package's.

    Returns:
        The exit status: 0; 2 after an error of the user, which is printed as one line; 130 after an
        interruption, 143 after SIGTERM.
    """
    enable_compilation_cache()
    try:
        with interruptible():
            rest = _load_plugins(sys.argv[1:] if arguments is None else list(arguments))
            # Imported only now, because the options include the methods of plugins.
            from fedjax_fair.app.commands.dispatch import dispatch

            dispatch(rest, presets)
    except Exception as error:
        is_user_error = isinstance(error, (ValueError, OSError, ImportError, DivergenceError))
        if is_user_error or _is_out_of_memory(error):
            words = map(escape_control_chars, str(error).split())
            reason = () if is_user_error else ("out of memory:",)
            print("fedjax-fair:", *reason, *words, file=sys.stderr)
            processes.abort(2)
            return 2
        if jax.distributed.is_initialized():  # Other processes must not wait for this one.
            traceback.print_exc()
            processes.abort(1)
        raise
    except (KeyboardInterrupt, Terminated) as end:
        word, status = ("terminated", 143) if isinstance(end, Terminated) else ("interrupted", 130)
        print(f"fedjax-fair: {word}", *getattr(end, "__notes__", ()), sep="; ", file=sys.stderr)
        processes.abort(status)
        return status
    return 0


def program(presets: Mapping[str, Preset] | None = None) -> NoReturn:
    """Runs the command of this process and exits with its status.

    Args:
        presets: As for ``main``.
    """
    status = main(presets=presets)
    if status in (130, 143):
        # A normal exit would wait for background compilation.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _is_out_of_memory(error: Exception) -> bool:
    exhausted = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    return exhausted or isinstance(error, MemoryError)


def _load_plugins(arguments: list[str]) -> list[str]:
    """Loads the file of each ``--plugin``, and returns the other arguments."""
    rest, words = [], iter(arguments)
    for word in words:
        flag, equals, file = word.partition("=")
        if flag != "--plugin":
            rest.append(word)
            continue
        file = file if equals else next(words, None)
        if not file:
            raise ValueError("--plugin: expected a Python file.")
        plugins.load(file)
    return rest
