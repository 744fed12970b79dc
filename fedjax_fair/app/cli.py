"""The command line, ``fedjax-fair``: how it starts and how it ends."""

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
        arguments: What follows the name of the program; by default what the shell passed.
        presets: What ``run`` and ``sweep`` may start from, by name; by default the package's.

    Returns:
        The exit status: 0; 2 after a mistake that the user can mend, which one line on the standard
        error names; 130 after an interruption, 143 after SIGTERM.
    """
    enable_compilation_cache()
    try:
        with interruptible():
            given = sys.argv[1:] if arguments is None else list(arguments)
            rest = _without_plugins(given)
            # Only now: what is imported here has the methods of plugins among its options.
            from fedjax_fair.app.commands.dispatch import dispatch

            dispatch(rest, presets)
    except (ValueError, OSError, ImportError, DivergenceError) as error:
        print("fedjax-fair:", *map(escape_control_chars, str(error).split()), file=sys.stderr)
        processes.abort(2)
        return 2
    except Exception as error:
        if _is_out_of_memory(error):
            print(
                "fedjax-fair: out of memory:",
                *map(escape_control_chars, str(error).split()),
                file=sys.stderr,
            )
            processes.abort(2)
            return 2
        if jax.distributed.is_initialized():  # Others must not wait for this process.
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
    """Runs the command that the shell passed, and ends the process with its status.

    After an end from outside it does so at once: Python would wait for what is being compiled.

    Args:
        presets: As for ``main``.
    """
    status = main(presets=presets)
    if status in (130, 143):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _is_out_of_memory(error: Exception) -> bool:
    exhausted = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    return exhausted or isinstance(error, MemoryError)


def _without_plugins(arguments: list[str]) -> list[str]:
    """Loads what stands behind ``--plugin``, and returns the other arguments."""
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
