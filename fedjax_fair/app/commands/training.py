"""Commands that train or plan: ``run``, ``resume``, ``sweep`` and ``plan``."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

from fedjax_fair.app import experiment
from fedjax_fair.app.build import build
from fedjax_fair.app.commands.common import interrupt_hint, print_output_paths, resumable
from fedjax_fair.app.commands.maximizing import maximize_in
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.dry_run import as_json, format_plan, plans, print_dry_run
from fedjax_fair.app.experiment_data import Experiment
from fedjax_fair.app.maximization_tasks import task_of
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.run_groups import groups_of, plan_sweep
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.config import Config, Maximize
from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.app.settings.names import change
from fedjax_fair.app.settings.request import Request
from fedjax_fair.app.sweep import sweep, sweep_folder
from fedjax_fair.app.terminal.console import print_tables
from fedjax_fair.app.terminal.logs import LoggerCallback, check_logger
from fedjax_fair.app.terminal.progress import show_training
from fedjax_fair.app.terminal.termination import Termination
from fedjax_fair.parallel import processes
from fedjax_fair.planning import machines
from fedjax_fair.training.batch import check_debugging
from fedjax_fair.training.loop import Callback
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["resume", "run", "run_plan", "run_sweep"]


def run(wanted: Request) -> None:
    """Runs ``run [PRESET] [OPTIONS]``."""
    options, config = wanted.options, wanted.config
    _prepare(config, options.log)
    if options.dry_run:
        print_dry_run(config, groups_of(config))
        return
    ready = build(config)
    num_clients = ready.data.num_clients
    folder = processes.broadcast_from_main(
        lambda: str(RunFolder.create(config, wanted.name, num_clients).path)
    )
    _execute(ready, RunFolder(folder), options)


def run_sweep(wanted: Request) -> None:
    """Runs ``sweep [PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]``."""
    options, varied = wanted.options, wanted.varied
    config = replace(wanted.config, output=Config.output)
    if options.dry_run:
        if options.runs_per_batch is not None:  # `sweep` checks it, too.
            checks.positive_int("runs_per_batch", options.runs_per_batch)
        config, axes, groups = plan_sweep(config, varied, seeds=wanted.seeds)
        print_dry_run(config, groups, axes)
        return
    folder = sweep_folder(options.output, wanted.name, config, varied, wanted.seeds)
    print(f"Sweep folder: {escape_control_chars(folder)}")
    with (
        interrupt_hint("the same command continues"),
        Termination() as end,
        show_training(quiet=options.quiet) as show,
    ):
        swept = sweep(
            config,
            seeds=wanted.seeds,
            folder=folder,
            runs_per_batch=options.runs_per_batch,
            callback_fn=lambda runs: [show(runs), end],
            **varied,
        )
    print_tables(swept)
    print_output_paths(Results=folder / "results.nc", Report=folder / "report.html")


def run_plan(wanted: Request) -> None:
    """Runs ``plan [PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]``."""
    options, config = wanted.options, wanted.config
    machine = memory = None
    if options.machine.casefold() == "local":
        mesh = mesh_of(config.devices)
    else:
        machine = machines.find(options.machine, plugins.collect("machines", machines.kinds()))
        machines.prepare(machine)
        mesh = mesh_of(config.devices, machines.devices_of(machine))
        memory, config = machine.memory, replace(config, devices=1)
    is_sweep = bool(wanted.varied or wanted.seeds)
    if is_sweep:
        _, _, groups = plan_sweep(config, wanted.varied, seeds=wanted.seeds, memory=memory)
    else:
        groups = groups_of(config, memory=memory)
    estimates = dict(plans(groups, machine, mesh, train_loss=not is_sweep))
    if options.json:
        print(json.dumps(as_json(machine, estimates), indent=2))
    else:
        print(format_plan(machine, estimates))


def resume(options: Any) -> None:
    """Runs ``resume RUN [OPTIONS]``; the options are an `options.Resume`."""
    folder, rounds = RunFolder(options.run), options.training.rounds
    config = folder.config()
    if isinstance(config, Maximize):
        if rounds is not None or options.log or options.allow_changed_code:
            raise ValueError(
                "training.rounds, log and allow_changed_code are not used by a maximization."
            )
        maximize_in(task_of(config), config, folder, quiet=options.quiet)
        return
    if rounds is not None:
        if rounds < (config.training.rounds or 0):
            raise ValueError(
                f"training.rounds={rounds}: expected at least the {config.training.rounds} of "
                "the run."
            )
        if rounds != config.training.rounds:
            _check_extensible(config)
        config = change(config, "training", "rounds", rounds)
    _prepare(config, options.log)
    _execute(build(config), folder, options, allow_changed_code=options.allow_changed_code)


def _check_extensible(config: Config) -> None:
    for name in config.methods:
        if "training.rounds" in resolve_method(config, name)[0].linked_settings.values():
            raise ValueError(
                f"training.rounds: expected the {config.training.rounds} of the run, on which all "
                f"rounds of {name} depend; start another run with more rounds."
            )


def _prepare(config: Config, loggers: tuple[str, ...]) -> None:
    check_debugging()
    for name in loggers:
        check_logger(name)
    if config.distributed:
        processes.initialize()


def _execute(
    ready: Experiment,
    folder: RunFolder,
    options: Any,
    *,
    allow_changed_code: bool = False,
) -> None:
    execute = partial(experiment.execute, ready, folder, allow_changed_code=allow_changed_code)
    if not processes.is_main_process():
        execute()
        return
    print(f"Run folder: {escape_control_chars(folder.path)}")
    place_fn = partial(experiment.describe_place, ready, folder)
    if folder.checkpoints.exists() and (place := place_fn()):
        print(f"The run continues{escape_control_chars(place)}.")
    with (
        resumable(folder, place_fn),
        Termination(saves=True) as end,
        show_training(quiet=options.quiet) as show,
    ):

        def callback_fn(method: str) -> list[Callback]:
            trackers = [LoggerCallback(name, folder.path, method) for name in options.log]
            return [*trackers, show(method), end]

        combined = execute(callback_fn)
    print_tables(combined)
    print_output_paths(Results=folder.results, Plots=folder.plots, Report=folder.report)
