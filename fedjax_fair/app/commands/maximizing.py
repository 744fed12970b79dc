"""Commands of federated maximization."""

from __future__ import annotations

from dataclasses import dataclass

from fedjax_fair.app import maximize
from fedjax_fair.app.commands.common import fields_of, print_output_paths, resumable
from fedjax_fair.app.config import Maximize, MaximizeExemplars, MaximizeMovielens
from fedjax_fair.app.console import print_tables
from fedjax_fair.app.progress import show_steps
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.termination import Termination
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["Exemplars", "Movielens", "maximize_in"]


@dataclass(frozen=True)
class _Command:
    quiet: bool = False
    """Show no progress."""

    def __call__(self) -> None:
        kind = MaximizeExemplars if isinstance(self, MaximizeExemplars) else MaximizeMovielens
        config = kind(**fields_of(kind, self))
        task = maximize.task_of(config)
        maximize.check(config, task)
        folder = RunFolder.create(config, task.name.replace("/", "-"))
        maximize_in(task, config, folder, quiet=self.quiet)


@dataclass(frozen=True)
class Exemplars(_Command, MaximizeExemplars):
    """Selects public images of digits that represent the private images of all clients."""


@dataclass(frozen=True)
class Movielens(_Command, MaximizeMovielens):
    """Selects movies so that every user likes one of them."""


def maximize_in(task: maximize.Task, config: Maximize, folder: RunFolder, *, quiet: bool) -> None:
    """Compares all methods on a task in a folder, and prints the results."""
    print(f"Run folder: {escape_control_chars(folder.path)}")
    with resumable(folder), Termination(at_once=True), show_steps(quiet=quiet) as show:
        compared = maximize.execute(task, config, folder, show)
    print_tables(compared)
    print_output_paths(Results=folder.results, Plots=folder.plots, Report=folder.report)
