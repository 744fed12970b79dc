"""Commands of federated maximization."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedjax_fair.app import maximize
from fedjax_fair.app.commands.common import print_output_paths, resumable
from fedjax_fair.app.maximization_tasks import Task, task_of
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings.config import Maximize
from fedjax_fair.app.terminal.console import print_tables
from fedjax_fair.app.terminal.progress import show_steps
from fedjax_fair.app.terminal.termination import Termination
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["maximize_in", "run_maximization"]


def run_maximization(config: Maximize, *, quiet: bool) -> None:
    """Runs ``maximize``."""
    config = _absolute(config)
    task = task_of(config)
    maximize.check(config, task)
    maximize_in(task, config, RunFolder.create(config, task.name.replace("/", "-")), quiet=quiet)


def maximize_in(task: Task, config: Maximize, folder: RunFolder, *, quiet: bool) -> None:
    """Compares all methods on a task in a folder, and prints the results."""
    print(f"Run folder: {escape_control_chars(folder.path)}")
    with resumable(folder), Termination(at_once=True), show_steps(quiet=quiet) as show:
        compared = maximize.execute(task, config, folder, show)
    print_tables(compared)
    print_output_paths(Results=folder.results, Plots=folder.plots, Report=folder.report)


def _absolute(config: Maximize) -> Maximize:
    """Makes paths absolute, so that the run can be resumed from another folder."""
    paths = {"matroid": config.matroid} if config.matroid.endswith(".json") else {}
    if (file := getattr(config, "file", None)) is not None:
        paths["file"] = file
    return replace(
        config, **{name: str(Path(path).expanduser().absolute()) for name, path in paths.items()}
    )
