"""Presets and defaults of data sets.

The settings of published tables are in ``experiments/reproduction/presets.py``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_fair.app.config import (
    AggregatorConfig,
    Config,
    DataConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.app.overview import PRESETS as SUMMARIES
from fedjax_fair.data import get_source

__all__ = ["PRESETS", "Preset", "resolve"]


class Preset(NamedTuple):
    """A configuration, in which None stands for the default of the data set."""

    summary: str
    config: Config


_GROUPS = Config(
    data=DataConfig(name="digits", partition="planted_clusters", clusters="digits"),
    model=ModelConfig(name="mlp"),
    solver=SolverConfig(learning_rate=0.1, batch_size=10, epochs=5, prox=0.1),
    selector=SelectorConfig(cohort_size=4),
    aggregator=AggregatorConfig(num_clusters=2),
    training=TrainingConfig(rounds=60, eval_every=5),
)
"""Digits of ten clients in two groups, four of which have the digits 0 to 3."""

_SELECTORS = ("power_of_choice", "divfl", "subtrunc", "unionfl", "clustered_by_similarity")
_BASELINES = ("fedprox", "clustered_by_similarity", "power_of_choice", "fairfed", "gifair")
_CROSSED = (name for each in _SELECTORS for name in (each, f"{each}+equitable"))

PRESETS: dict[str, Preset] = {
    "groups": Preset(
        SUMMARIES["groups"],
        replace(
            _GROUPS,
            methods=("fedprox", "equitable", "divfl", "divfl+equitable"),
            data=replace(_GROUPS.data, partition_per_seed=True),
            training=TrainingConfig(rounds=20, eval_every=5, seeds=tuple(range(12))),
        ),
    ),
    "digits": Preset(
        SUMMARIES["digits"],
        Config(model=ModelConfig(hidden=(64,))),
    ),
    "mnist": Preset(SUMMARIES["mnist"], Config(data=DataConfig(name="mnist"))),
    "cifar10": Preset(
        SUMMARIES["cifar10"],
        Config(data=DataConfig(name="cifar10"), training=TrainingConfig(eval_every=20)),
    ),
    "equitable": Preset(
        SUMMARIES["equitable"],
        replace(_GROUPS, methods=("centralized:epochs=1", *_BASELINES, "equitable")),
    ),
    "cross": Preset(
        SUMMARIES["cross"],
        replace(_GROUPS, methods=("fedprox", "equitable", *_CROSSED)),
    ),
    "shakespeare": Preset(
        SUMMARIES["shakespeare"],
        Config(
            methods=("fedavg", "fedavg:weights=uniform", "power_of_choice", "tilted", "q_fedavg"),
            data=DataConfig(name="shakespeare", clients=30, length=40),
            model=ModelConfig(layers=1, width=128),
            selector=SelectorConfig(cohort_size=6),
            training=TrainingConfig(rounds=60, eval_every=20, seeds=tuple(range(5))),
        ),
    ),
}
"""Presets of ``fedjax-fair run NAME``."""


def resolve(config: Config) -> Config:
    """Replaces None by the defaults of the data set.

    Local steps replace the default epochs. Evaluations are after every tenth of the rounds. A
    leading ``~`` of folders is expanded; that of the data becomes absolute.

    Examples:
        >>> config = resolve(Config(data=DataConfig(name="mnist")))
        >>> config.model.name, config.training.rounds, config.training.eval_every
        ('lenet', 100, 10)
    """
    if config.data.file is not None:
        # A file has the defaults of digits, which also fit a small data set.
        source, data = get_source("digits"), _of_file(config.data, config.data.file)
    else:
        source = get_source(config.data.name)
        data = _fill(config.data, partition=source.partition.__name__)
    if (
        data.file is None and data.partition != "planted_clusters"
    ):  # Which determines the number of clients.
        data = _fill(data, clients=source.num_clients)
    if data.dir is not None:
        data = replace(data, dir=str(Path(data.dir).expanduser().absolute()))
    solver = _fill(config.solver, learning_rate=source.learning_rate, batch_size=source.batch_size)
    if solver.steps is None:
        solver = _fill(solver, epochs=source.epochs)
    training = _fill(config.training, rounds=source.rounds)
    if isinstance(training.rounds, int):  # Others are checked later.
        training = _fill(training, eval_every=max(1, training.rounds // 10))
    return replace(
        config,
        output=os.path.expanduser(config.output),
        data=data,
        model=_fill(config.model, name=source.model),
        solver=solver,
        training=training,
    )


def _of_file(data: DataConfig, file: str) -> DataConfig:
    """Names data after its file, whose path becomes absolute."""
    path = Path(file).expanduser().absolute()
    if data.name not in (DataConfig.name, path.stem):
        raise ValueError(f"data.name={data.name!r} is not used with data.file; remove it.")
    return replace(data, name=path.stem, file=str(path))


def _fill(part: Any, **defaults: Any) -> Any:
    """Replaces fields that are None."""
    return replace(part, **{k: v for k, v in defaults.items() if getattr(part, k) is None})
