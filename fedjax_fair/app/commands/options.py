"""Options of the commands that train or plan; what they do is imported once options are valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro
from typing_extensions import Doc
from tyro.conf import Positional

from fedjax_fair.app.settings.command_line import fields_of
from fedjax_fair.app.settings.config import (
    Config,
    MaximizeExemplars,
    MaximizeFeatures,
    MaximizeMovielens,
    MaximizeScores,
)
from fedjax_fair.app.settings.setting import default_hint

__all__ = ["Contributions", "Exemplars", "Movielens", "Plan", "Resume", "Run", "RunPath", "Sweep"]

RunPath = Annotated[str, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class _Configured(Config):
    config: Annotated[str | None, default_hint()] = None
    """File of settings, TOML or config.json of a run. Command-line options take precedence."""


@dataclass(frozen=True)
class _Training(_Configured):
    dry_run: bool = False
    """Print the configuration and the costs, and stop."""

    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class Run(_Training):
    """Compares methods, and writes a folder with results, figures and a report."""

    log: Annotated[tuple[str, ...], default_hint("none")] = ()
    """Experiment trackers: tensorboard, wandb, mlflow; each needs the extra of its name."""


@dataclass(frozen=True)
class ResumeTraining:
    """Number of rounds."""

    rounds: Annotated[int | None, default_hint("those of the run")] = None
    """Rounds that the run is extended to."""


@dataclass(frozen=True)
class Resume:
    """Continues an interrupted run, or extends a finished one."""

    run: Positional[RunPath]
    """The run folder."""

    quiet: bool = False
    """Show no progress."""

    log: Annotated[tuple[str, ...], default_hint("none")] = ()
    """Experiment trackers: tensorboard, wandb, mlflow; each needs the extra of its name."""

    allow_changed_code: bool = False
    """Continue although a plugin, or a file that it imports, has changed since the checkpoints."""

    training: ResumeTraining = field(default_factory=ResumeTraining)

    def __call__(self) -> None:
        from fedjax_fair.app.commands.training import resume

        resume(self)


@dataclass(frozen=True)
class Sweep(_Training):
    """Runs all combinations of settings, as in `sweep digits lam=0,0.1 prox=0,0.1`."""

    output: str = "sweeps"
    """Folder in which the sweep folder is created; the same command continues the sweep."""

    runs_per_batch: Annotated[int | None, default_hint("all that fit into memory")] = None
    """Runs that are compiled together."""


@dataclass(frozen=True)
class Plan(_Configured):
    """Estimates memory and costs of a run or a sweep: `plan mnist --machine h100`."""

    machine: Annotated[
        str,
        Doc(
            "Target, which need not be available: h100, a100 or l4, by a program for the CPU; "
            "v5e:1x1, v5e:2x2, v5p:2x2x1 or h200, by its compiler, which must be installed; or "
            "local, where three rounds of each method are run and timed."
        ),
    ] = "local"

    json: bool = False
    """Print bytes, seconds and FLOPs as JSON."""


@dataclass(frozen=True)
class Contributions(_Configured):
    """Computes exact Shapley values of clients by training with every coalition."""

    methods: tuple[str, ...] = ("fedavg",)
    """Methods that coalitions train by, which select clients at random, or all."""

    output: str = "contributions"
    """Folder in which the folder of results is created; the same command continues its work."""

    metric: Annotated[str | None, default_hint("that of pooled test examples")] = None
    """Metric that clients contribute to; `fedjax-fair metrics` lists them."""

    runs_per_batch: int = 256
    """Most trainings that are compiled together."""

    approximations: bool = False
    """Compare leave-one-out, numbers of examples and GTG-Shapley with the exact values."""

    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class _Maximization:
    quiet: bool = False
    """Show no progress."""

    def __call__(self) -> None:
        from fedjax_fair.app.commands.maximizing import run_maximization

        kind = next(each for each in type(self).mro() if each.__name__.startswith("Maximize"))
        run_maximization(kind(**fields_of(kind, self)), quiet=self.quiet)


@dataclass(frozen=True)
class Exemplars(_Maximization, MaximizeExemplars):
    """Selects public images of digits that represent the private images of all clients."""


@dataclass(frozen=True)
class Features(_Maximization, MaximizeFeatures):
    """Selects features that inform most about the label, on every client."""


@dataclass(frozen=True)
class Movielens(_Maximization, MaximizeMovielens):
    """Selects movies so that every user likes one of them."""


@dataclass(frozen=True)
class Scores(_Maximization, MaximizeScores):
    """Selects columns of a table with the scores of clients: facility location or coverage."""
