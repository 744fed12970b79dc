"""The command line, ``fedjax-fair``.

Every command is a frozen dataclass whose fields are its options; ``run`` is the configuration
itself, on top of a preset.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import jax
import platformdirs
import tyro
from rich.console import Console
from tyro.conf import Positional

from fedjax_fair import data, results
from fedjax_fair.app import experiment, maximize, registry
from fedjax_fair.app.build import (
    Experiment,
    batch_size,
    build,
    load_data,
    method_settings,
    relevant,
    server_sees,
)
from fedjax_fair.app.config import (
    Config,
    DataConfig,
    Maximize,
    MaximizeExemplars,
    MaximizeMovielens,
)
from fedjax_fair.app.console import compared_table, tables
from fedjax_fair.app.logs import Logged, require
from fedjax_fair.app.options import HELP, integers, parse
from fedjax_fair.app.presets import PRESETS, Preset, resolve
from fedjax_fair.app.progress import watching, working
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import described, lookup, places, read
from fedjax_fair.app.sweep import sweep
from fedjax_fair.app.termination import Terminated, Termination, interruptible
from fedjax_fair.parallel import processes
from fedjax_fair.report import plots
from fedjax_fair.results.comparison import headlines
from fedjax_fair.text import printable
from fedjax_fair.training.fit import Callback, SimulationError

__all__ = ["main", "program"]

DEFAULT_PRESET = "digits"

RunPath = Annotated[str, tyro.conf.arg(metavar="RUN")]
RunPaths = Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]
Output = Annotated[str | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")]
Logs = tuple[str, ...]
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
class Run(Config):
    """Compares methods, and leaves a folder with results, figures and a report."""

    quiet: bool = False
    """Show no progress."""

    log: Logs = ()
    """Tools that get evaluations too: tensorboard, wandb, mlflow; each needs its extra."""


@dataclass(frozen=True)
class ResumeTraining:
    """How long."""

    rounds: int | None = None
    """Rounds that the run is extended to; as many as it was started with by default."""


@dataclass(frozen=True)
class Resume:
    """Continues a run that was interrupted, or a finished one for longer."""

    run: Positional[RunPath]
    """The run folder."""

    quiet: bool = False
    """Show no progress."""

    log: Logs = ()
    """Tools that get evaluations too: tensorboard, wandb, mlflow; each needs its extra."""

    training: ResumeTraining = field(default_factory=ResumeTraining)

    def __call__(self) -> None:
        folder = RunFolder(self.run)
        config = folder.config()
        rounds = self.training.rounds
        if isinstance(config, Config) and rounds is not None:
            before = config.training.rounds
            if before is not None and rounds < before:
                raise ValueError(
                    f"training.rounds={rounds}: expected at least the {before} of the run."
                )
            config = replace(config, training=replace(config.training, rounds=rounds))
        if isinstance(config, Maximize):
            if rounds is not None:
                raise ValueError(f"training.rounds={rounds}: nothing in this run reads it.")
            if self.log:
                raise ValueError(f"log={self.log!r}: expected none; a maximization has no rounds.")
            _maximize(maximize.task_of(config), config, folder, quiet=self.quiet)
            return
        _require_logs(self.log)
        if config.distributed:
            processes.initialize()
        _execute(build(config), folder, self.log, quiet=self.quiet)


@dataclass(frozen=True)
class Show:
    """Prints the table of a run again."""

    run: Positional[RunPath]
    """The run folder, or a results.nc."""

    def __call__(self) -> None:
        dataset = results.open(self.run)
        try:
            shown = tables(dataset)
        except ValueError as error:
            raise ValueError(f"run={self.run!r}: {error}") from None
        Console().print(*shown)


@dataclass(frozen=True)
class Compare:
    """Says which differences between methods are beyond chance, within a run or across several."""

    runs: Positional[RunPaths]
    """Run folders, or files results.nc, on the same data."""

    baseline: str | None = None
    """The method that others are compared to; by default the first."""

    metrics: tuple[str, ...] = ()
    """Metrics to compare by; by default accuracy, and how evenly clients are served."""

    unpaired: bool = False
    """Compare runs of different seeds, which finds less."""

    last: int = 1
    """Evaluations at the end of a run whose mean counts."""

    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """How tables are written; LaTeX needs the package booktabs."""

    def __call__(self) -> None:
        if not self.runs:
            raise ValueError("compare: expected one or more run folders.")
        names = [Path(run).name for run in self.runs]
        labels = names if len(set(names)) == len(names) else self.runs
        opened = {label: results.open(run) for label, run in zip(labels, self.runs, strict=True)}
        found, usual = headlines(results.merge_runs(opened))
        written = []
        for metric in self.metrics or usual:
            compared = results.compare(
                found, metric, self.baseline, paired=not self.unpaired, last=self.last
            )
            if self.format == "terminal":
                Console().print(compared_table(compared))
            else:
                written.append(results.to_text(compared, self.format))
        if self.format == "csv":  # One table of all metrics.
            written[1:] = [text.partition("\n")[2] for text in written[1:]]
        print(*written, sep="" if self.format == "csv" else "\n", end="")


@dataclass(frozen=True)
class Methods:
    """Lists methods: how each averages its cohort, and what its server sees of one client."""

    def __call__(self) -> None:
        rows = {"method": f"{'weights':<9}{'server sees':<13}what it is"}
        for name, method in registry.METHODS.items():
            weights = "its own" if method.aggregator else "-" if method.pooled else method.average
            rows[name] = f"{weights:<9}{server_sees(method):<13}{method.summary}"
        print(_aligned(rows))


@dataclass(frozen=True)
class Folder:
    """Where data is."""

    dir: str | None = None
    """Folder of prepared sets, or of original files; else $TFDS_DATA_DIR or
    ~/tensorflow_datasets."""


@dataclass(frozen=True)
class DataList:
    """Lists the data sets, and which are ready to use."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        rows = {}
        for entry in data.available(self.data.dir):
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

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        print(_aligned(data.describe(self.name, self.data.dir)._asdict()))


@dataclass(frozen=True)
class DataShow:
    """Describes a federation before any training, and draws who owns what."""

    data: DataConfig = field(default_factory=DataConfig)

    output: Output = None
    """File of the picture, such as partition.png."""

    def __call__(self) -> None:
        # Settings that are the default's own, for another partition, are none of this one.
        config = relevant(resolve(Config(data=self.data)), base=Config())
        federation = load_data(config)
        print(federation)
        if self.output is not None:
            plots.partition(federation).savefig(self.output, dpi=150)
            print(f"Picture: {printable(self.output)}")


@dataclass(frozen=True)
class DataPrepare:
    """Downloads a data set and prepares it (needs the extra `tfds-prepare`)."""

    name: Positional[Name]
    """The data set, as tensorflow-datasets calls it."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        print(printable(data.prepare(self.name, self.data.dir)))


@dataclass(frozen=True)
class Exemplars(MaximizeExemplars):
    """Chooses public images of digits that represent the private ones of all clients."""

    quiet: bool = False
    """Show no progress."""

    def __call__(self) -> None:
        _start_maximizing(_plain(MaximizeExemplars, self), quiet=self.quiet)


@dataclass(frozen=True)
class Movielens(MaximizeMovielens):
    """Chooses movies such that every user finds one to its taste."""

    quiet: bool = False
    """Show no progress."""

    def __call__(self) -> None:
        _start_maximizing(_plain(MaximizeMovielens, self), quiet=self.quiet)


@dataclass(frozen=True)
class Sweep(Config):
    """Runs every combination of settings in few programs: `sweep digits lam=0,0.1 prox=0,0.1`."""

    output: str = "sweeps/latest"
    """Folder of the sweep; finished batches found there are not run again."""

    points_per_batch: int | None = None
    """Runs in one program; all by default. Fewer use less memory."""

    quiet: bool = False
    """Show no progress."""


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


def _dispatch(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    if arguments == ["--version"]:
        print("fedjax-fair", metadata.version("fedjax-fair"))
        return
    words = 2 if arguments[:1] in (["data"], ["maximize"]) else 1
    name, rest = " ".join(arguments[:words]), arguments[words:]
    if name not in COMMANDS and (not arguments or HELP & set(arguments)):
        print(_overview(presets))
    elif (command := lookup("command", name, COMMANDS)) is Run:
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

`fedjax-fair COMMAND --help` lists the options of a command,
`fedjax-fair --version` the version."""


def _aligned(rows: dict[str, Any], indent: str = "") -> str:
    """Names beside texts, which are broken where the terminal ends."""
    shown = {printable(name): printable(text) for name, text in rows.items()}
    width = max(map(len, shown))
    columns = max(40, shutil.get_terminal_size().columns - width - len(indent) - 2)
    lines = []
    for name, text in shown.items():
        # Spaces that align a second column stay.
        broken = textwrap.wrap(
            text,
            columns,
            replace_whitespace=False,
            break_long_words=False,  # Paths are copied.
            break_on_hyphens=False,
        ) or [""]
        lines += [f"{indent}{name:<{width}}  {broken[0]}"]
        lines += [f"{indent}{'':<{width}}  {line}" for line in broken[1:]]
    return "\n".join(lines)


def _run(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    """Makes everything that can go wrong before it makes the run folder."""
    named = bool(arguments) and not arguments[0].startswith("-")
    preset = arguments[0] if named else DEFAULT_PRESET
    config = lookup("preset", preset, presets).config
    options = arguments[named:]
    if HELP & set(options):
        config = resolve(config)  # Show the values that would be used.
    # What the preset sets for methods or data that were replaced is left out; what was typed stays.
    typed = parse(Run, options, f"run {preset}", Run(**_fields(Config, config)))
    config = relevant(resolve(_plain(Config, typed)), base=config)
    _require_logs(typed.log)
    if config.distributed:
        processes.initialize()
    ready = build(config)
    name = preset if named else config.data.name.replace("/", "-")
    folder = processes.broadcast_from_first(lambda: str(RunFolder.create(config, name).path))
    _execute(ready, RunFolder(folder), typed.log, quiet=typed.quiet)


def _fields(kind: Any, settings: Any) -> dict[str, Any]:
    return {item.name: getattr(settings, item.name) for item in fields(kind)}


def _plain(kind: Any, typed: Any) -> Any:
    """What a run is made of, without what is typed beside it."""
    return kind(**_fields(kind, typed))


def _require_logs(names: Logs) -> None:
    for name in names:
        require(name)


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
        texts = integers(values) if name == "seeds" else values.split(",")
        varied[name] = [read(config, name, text) for text in texts]
    seeds = [seed for (seed,) in varied.pop("seeds")] if "seeds" in varied else None
    if HELP & set(options):
        config = resolve(config)
        print(f"NAME=VALUE,VALUE varies a setting:\n{_aligned(_varied(config), indent='  ')}\n")
    start = replace(Sweep(**_fields(Config, config)), output=f"sweeps/{preset}")
    settings = parse(Sweep, options, f"sweep {preset}", start)
    chosen = replace(_plain(Config, settings), output=config.output)
    base = relevant(resolve(chosen), base=config)
    print(f"Sweep folder: {printable(settings.output)}")
    own = None if any("batch_size" in name for name in varied) else base.solver.batch_size
    with (
        _advice("the same command continues"),
        Termination() as end,
        watching(quiet=settings.quiet) as show,
    ):
        swept = sweep(
            base,
            seeds=seeds,
            folder=settings.output,
            points_per_batch=settings.points_per_batch,
            watch=lambda runs: end.watch(show(runs, own)),
            **varied,
        )
    Console().print(*tables(swept))
    output = Path(settings.output)
    _say_where(Results=output / "results.nc", Report=output / "report.html")


def _varied(config: Config) -> dict[str, str]:
    """The settings that a sweep of these methods can vary, and what they are."""
    found = {"seeds": "Runs of every point, such as 0,1,2 or 0:10."}
    own = {place: name for name, place in places(config).items() if "." not in name}
    for method in config.methods:
        for section, settings in method_settings(config, method).items():
            for setting in settings.values():
                name = own.get((section, setting.name), f"{section}.{setting.name}")
                found.setdefault(name, f"{setting.meaning} ({described(setting.kind)})")
    return found


def _execute(ready: Experiment, folder: RunFolder, logs: Logs, *, quiet: bool) -> None:
    if not processes.is_first():
        experiment.execute(ready, folder)
        return
    print(f"Run folder: {printable(folder.path)}")
    with _resumable(folder), Termination() as end, watching(quiet=quiet) as show:

        def watch(method: str) -> list[Callback]:
            shown = show(method, batch_size(ready.config, method))
            return [*(Logged(name, folder.path, method) for name in logs), end.watch(shown)]

        combined = experiment.execute(ready, folder, watch)
    Console().print(*tables(combined))
    _say_where(Results=folder.results, Plots=folder.plots, Report=folder.report)


def _resumable(folder: RunFolder) -> contextlib.AbstractContextManager[None]:
    return _advice(f"`fedjax-fair resume {shlex.quote(str(folder.path))}` continues")


def _start_maximizing(config: Maximize, *, quiet: bool) -> None:
    task = maximize.task_of(config)
    maximize.check(config, task)
    folder = RunFolder.create(config, task.name.replace("/", "-"))
    _maximize(task, config, folder, quiet=quiet)


def _maximize(task: maximize.Task, config: Maximize, folder: RunFolder, *, quiet: bool) -> None:
    print(f"Run folder: {printable(folder.path)}")
    with _resumable(folder), Termination(at_once=True), working(quiet=quiet) as show:
        compared = maximize.execute(task, config, folder, show)
    Console().print(*tables(compared))
    _say_where(Results=folder.results, Plots=folder.plots, Report=folder.report)


def _say_where(**files: Path) -> None:
    for name, path in files.items():
        print(f"{name}: {printable(path)}")
