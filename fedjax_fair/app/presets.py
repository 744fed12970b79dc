"""Ready-made experiments, and what follows from the data set where nothing else is said.

The settings of published tables are in ``experiments/reproduction/presets.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedjax_fair.app.config import (
    AggregatorConfig,
    Config,
    DataConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.data.sources import default_split

__all__ = ["PRESETS", "Preset", "resolve"]


class Preset(NamedTuple):
    """An experiment by name.

    Attributes:
        summary: One-line description.
        config: Its configuration; what is None follows the data set.
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
"""Digits over ten clients in two groups, four of which see the digits 0 to 3 alone."""

_SELECTORS = ("power_of_choice", "divfl", "subtrunc", "unionfl", "clustered_by_similarity")

PRESETS: dict[str, Preset] = {
    "groups": Preset(
        "do weights that are equal for found groups help a small group? digits; half a minute",
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
        "Equitable-FL beside its baselines: digits with two planted groups; a minute",
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
        "every selector with and without equitable weights: digits with two planted groups",
        replace(
            _HIDDEN_GROUPS,
            methods=(
                "fedprox",
                "equitable",
                *(name for one in _SELECTORS for name in (one, f"{one}+equitable")),
            ),
        ),
    ),
}
"""Every preset by name; ``fedjax-fair run NAME`` runs it."""


class _Defaults(NamedTuple):
    """How a data set is trained on where nothing else is said."""

    model: str
    learning_rate: float
    batch_size: int
    epochs: int
    rounds: int


_DEFAULTS = {
    "digits": _Defaults("mlp", 0.1, 10, 5, 100),
    "mnist": _Defaults("lenet", 0.05, 50, 1, 100),
    "fashion_mnist": _Defaults("lenet", 0.05, 50, 1, 100),
    "cifar10": _Defaults("cifar_cnn", 0.05, 50, 1, 400),
    "cifar100": _Defaults("cifar100_cnn", 0.05, 50, 1, 400),
    "emnist/byclass": _Defaults("femnist_cnn", 0.05, 50, 1, 100),
}
_OTHERWISE = _Defaults("resnet18", 0.05, 50, 1, 100)


def resolve(config: Config) -> Config:
    """Fills in what follows from the data set.

    Args:
        config: A configuration in which None stands for the data set's own value.

    Returns:
        An equal configuration with the numbers filled in and the data folder made absolute. A
        number of local steps that was given keeps the data set's epochs out.

    Examples:
        >>> resolve(Config(data=DataConfig(name="mnist"))).model.name
        'lenet'
    """
    own = _DEFAULTS.get(config.data.name, _OTHERWISE)
    split, clients = default_split(config.data.name)
    data, model, solver, training = config.data, config.model, config.solver, config.training
    partition = _first(data.partition, split)
    planted = partition == "planted_clusters"  # Which says how many clients there are.
    return replace(
        config,
        data=replace(
            data,
            dir=None if data.dir is None else str(Path(data.dir).expanduser().absolute()),
            partition=partition,
            clients=data.clients if planted else _first(data.clients, clients),
        ),
        model=replace(model, name=_first(model.name, own.model)),
        solver=replace(
            solver,
            learning_rate=_first(solver.learning_rate, own.learning_rate),
            batch_size=_first(solver.batch_size, own.batch_size),
            epochs=solver.epochs if solver.steps is not None else _first(solver.epochs, own.epochs),
        ),
        training=replace(training, rounds=_first(training.rounds, own.rounds)),
    )


def _first(given, own):
    return own if given is None else given
