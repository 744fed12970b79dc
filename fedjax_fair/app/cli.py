"""The command line, ``fedjax-fair``.

Every command is a frozen dataclass whose fields are its options; ``run`` is the configuration
itself, on top of a preset.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import jax
import platformdirs
import tyro
from rich.console import Console
from tyro.conf import Positional

from fedjax_fair import data, results
from fedjax_fair.app import experiment, maximize, registry
from fedjax_fair.app.build import Experiment, build, relevant
from fedjax_fair.app.config import Config, Maximize, MaximizeExemplars, MaximizeMovielens
from fedjax_fair.app.console import Bars, tables
from fedjax_fair.app.options import HELP, parse
from fedjax_fair.app.presets import PRESETS, Preset, resolve
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import lookup, read
from fedjax_fair.app.sweep import sweep
from fedjax_fair.app.termination import Terminated, Termination
from fedjax_fair.parallel import processes
from fedjax_fair.text import printable
from fedjax_fair.training.fit import SimulationError

__all__ = ["main"]

DEFAULT_PRESET = "digits"

Run = Annotated[str, tyro.conf.arg(metavar="RUN")]
Name = Annotated[str, tyro.conf.arg(metavar="NAME")]


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


@contextlib.contextmanager
def _advice(text: str) -> Iterator[None]:
    """What to type after an end from outside."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as end:
        end.add_note(text)
        raise


def _is_out_of_memory(error: Exception) -> bool:
    exhausted = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    return exhausted or isinstance(error, MemoryError)


def _keep_programs() -> None:
    """Keeps what is compiled for the next start, unless JAX has a setting for it already."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = platformdirs.user_cache_path("fedjax_fair") / "programs"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@dataclass(frozen=True)
class Resume:
    """Continues a run that was interrupted."""

    run: Positional[Run]
    """The run folder."""

    def __call__(self) -> None:
        folder = RunFolder(self.run)
        config = folder.config()
        if isinstance(config, Maximize):
            _maximize(maximize.task_of(config), config, folder)
            return
        if config.distributed:
            processes.initialize()
        _execute(build(config), folder)


@dataclass(frozen=True)
class Show:
    """Prints the table of a run again."""

    run: Positional[Run]
    """The run folder, or a results.nc."""

    def __call__(self) -> None:
        dataset = results.open(self.run)
        try:
            shown = tables(dataset)
        except ValueError as error:
            raise ValueError(f"run={self.run!r}: {error}") from None
        Console().print(*shown)


@dataclass(frozen=True)
class Methods:
    """Lists the methods that a run can compare, and how each averages its cohort."""

    def __call__(self) -> None:
        rows = {"method": f"{'weights':<9}what it is"}
        for name, method in registry.METHODS.items():
            weights = "its own" if method.aggregator else "-" if method.pooled else method.average
            rows[name] = f"{weights:<9}{method.summary}"
        print(_aligned(rows))


@dataclass(frozen=True)
class DataList:
    """Lists the data sets, and which are ready to use."""

    dir: str | None = None
    """Folder of prepared sets; else $TFDS_DATA_DIR or ~/tensorflow_datasets."""

    def __call__(self) -> None:
        rows = {}
        for entry in data.available(self.dir):
            ready = f"{entry.num_train:,} + {entry.num_test:,} examples" if entry.prepared else "-"
            if entry.damage is not None:
                rows[entry.name] = f"damaged: {' '.join(entry.damage.split())}"
                continue
            rows[entry.name] = f"{ready:<26}  {entry.partition}"
        print(_aligned(rows))


@dataclass(frozen=True)
class DataInfo:
    """Describes a data set."""

    name: Positional[Name]
    """The data set."""

    dir: str | None = None
    """Folder of prepared sets; else $TFDS_DATA_DIR or ~/tensorflow_datasets."""

    def __call__(self) -> None:
        print(_aligned(data.describe(self.name, self.dir)._asdict()))


@dataclass(frozen=True)
class DataPrepare:
    """Downloads a data set and prepares it (needs the extra `tfds-prepare`)."""

    name: Positional[Name]
    """The data set, as tensorflow-datasets calls it."""

    dir: str | None = None
    """Folder of prepared sets; else $TFDS_DATA_DIR or ~/tensorflow_datasets."""

    def __call__(self) -> None:
        print(printable(data.prepare(self.name, self.dir)))


@dataclass(frozen=True)
class Exemplars(MaximizeExemplars):
    """Chooses public images of digits that represent the private ones of all clients."""

    def __call__(self) -> None:
        _start_maximizing(self)


@dataclass(frozen=True)
class Movielens(MaximizeMovielens):
    """Chooses movies such that every user finds one to its taste."""

    def __call__(self) -> None:
        _start_maximizing(self)


@dataclass(frozen=True)
class Sweep(Config):
    """Runs every combination of settings in few programs: `sweep digits lam=0,0.1 prox=0,0.1`."""

    output: str = "sweeps/latest"
    """Folder of the sweep; finished batches found there are not run again."""

    points_per_batch: int | None = None
    """Runs in one program; all by default. Fewer use less memory."""


# The command `run` is the configuration itself.
COMMANDS: dict[str, Any] = {
    "run": Config,
    "sweep": Sweep,
    "resume": Resume,
    "show": Show,
    "maximize exemplars": Exemplars,
    "maximize movielens": Movielens,
    "methods": Methods,
    "data list": DataList,
    "data info": DataInfo,
    "data prepare": DataPrepare,
}


def _dispatch(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    if arguments == ["--version"]:
        print("fedjax-fair", metadata.version("fedjax-fair"))
        return
    words = 2 if arguments[:1] in (["data"], ["maximize"]) else 1
    name, rest = " ".join(arguments[:words]), arguments[words:]
    if name not in COMMANDS and (not arguments or HELP & set(arguments)):
        print(_overview(presets))
    elif (command := lookup("command", name, COMMANDS)) is Config:
        _run(rest, presets)
    elif command is Sweep:
        _sweep(rest, presets)
    else:
        parse(command, rest, name)()


def _overview(presets: Mapping[str, Preset]) -> str:
    commands = {name: command.__doc__.splitlines()[0] for name, command in COMMANDS.items()}
    summaries = {name: preset.summary for name, preset in presets.items()}
    return f"""usage: fedjax-fair COMMAND [OPTIONS]

Simulates fair federated learning.

Commands:
{_aligned(commands, indent="  ")}

Presets, for `fedjax-fair run [PRESET] [OPTIONS]`:
{_aligned(summaries, indent="  ")}

`fedjax-fair COMMAND --help` lists the options of a command, `fedjax-fair --version` the version."""


def _aligned(rows: dict[str, Any], indent: str = "") -> str:
    shown = {printable(name): printable(text) for name, text in rows.items()}
    width = max(map(len, shown))
    return "\n".join(f"{indent}{name:<{width}}  {text}" for name, text in shown.items())


def _run(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    """Makes everything that can go wrong before it makes the run folder."""
    named = bool(arguments) and not arguments[0].startswith("-")
    preset = arguments[0] if named else DEFAULT_PRESET
    config = lookup("preset", preset, presets).config
    options = arguments[named:]
    if HELP & set(options):
        config = resolve(config)  # Show the values that would be used.
    # What the preset sets for methods or data that were replaced is left out; what was typed stays.
    config = relevant(resolve(parse(Config, options, f"run {preset}", config)), base=config)
    if config.distributed:
        processes.initialize()
    ready = build(config)
    name = preset if named else config.data.name.replace("/", "-")
    folder = processes.broadcast_from_first(lambda: str(RunFolder.create(config, name).path))
    _execute(ready, RunFolder(folder))


def _sweep(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    """Runs `sweep [PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]`."""
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(words) :]
    named = bool(words) and "=" not in words[0]
    preset = words[0] if named else DEFAULT_PRESET
    config = lookup("preset", preset, presets).config
    varied = {}
    for word in words[named:]:
        name, _, values = word.partition("=")
        if name in varied:
            raise ValueError(f"{name}: expected once, with values between commas.")
        varied[name] = [read(config, name, text) for text in values.split(",")]
    seeds = [seed for (seed,) in varied.pop("seeds")] if "seeds" in varied else None
    if HELP & set(options):
        config = resolve(config)
    given: dict[str, Any] = {item.name: getattr(config, item.name) for item in fields(Config)}
    start = replace(Sweep(**given), output=f"sweeps/{preset}")
    settings = parse(Sweep, options, f"sweep {preset}", start)
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in given}
    base = relevant(resolve(replace(Config(**chosen), output=config.output)), base=config)
    print(f"Sweep folder: {printable(settings.output)}")
    with _advice("the same command continues"), Termination() as end, Bars() as bars:
        swept = sweep(
            base,
            seeds=seeds,
            folder=settings.output,
            points_per_batch=settings.points_per_batch,
            watch=lambda runs: end.watch(bars.watch(runs)),
            **varied,
        )
    Console().print(*tables(swept))
    output = Path(settings.output)
    _say_where(Results=output / "results.nc", Report=output / "report.html")


def _execute(ready: Experiment, folder: RunFolder) -> None:
    if not processes.is_first():
        experiment.execute(ready, folder)
        return
    print(f"Run folder: {printable(folder.path)}")
    with _resumable(folder), Termination() as end, Bars() as bars:
        combined = experiment.execute(ready, folder, lambda method: end.watch(bars.watch(method)))
    Console().print(*tables(combined))
    _say_where(Results=folder.results, Plots=folder.plots, Report=folder.report)


def _resumable(folder: RunFolder) -> contextlib.AbstractContextManager[None]:
    return _advice(f"`fedjax-fair resume {shlex.quote(str(folder.path))}` continues")


def _start_maximizing(config: Maximize) -> None:
    task = maximize.task_of(config)
    maximize.check(config, task)
    _maximize(task, config, RunFolder.create(config, task.name.replace("/", "-")))


def _maximize(task: maximize.Task, config: Maximize, folder: RunFolder) -> None:
    print(f"Run folder: {printable(folder.path)}")
    with _resumable(folder), Termination(at_once=True):
        compared = maximize.execute(task, config, folder)
    Console().print(*tables(compared))
    _say_where(Results=folder.results, Plots=folder.plots, Report=folder.report)


def _say_where(**files: Path) -> None:
    for name, path in files.items():
        print(f"{name}: {printable(path)}")
