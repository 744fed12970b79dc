"""Ready-made experiments, and what each data set asks for by default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedjax_fair.config import Config, DataConfig, ModelConfig, TrainingConfig

__all__ = ["PRESETS", "Preset", "resolve"]


class Preset(NamedTuple):
    """An experiment by name.

    Attributes:
        summary: One line for people.
        config: Its configuration; what is None follows the data set.
    """

    summary: str
    config: Config


PRESETS: dict[str, Preset] = {
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
}
"""Every preset by name; ``fedjax-fair run NAME`` runs it."""


class _Defaults(NamedTuple):
    """What a data set asks for where nothing else is said."""

    partition: str
    clients: int
    model: str
    learning_rate: float
    batch_size: int
    epochs: int
    rounds: int


_DEFAULTS = {
    "digits": _Defaults("classes_per_client", 50, "mlp", 0.1, 10, 5, 100),
    "mnist": _Defaults("classes_per_client", 100, "lenet", 0.05, 50, 1, 100),
    "fashion_mnist": _Defaults("iid", 100, "lenet", 0.05, 50, 1, 100),
    "cifar10": _Defaults("classes_per_client", 100, "cifar_cnn", 0.05, 50, 1, 400),
    "cifar100": _Defaults("iid", 100, "cifar100_cnn", 0.05, 50, 1, 400),
    "emnist/byclass": _Defaults("iid", 100, "femnist_cnn", 0.05, 50, 1, 100),
}
_OTHERWISE = _Defaults("iid", 100, "resnet18", 0.05, 50, 1, 100)


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
    data, model, solver, training = config.data, config.model, config.solver, config.training
    partition = _first(data.partition, own.partition)
    planted = partition == "planted_clusters"
    return replace(
        config,
        data=replace(
            data,
            dir=None if data.dir is None else str(Path(data.dir).expanduser().absolute()),
            partition=partition,
            clients=None if planted else _first(data.clients, own.clients),
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
