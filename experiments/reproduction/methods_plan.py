"""Federations, seeds and endpoints, which docs/reproduction/methods.md fixes before the runs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)

__all__ = ["COLUMNS", "ENDPOINTS", "FEDERATIONS", "Endpoint", "Federation"]

RATES = (0.01, 0.03, 0.1, 0.3)
TUNING_SEEDS, SEEDS = (700, 701), (710, 711, 712, 713, 714)
TUNING_ROUNDS, ROUNDS, EVAL_EVERY = 50, 100, 2
MARGIN = 1.0
"""Points by which the accuracy of a fairer method may be lower."""
CHOICE_ROUNDS, MIN_AGREEMENT = 10, 0.95
"""Last rounds whose choices of models count, and the least agreement with the rotations."""

_BASE = Config(
    data=DataConfig(name="mnist", partition="classes_per_client", partition_per_seed=True),
    model=ModelConfig(name="mlp", hidden=(64,)),
    solver=SolverConfig(batch_size=20, epochs=5),
    selector=SelectorConfig(cohort_size=10),
    training=TrainingConfig(seeds=SEEDS, eval_every=EVAL_EVERY),
)


class Federation(NamedTuple):
    """A federated dataset of the study.

    Attributes:
        config: Data, partition, network and local training.
        methods: Methods that are trained on it.
        is_rotated: Whether client ``i`` sees its images rotated by ``i % 4`` quarter turns.
    """

    config: Config
    methods: tuple[str, ...]
    is_rotated: bool = False


FEDERATIONS = {
    "two classes": Federation(
        replace(_BASE, data=replace(_BASE.data, clients=100, classes_per_client=2)),
        (
            "fedavg", "scaffold", "feddyn", "fedfv", "propfair", "ditto", "fedrep", "fine_tuned",
            "local",
        ),
    ),
    "rotations": Federation(
        replace(
            _BASE,
            data=DataConfig(name="mnist", partition="iid", clients=100),
            selector=SelectorConfig(cohort_size=20),
        ),
        ("fedavg", "ifca:num_models=4", "local"),
        is_rotated=True,
    ),
}  # fmt: skip


class Endpoint(NamedTuple):
    """A difference between two methods, paired by seed.

    Attributes:
        claim: The method whose claim it belongs to.
        federation: The federated dataset.
        text: What is compared.
        column: Column of the runs of the method, after the last round; ``"rounds"`` is the number
            of rounds until the target.
        reference: Method that it is compared with.
        sign: 1 if the claim is a positive difference, -1 for a negative one, 0 if the claim is that
            it is above ``-MARGIN``.
        reference_column: Column of the reference, by default the same.
    """

    claim: str
    federation: str
    text: str
    column: str
    reference: str
    sign: int
    reference_column: str | None = None


GLOBAL, _PERSONAL = "accuracy_mean_clients", "personalized_accuracy_mean_clients"
_SPREAD, _WORST = "accuracy_standard_deviation", "accuracy_worst_10pct"
ENDPOINTS = (
    Endpoint("scaffold", "two classes", "rounds to the target", "rounds", "fedavg", -1),
    Endpoint("feddyn", "two classes", "rounds to the target", "rounds", "fedavg", -1),
    Endpoint("feddyn", "two classes", "rounds to the target", "rounds", "scaffold", -1),
    Endpoint("ditto", "two classes", "accuracy", _PERSONAL, "fedavg", 1, GLOBAL),
    Endpoint(
        "ditto", "two classes", "spread over clients", f"personalized_{_SPREAD}", "fedavg", -1,
        _SPREAD,
    ),
    Endpoint("fedrep", "two classes", "accuracy", _PERSONAL, "fedavg", 1, GLOBAL),
    Endpoint("fedrep", "two classes", "accuracy", _PERSONAL, "fine_tuned", 1),
    Endpoint("fedrep", "two classes", "accuracy", _PERSONAL, "local", 1),
    Endpoint("ifca:num_models=4", "rotations", "accuracy", _PERSONAL, "fedavg", 1, GLOBAL),
    Endpoint("ifca:num_models=4", "rotations", "accuracy", _PERSONAL, "local", 1),
    Endpoint("fedfv", "two classes", "spread over clients", _SPREAD, "fedavg", -1),
    Endpoint("fedfv", "two classes", "accuracy", GLOBAL, "fedavg", 0),
    Endpoint("propfair", "two classes", "accuracy of the worst tenth", _WORST, "fedavg", 1),
    Endpoint("propfair", "two classes", "accuracy", GLOBAL, "fedavg", 0),
)  # fmt: skip
COLUMNS = tuple(
    dict.fromkeys(
        name
        for endpoint in ENDPOINTS
        for name in (endpoint.column, endpoint.reference_column or endpoint.column)
        if name != "rounds"
    )
)
