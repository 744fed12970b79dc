"""Commands that train: a run, its continuation, a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tyro.conf import Positional

from fedjax_fair.app import experiment, maximize
from fedjax_fair.app.build import Experiment, batch_size, build
from fedjax_fair.app.commands.common import (
    RunPath,
    fields_of,
    interrupt_hint,
    plain,
    print_output_paths,
    resumable,
)
from fedjax_fair.app.commands.maximizing import maximize_in
from fedjax_fair.app.commands.request import request
from fedjax_fair.app.config import Config, Maximize
from fedjax_fair.app.console import print_tables
from fedjax_fair.app.dry_run import as_toml, costs, costs_of_sweep
from fedjax_fair.app.logs import LoggerCallback, require
from fedjax_fair.app.options import HELP, parse
from fedjax_fair.app.presets import Preset, resolve
from fedjax_fair.app.progress import show_training
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import describe_type, places
from fedjax_fair.app.sweep import plan_sweep, sweep
from fedjax_fair.app.termination import Termination
from fedjax_fair.app.variants import drop_unused_settings, method_settings
from fedjax_fair.parallel import processes
from fedjax_fair.text import escape_control_chars, format_columns
from fedjax_fair.training.fit import Callback

__all__ = ["Resume", "Run", "Sweep", "run", "sweep_settings"]

Logs = tuple[str, ...]


@dataclass(frozen=True)
class Run(Config):
    """Compares methods, and leaves a folder with results, figures and a report."""

    config: str | None = None
    """File of settings, TOML or the config.json of a run; what is typed besides counts more."""

    dry_run: bool = False
    """Print the configuration, what would be compiled and what memory it takes, and stop."""

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
            maximize_in(maximize.task_of(config), config, folder, quiet=self.quiet)
            return
        _check_logs(self.log)
        if config.distributed:
            processes.initialize()
        _execute(build(config), folder, self.log, quiet=self.quiet)


@dataclass(frozen=True)
class Sweep(Config):
    """Runs every combination of settings in few programs: `sweep digits lam=0,0.1 prox=0,0.1`."""

    config: str | None = None
    """File of settings, TOML or the config.json of a run; what is typed besides counts more."""

    dry_run: bool = False
    """Print the configuration, what would be compiled and what memory it takes, and stop."""

    output: str = "sweeps/latest"
    """Folder of the sweep; finished batches found there are not run again."""

    runs_per_batch: int | None = None
    """Runs in one program; all by default. Fewer use less memory."""

    quiet: bool = False
    """Show no progress."""


def run(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    """Makes everything that can go wrong before it makes the run folder."""
    wanted = request(arguments, presets)
    # What the preset sets for methods or data that were replaced is left out; what a file or a
    # person says stays.
    default = Run(**fields_of(Config, wanted.start))
    typed = parse(Run, [*wanted.words, *wanted.options], f"run {wanted.preset}", default)
    config = drop_unused_settings(resolve(plain(Config, typed)), base=wanted.base)
    _check_logs(typed.log)
    if config.distributed:
        processes.initialize()
    ready = build(config)
    if typed.dry_run:
        _print_dry_run(config, costs(ready))
        return
    name = wanted.preset if wanted.named else config.data.name.replace("/", "-")
    folder = processes.broadcast_from_main(lambda: str(RunFolder.create(config, name).path))
    _execute(ready, RunFolder(folder), typed.log, quiet=typed.quiet)


def sweep_settings(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    """Runs `sweep [PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]`."""
    wanted = request(arguments, presets)
    if HELP & set(wanted.options):
        varied = format_columns(_varied(wanted.start), indent="  ")
        print(f"NAME=VALUE,VALUE varies a setting:\n{varied}\n")
    default = Sweep(**fields_of(Config, wanted.start))
    default = replace(default, output=f"sweeps/{wanted.preset}")
    settings = parse(Sweep, wanted.options, f"sweep {wanted.preset}", default)
    chosen = replace(plain(Config, settings), output=wanted.start.output)
    base = drop_unused_settings(resolve(chosen), base=wanted.base)
    varied, seeds = wanted.varied()
    if settings.dry_run:
        config, _, groups = plan_sweep(base, varied, seeds=seeds)
        _print_dry_run(config, costs_of_sweep(groups))
        return
    print(f"Sweep folder: {escape_control_chars(settings.output)}")
    own = None if any("batch_size" in name for name in varied) else base.solver.batch_size
    with (
        interrupt_hint("the same command continues"),
        Termination() as end,
        show_training(quiet=settings.quiet) as show,
    ):
        swept = sweep(
            base,
            seeds=seeds,
            folder=settings.output,
            runs_per_batch=settings.runs_per_batch,
            callback_fn=lambda runs: end.wrap(show(runs, own)),
            **varied,
        )
    print_tables(swept)
    output = Path(settings.output)
    print_output_paths(Results=output / "results.nc", Report=output / "report.html")


def _print_dry_run(config: Config, found: dict[str, str]) -> None:
    print(as_toml(config))
    print(*(f"# {line}" for line in format_columns(found).splitlines()), sep="\n")


def _check_logs(names: Logs) -> None:
    for name in names:
        require(name)


def _varied(config: Config) -> dict[str, str]:
    """The settings that a sweep of these methods can vary, and what they are."""
    found = {"seeds": "Runs of every configuration, such as 0,1,2 or 0:10."}
    own = {place: name for name, place in places(config).items() if "." not in name}
    for method in config.methods:
        for section, settings in method_settings(config, method).items():
            for setting in settings.values():
                name = own.get((section, setting.name), f"{section}.{setting.name}")
                found.setdefault(name, f"{setting.help} ({describe_type(setting.type)})")
    return found


def _execute(ready: Experiment, folder: RunFolder, logs: Logs, *, quiet: bool) -> None:
    if not processes.is_main_process():
        experiment.execute(ready, folder)
        return
    print(f"Run folder: {escape_control_chars(folder.path)}")
    with resumable(folder), Termination() as end, show_training(quiet=quiet) as show:

        def callback_fn(method: str) -> list[Callback]:
            shown = show(method, batch_size(ready.config, method))
            return [*(LoggerCallback(name, folder.path, method) for name in logs), end.wrap(shown)]

        combined = experiment.execute(ready, folder, callback_fn)
    print_tables(combined)
    print_output_paths(Results=folder.results, Plots=folder.plots, Report=folder.report)
