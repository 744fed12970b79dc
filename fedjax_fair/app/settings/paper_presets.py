"""The settings of the papers' tables: ``fedjax-fair run table1 --data.dir FOLDER`` runs one.

References:
    Castillo, Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client Selection
    in Federated Learning*, 2024, https://arxiv.org/abs/2408.13683

    Anonymous, *Equitable Federated Learning with Activation Clustering*, 2024,
    https://arxiv.org/abs/2410.19207
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedjax_fair.app.settings.config import (
    AggregatorConfig,
    Config,
    DataConfig,
    ModelConfig,
    Preset,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.app.settings.presets import PRESETS

__all__ = ["ABLATIONS", "PAPERS", "SELECTION_TABLES"]


def _table(data: str, methods: Iterable[str]) -> Config:
    """The setting of Castillo et al., tables I to IV.

    They do not print step size, local steps, batch size or rounds. These were chosen so that random
    selection reaches the accuracy they report, before any other method was run
    (docs/reproduction/selection.md).
    """
    return Config(
        methods=tuple(methods),
        data=DataConfig(name=data, partition_per_seed=True),
        solver=SolverConfig(learning_rate=_RATES[data], batch_size=50, steps=50),
        aggregator=AggregatorConfig(weights="uniform"),
        training=TrainingConfig(rounds=_ROUNDS[data], eval_every=1, seeds=tuple(range(10))),
    )


_ROUNDS = {"mnist": 21, "cifar10": 31}
_RATES = {"mnist": 0.01, "cifar10": 0.03}
_LAMBDAS = ("0.01", "0.1", "0.25", "0.5", "0.75", "0.95")
_BEST_LAMBDA = {"mnist": "0.95", "cifar10": "0.5"}


def _selection_tables(data: str) -> dict[str, Preset]:
    """Tables I to IV and other readings of them; on the second data set they carry its name."""
    best = f"subtrunc:lam={_BEST_LAMBDA[data]}"
    baselines = ("fedavg", "divfl")
    tables = {
        "table1": (
            "methods of client selection",
            ["fedavg", "power_of_choice", "divfl", best, "unionfl:window=5"],
        ),
        "table2": (
            "SubTrunc, weight of the bonus",
            [*baselines, *(f"subtrunc:lam={value}" for value in _LAMBDAS)],
        ),
        "table3": (
            "UnionFL, rounds to look back",
            [*baselines, *(f"unionfl:window={rounds}" for rounds in (2, 5, 10))],
        ),
        "table4": ("SubTrunc, utility of a loss", [*baselines, best, f"{best},phi=identity"]),
        "sensitivity": (
            "other bounds and penalties, and other readings of the text",
            [
                *(*baselines, best),
                *(f"{best},b={bound}" for bound in (0.5, 2.5, 5)),
                *(f"{best},scale=sum", f"{best},gradients=stale", "divfl:gradients=stale"),
                "unionfl:window=5",
                *(f"unionfl:window=5,mu={penalty}" for penalty in (0.01, 0.1)),
            ],
        ),
    }
    suffix = "" if data == "mnist" else f"-{data}"
    return {
        f"{name}{suffix}": Preset(
            f"Castillo et al., {name}, {data}: {summary}", _table(data, methods)
        )
        for name, (summary, methods) in tables.items()
    }


_SELECTION = {data: _selection_tables(data) for data in _ROUNDS}

SELECTION_TABLES: dict[str, dict[str, Config]] = {
    data: {name: preset.config for name, preset in tables.items()}
    for data, tables in _SELECTION.items()
}
"""The tables of Castillo et al., by data set and name of the preset."""


_PLANTED = {
    "mnist": ("mnist", "mlp", 4, 2, 0.1),
    "cifar10": ("cifar10", "cifar_cnn", 4, 2, 0.01),
    "cifar100": ("cifar100", "cifar100_cnn", 4, 3, 0.01),
    "femnist": ("emnist/byclass", "femnist_cnn", 18, 5, 0.01),
}
"""Settings of the Equitable-FL paper: data with planted groups, network, cohort size, number of
groups and learning rate."""

_TUNED = (
    "centralized:epochs=1,learning_rate={rate}",
    "fedprox:learning_rate={rate},prox=0.01",
    "clustered_by_similarity:learning_rate={rate},prox=0.0",
    "power_of_choice:learning_rate={rate},prox=0.01",
    "fairfed:prox=0.01,learning_rate={rate},beta=0.01",
    "gifair:prox=0,learning_rate={rate},strength=0.5",
    "equitable:learning_rate={rate},prox=0.01",
)
"""Choices of a grid on MNIST (docs/reproduction/equitable.md). It chose a ``beta`` of 0 for
FairFed, which is FedProx; here is the smallest that is not."""
_TUNED_RATES = {"mnist": 0.3, "cifar10": 0.1}
"""Step sizes that a grid chose for the network of a setting; its ResNet-18 takes the same. On
CIFAR-10 FedProx alone chose, and all else is as on MNIST."""
_UNTUNED = (
    "centralized:epochs=1",
    "fedprox:prox=0.01",
    "clustered_by_similarity:prox=0.001",
    "power_of_choice:prox=0.1",
    "fairfed:prox=0.1,beta=0.1",
    "gifair:prox=0,strength=0.9",
    "equitable:prox=0.001",
)
"""Strengths where there was no grid."""


def _tuned(setting: str) -> tuple[str, ...]:
    """The methods of table 2 as they were tuned, Equitable-FL last."""
    if setting not in _TUNED_RATES:
        return _UNTUNED
    return tuple(method.format(rate=_TUNED_RATES[setting]) for method in _TUNED)


def _planted(
    setting: str, methods: tuple[str, ...], rounds: int, model: str | None = None
) -> Config:
    """The Equitable-FL paper's experiments, sections 5.1 to 5.3.

    It does not print batch size, nor the strengths of FedProx, FairFed and GIFAIR. Batches of 64
    are customary; on MNIST the rest was chosen from a grid with the same budget for every method,
    on CIFAR-10 the step size (docs/reproduction/equitable.md). Every seed has a partition of its
    own.
    """
    data, own_model, cohort_size, groups, learning_rate = _PLANTED[setting]
    return Config(
        methods=methods,
        data=DataConfig(
            name=data, partition="planted_clusters", clusters=setting, partition_per_seed=True
        ),
        model=ModelConfig(name=model or own_model),
        solver=SolverConfig(learning_rate=learning_rate, batch_size=64, epochs=5, prox=0.1),
        selector=SelectorConfig(cohort_size=cohort_size),
        aggregator=AggregatorConfig(num_clusters=groups),
        training=TrainingConfig(rounds=rounds, eval_every=5),
    )


ABLATIONS = {
    "clusters": ("number of clusters", {"num_clusters": (2, 3, 4)}),
    "epochs": ("local epochs", {"epochs": (1, 5, 10)}),
    "prox": ("FedProx's pull", {"prox": (0, 0.01, 0.1, 1)}),
}
"""Settings that tables 4 and 5 of the Equitable-FL paper vary, without the tuned ones."""


def _varied(setting: str, varied: Mapping[str, Iterable[object]]) -> tuple[str, ...]:
    """Equitable-FL with one setting varied, the others as tuned."""
    ((name, values),) = varied.items()
    tuned = _tuned(setting)[-1].partition(":")[2]
    kept = [pair for pair in tuned.split(",") if not pair.startswith(f"{name}=")]
    return tuple(f"equitable:{','.join([*kept, f'{name}={value}'])}" for value in values)


def _equitable_presets() -> dict[str, Preset]:
    presets = {
        "cross-mnist": Preset(
            "every selector with and without equitable weights: MNIST with two planted groups",
            _planted("mnist", PRESETS["cross"].config.methods, 100),
        ),
    }
    for setting in _PLANTED:
        methods = _tuned(setting)
        presets[f"equitable-{setting}"] = Preset(
            f"Equitable-FL, table 2, {setting}", _planted(setting, methods, 250)
        )
        presets[f"equitable-resnet18-{setting}"] = Preset(
            f"Equitable-FL, table 3, {setting}: ResNet-18",
            _planted(setting, methods, 100, "resnet18"),
        )
    for setting, model in {"mnist": None, "cifar100": "resnet18"}.items():
        for name, (summary, varied) in ABLATIONS.items():
            presets[f"equitable-{name}-{setting}"] = Preset(
                f"Equitable-FL, {'table 5' if name == 'prox' else 'table 4'}, {setting}: {summary}",
                _planted(setting, _varied(setting, varied), 50, model),
            )
    return presets


PAPERS: dict[str, Preset] = {
    name: preset
    for presets in (*_SELECTION.values(), _equitable_presets())
    for name, preset in presets.items()
}
"""Every table by the name of its preset."""
