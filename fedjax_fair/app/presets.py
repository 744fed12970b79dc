"""Ready-made experiments, and what each data set asks for by default."""

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

__all__ = ["PRESETS", "SELECTION_TABLES", "Preset", "resolve"]


class Preset(NamedTuple):
    """An experiment by name.

    Attributes:
        summary: One line for people.
        config: Its configuration; what is None follows the data set.
    """

    summary: str
    config: Config


def _table(data: str, *methods: str) -> Config:
    """The setting of Castillo et al., tables I to IV.

    They do not print step size, local steps, batch size or rounds. These were chosen so that random
    selection reaches the accuracy they report, before any other method was run
    (docs/reproduction/selection.md).
    """
    return Config(
        methods=methods,
        data=DataConfig(name=data, per_run=True),
        solver=SolverConfig(learning_rate=_RATES[data], batch_size=50, steps=50),
        aggregator=AggregatorConfig(weights="uniform"),
        training=TrainingConfig(rounds=_ROUNDS[data], eval_every=1, seeds=tuple(range(10))),
    )


_ROUNDS = {"mnist": 19, "cifar10": 33}
_RATES = {"mnist": 0.01, "cifar10": 0.03}
_LAMBDAS = ("0.01", "0.1", "0.25", "0.5", "0.75", "0.95")
_BEST_LAMBDA = {"mnist": "0.95", "cifar10": "0.5"}


def _selection_tables(data: str) -> dict[str, tuple[str, Config]]:
    """Tables I to IV and other readings of them; on the second data set they carry its name."""
    best = f"subtrunc:lam={_BEST_LAMBDA[data]}"
    baselines = ("fedavg", "divfl")
    suffix = "" if data == "mnist" else f"-{data}"
    return {
        f"table1{suffix}": (
            "methods of client selection",
            _table(data, "fedavg", "power_of_choice", "divfl", best, "unionfl:window=5"),
        ),
        f"table2{suffix}": (
            "SubTrunc, weight of the bonus",
            _table(data, *baselines, *(f"subtrunc:lam={value}" for value in _LAMBDAS)),
        ),
        f"table3{suffix}": (
            "UnionFL, rounds to look back",
            _table(data, *baselines, *(f"unionfl:window={rounds}" for rounds in (2, 5, 10))),
        ),
        f"table4{suffix}": (
            "SubTrunc, worth of a loss",
            _table(data, *baselines, best, f"{best},phi=identity"),
        ),
        f"sensitivity{suffix}": (
            "SubTrunc and DivFL, other readings of the text",
            _table(
                data,
                *baselines,
                best,
                f"{best},b=5",
                f"{best},scale=sum",
                f"{best},gradients=stale",
                "divfl:gradients=stale",
            ),
        ),
    }


SELECTION_TABLES: dict[str, dict[str, Config]] = {
    data: {name: config for name, (_, config) in _selection_tables(data).items()}
    for data in _ROUNDS
}
"""The tables of Castillo et al., by data set and name of the preset."""


class _Planted(NamedTuple):
    """A setting of the Equitable-FL paper: data with planted groups, and what trains on it."""

    data: str
    model: str
    cohort_size: int
    groups: int
    learning_rate: float


_PLANTED = {
    "digits": _Planted("digits", "mlp", 4, 2, 0.1),
    "mnist": _Planted("mnist", "mlp", 4, 2, 0.1),
    "cifar10": _Planted("cifar10", "cifar_cnn", 4, 2, 0.01),
    "cifar100": _Planted("cifar100", "cifar100_cnn", 4, 3, 0.01),
    "femnist": _Planted("emnist/byclass", "femnist_cnn", 18, 5, 0.01),
}
_TUNED = (
    "centralized:epochs=1",
    "fedprox:prox=0.01",
    "clustered_by_similarity:prox=0.001",
    "power_of_choice:prox=0.1",
    "fairfed:prox=0.1,beta=0.1",
    "gifair:prox=0,strength=0.9",
    "equitable:prox=0.001",
)
"""The strengths that a grid on MNIST chose; elsewhere they are a start."""


def _planted(setting: str, methods: tuple[str, ...], rounds: int, **changes: Any) -> Config:
    """The Equitable-FL paper's experiments, sections 5.1 to 5.3.

    It does not print batch size, nor the strengths of FedProx, FairFed and GIFAIR. Batches of 64
    are customary; on MNIST the rest was chosen from a grid with the same budget for every method
    (docs/reproduction/equitable.md).
    """
    data, model, cohort_size, groups, learning_rate = _PLANTED[setting]
    return Config(
        methods=methods,
        data=DataConfig(name=data, partition="planted_clusters", clusters=setting),
        model=ModelConfig(name=changes.get("model", model)),
        solver=SolverConfig(
            learning_rate=learning_rate,
            batch_size=changes.get("batch_size", 64),
            epochs=5,
            prox=changes.get("prox", 0.1),
        ),
        selector=SelectorConfig(cohort_size=cohort_size),
        aggregator=AggregatorConfig(num_clusters=groups),
        training=TrainingConfig(rounds=rounds, eval_every=5),
    )


def _equitable_presets() -> dict[str, Preset]:
    compared = (
        "centralized:epochs=1",
        "fedprox",
        "clustered_by_similarity",
        "power_of_choice",
        "fairfed",
        "gifair",
        "equitable",
    )
    selectors = ("power_of_choice", "divfl", "subtrunc", "unionfl", "clustered_by_similarity")
    small = {"batch_size": 10}
    crossed = [name for chosen in selectors for name in (chosen, f"{chosen}+equitable")]
    crossed = ("fedprox", "equitable", *crossed)
    presets = {
        "equitable": Preset(
            "Equitable-FL beside its baselines: digits with two planted groups; a minute",
            _planted("digits", compared, 60, **small),
        ),
        "cross": Preset(
            "every selector with and without equitable weights: digits with two planted groups",
            _planted("digits", crossed, 60, **small),
        ),
        "cross-mnist": Preset(
            "every selector with and without equitable weights: MNIST with two planted groups",
            _planted("mnist", crossed, 100),
        ),
    }
    for setting in ("mnist", "cifar10", "cifar100", "femnist"):
        presets[f"equitable-{setting}"] = Preset(
            f"Equitable-FL, table 2, {setting}", _planted(setting, _TUNED, 250)
        )
        presets[f"equitable-resnet18-{setting}"] = Preset(
            f"Equitable-FL, table 3, {setting}: ResNet-18",
            _planted(setting, _TUNED, 100, model="resnet18"),
        )
    ablations = {
        "clusters": ("number of clusters", [f"equitable:num_clusters={c}" for c in (2, 3, 4)]),
        "epochs": ("local epochs", [f"equitable:epochs={epochs}" for epochs in (1, 5, 10)]),
        "prox": ("FedProx's pull", [f"equitable:prox={mu}" for mu in (0, 0.01, 0.1, 1)]),
    }
    for setting, networks in {"mnist": {}, "cifar100": {"model": "resnet18"}}.items():
        for name, (what, methods) in ablations.items():
            presets[f"equitable-{name}-{setting}"] = Preset(
                f"Equitable-FL, {'table 5' if name == 'prox' else 'table 4'}, {setting}: {what}",
                _planted(setting, ("fedprox", *methods), 50, **networks),
            )
    return presets


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
    **{
        name: Preset(f"Castillo et al., {name.split('-')[0]}, {data}: {summary}", config)
        for data in _ROUNDS
        for name, (summary, config) in _selection_tables(data).items()
    },
    **_equitable_presets(),
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
