"""The command line, ``fedjax-fair``: which command is meant, and how it ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NoReturn

import jax
import platformdirs

from fedjax_fair.app.commands.federations import DataInfo, DataList, DataPrepare, DataShow
from fedjax_fair.app.commands.maximizing import Exemplars, Movielens
from fedjax_fair.app.commands.reading import Compare, Methods, Show
from fedjax_fair.app.commands.training import Resume, Run, Sweep, run, sweep_settings
from fedjax_fair.app.options import HELP, parse
from fedjax_fair.app.presets import PRESETS, Preset
from fedjax_fair.app.settings import lookup
from fedjax_fair.app.termination import Terminated, interruptible
from fedjax_fair.parallel import processes
from fedjax_fair.text import aligned, printable
from fedjax_fair.training.fit import SimulationError

__all__ = ["COMMANDS", "main", "program"]

COMMANDS: dict[str, Any] = {
    "run": Run,
    "sweep": Sweep,
    "resume": Resume,
    "show": Show,
    "compare": Compare,
    "maximize exemplars": Exemplars,
    "maximize movielens": Movielens,
    "methods": Methods,
    "data list": DataList,
    "data info": DataInfo,
    "data show": DataShow,
    "data prepare": DataPrepare,
}


def main(arguments: Sequence[str] | None = None, presets: Mapping[str, Preset] = PRESETS) -> int:
    """Runs one command.

    Args:
        arguments: What follows the name of the program; by default what the shell passed.
        presets: What ``run`` and ``sweep`` may start from, by name.

    Returns:
        The exit status: 0; 2 after a mistake that the user can mend, which one line on the standard
        error names; 130 after an interruption, 143 after SIGTERM.
    """
    _keep_programs()
    try:
        with interruptible():
            _dispatch(sys.argv[1:] if arguments is None else list(arguments), presets)
    except (ValueError, OSError, ImportError, SimulationError) as error:
        print("fedjax-fair:", *map(printable, str(error).split()), file=sys.stderr)
        processes.abort(2)
        return 2
    except Exception as error:
        if _is_out_of_memory(error):
            print(
                "fedjax-fair: out of memory:", *map(printable, str(error).split()), file=sys.stderr
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


def program(presets: Mapping[str, Preset] = PRESETS) -> NoReturn:
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


def _keep_programs() -> None:
    """Keeps what is compiled for the next start, unless JAX has a setting for it already."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = platformdirs.user_cache_path("fedjax_fair") / "programs"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _dispatch(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    if arguments == ["--version"]:
        print("fedjax-fair", metadata.version("fedjax-fair"))
        return
    words = 2 if arguments[:1] in (["data"], ["maximize"]) else 1
    name, rest = " ".join(arguments[:words]), arguments[words:]
    if name not in COMMANDS and (not arguments or HELP & set(arguments)):
        print(_overview(presets))
    elif (command := lookup("command", name, COMMANDS)) is Run:
        run(rest, presets)
    elif command is Sweep:
        sweep_settings(rest, presets)
    else:
        parse(command, rest, name)()


def _overview(presets: Mapping[str, Preset]) -> str:
    commands = {name: command.__doc__.splitlines()[0] for name, command in COMMANDS.items()}
    summaries = {name: preset.summary for name, preset in presets.items()}
    return f"""usage: fedjax-fair COMMAND [OPTIONS]

Simulates fair federated learning.

Commands:
{aligned(commands, indent="  ")}

Presets, for `fedjax-fair run [PRESET] [OPTIONS]`:
{aligned(summaries, indent="  ")}

`fedjax-fair COMMAND --help` lists the options of a command,
`fedjax-fair --version` the version."""
