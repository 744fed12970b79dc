"""Presets and defaults of data sets.

The settings of published tables are in ``experiments/reproduction/presets.py``.
"""

from __future__ import annotations

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
from fedjax_fair.data import get_source

__all__ = ["PRESETS", "Preset", "resolve"]


class Preset(NamedTuple):
    """A named configuration.

    Attributes:
        summary: One-line description.
        config: The configuration, where None stands for the default of the data set.
    """

    summary: str
    config: Config


_HIDDEN_GROUPS = Config(
    data=DataConfig(name="digits", partition="planted_clusters", clusters="digits"),
    model=ModelConfig(name="mlp"),
    solver=SolverConfig(learning_rate=0.1, batch_size=10, epochs=5, prox=0.1),
    selector=SelectorConfig(cohort_size=4),
    aggregator=AggregatorConfig(num_clusters=2),
    training=TrainingConfig(rounds=60, eval_every=5),
)
"""Digits of ten clients in two groups, four of which have the digits 0 to 3."""

_SELECTORS = ("power_of_choice", "divfl", "subtrunc", "unionfl", "clustered_by_similarity")

PRESETS: dict[str, Preset] = {
    "groups": Preset(
        "Equitable-FL and DivFL on digits with a small group of clients; half a minute",
        replace(
            _HIDDEN_GROUPS,
            methods=("fedprox", "equitable", "divfl", "divfl+equitable"),
            data=replace(_HIDDEN_GROUPS.data, partition_per_seed=True),
            training=TrainingConfig(rounds=20, eval_every=5, seeds=tuple(range(12))),
        ),
    ),
    "digits": Preset(
        "scikit-learn's 1,797 digits over 50 clients with 3 classes each; seconds on a laptop",
        Config(model=ModelConfig(hidden=(64,))),
    ),
    "mnist": Preset(
        "MNIST over 100 clients with 3 classes each, LeNet",
        Config(data=DataConfig(name="mnist")),
    ),
    "cifar10": Preset(
        "CIFAR-10 over 100 clients with 3 classes each, a small convolutional network",
        Config(data=DataConfig(name="cifar10"), training=TrainingConfig(eval_every=20)),
    ),
    "equitable": Preset(
        "Equitable-FL and its baselines on digits with two ground-truth groups; a minute",
        replace(
            _HIDDEN_GROUPS,
            methods=(
                "centralized:epochs=1",
                "fedprox",
                "clustered_by_similarity",
                "power_of_choice",
                "fairfed",
                "gifair",
                "equitable",
            ),
        ),
    ),
    "cross": Preset(
        "every selector with and without equitable weights, on the same data",
        replace(
            _HIDDEN_GROUPS,
            methods=(
                "fedprox",
                "equitable",
                *(name for each in _SELECTORS for name in (each, f"{each}+equitable")),
            ),
        ),
    ),
}
"""Every preset by name; ``fedjax-fair run NAME`` runs it."""


def resolve(config: Config) -> Config:
    """Replaces None by the defaults of the data set.

    Local steps that are given replace the default epochs. The data folder becomes absolute.

    Args:
        config: A configuration.

    Examples:
        >>> resolve(Config(data=DataConfig(name="mnist"))).model.name
        'lenet'
    """
    source = get_source(config.data.name)
    data = _fill(config.data, partition=source.partition.__name__)
    if data.partition != "planted_clusters":  # Which determines the number of clients.
        data = _fill(data, clients=source.num_clients)
    if data.dir is not None:
        data = replace(data, dir=str(Path(data.dir).expanduser().absolute()))
    solver = _fill(config.solver, learning_rate=source.learning_rate, batch_size=source.batch_size)
    if solver.steps is None:
        solver = _fill(solver, epochs=source.epochs)
    return replace(
        config,
        data=data,
        model=_fill(config.model, name=source.model),
        solver=solver,
        training=_fill(config.training, rounds=source.rounds),
    )


def _fill(part: Any, **defaults: Any) -> Any:
    """Replaces fields that are None."""
    return replace(part, **{k: v for k, v in defaults.items() if getattr(part, k) is None})
