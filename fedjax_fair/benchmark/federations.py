"""Federated datasets of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair import data
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    FaultsConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.benchmark import group_synthetic
from fedjax_fair.benchmark.populations import BenchmarkData, Pool, partition_pool
from fedjax_fair.data.partitions.partitioner import (
    Partition,
    Partitioner,
    generator,
    make_partition,
)
from fedjax_fair.data.sensitive import encode_sensitive
from fedjax_fair.metrics.quantities import ACCURACY, Quantity, quantities_of

__all__ = ["FEDERATIONS", "Federation", "quantity_of", "variables_of"]

_LARGEST_SYNTHETIC = 300
"""Examples of a device of `synthetic`, at most; FedProx's sizes are heavy-tailed."""
_DROPOUT = 0.3
"""Probability that the result of a participant does not arrive."""


class Federation(NamedTuple):
    """A federated dataset of the benchmark.

    Attributes:
        name: Its name.
        summary: One line.
        config: Model, local training, cohort size and rounds.
        pool: ``pool(data_dir) -> Pool`` reads all examples.
        target: Mean of ``quantity`` over clients, for the rounds until it is reached.
        sensitive_feature: The sensitive feature that methods of group fairness use, or None.
        min_examples: Minimum number of examples of a client.
        variant_of: Name of the dataset that this one is with faults of clients, or None.
    """

    name: str
    summary: str
    config: Config
    pool: Callable[[str | None], Pool]
    target: float
    sensitive_feature: str | None = None
    min_examples: int = 50
    variant_of: str | None = None

    @property
    def quantity(self) -> Quantity:
        """What clients are measured by: the accuracy of classes, also of text, else of the task."""
        return quantities_of(self.config.data.target or "classification", ())[0]

    def load(self, data_dir: str | None, seeds: Sequence[int]) -> BenchmarkData:
        """Returns the dataset with one partition per seed.

        Raises:
            FileNotFoundError: If files are missing.
        """
        return partition_pool(self.pool(data_dir), seeds, self.min_examples)


def _config(
    model: ModelConfig,
    rounds: int,
    cohort: int,
    steps: int = 10,
    batch_size: int = 10,
    evaluations: int = 5,
) -> Config:
    return Config(
        methods=(),
        data=DataConfig(name="digits"),
        model=model,
        solver=SolverConfig(steps=steps, batch_size=batch_size),
        selector=SelectorConfig(cohort_size=cohort),
        training=TrainingConfig(rounds=rounds, eval_every=rounds // evaluations),
    )


@lru_cache(maxsize=1)
def _digits(_: str | None) -> Pool:
    source = data.get_source("digits")
    return _by_partitioner("digits", source.read(source.find(None)), data.dirichlet(25, 0.3, 50))


def _by_partitioner(name: str, splits: data.Splits, partitioner: Partitioner) -> Pool:
    """Returns the pool of training and test examples of a data set."""
    if partitioner.column is not None:
        splits = splits.without_feature(partitioner.column)
    parts = [part for part in (splits.train, splits.test) if part is not None]
    features, labels = (
        np.concatenate([getattr(part, field) for part in parts]) for field in ("features", "labels")
    )
    columns = {
        key: np.concatenate([np.asarray(part.columns[key]) for part in parts])
        for key in parts[0].columns
    }
    codes, names = None, None
    if splits.sensitive_features:
        encoded = encode_sensitive({key: columns[key] for key in splits.sensitive_features}, labels)
        codes, names = encoded.train, encoded.names
    return Pool(
        name,
        features if features.dtype == np.uint8 else features.astype(_type_of(features)),
        labels.astype(np.int32),
        splits.num_classes,
        lambda seed: partitioner.split(labels, seed, **columns),
        codes,
        names,
        partitioner.label_skew_only,
    )


def _type_of(features: np.ndarray) -> Any:
    return np.float32 if np.issubdtype(features.dtype, np.floating) else np.int32


@lru_cache(maxsize=1)
def _synthetic(_: str | None) -> Pool:
    made = data.synthetic(
        1.0, 1.0, 30, mean_size=150, spread=1.0, max_size=_LARGEST_SYNTHETIC, base_size=0,
        test_fraction=0.0,
    )  # fmt: skip
    sizes, order = np.asarray(made.train.sizes), np.asarray(made.train.order)
    features, labels = np.asarray(made.train.features), np.asarray(made.train.labels)
    fixed = make_partition(order, sizes, len(labels))
    return Pool("synthetic(1, 1)", features, labels, made.num_classes, lambda seed: fixed)


@lru_cache(maxsize=1)
def _groups(_: str | None) -> Pool:
    features, labels, groups = group_synthetic.make(3000)
    encoded = encode_sensitive({"group": groups}, labels)

    def split(seed: int) -> Partition:
        return group_synthetic.split(groups, 10, seed)

    return Pool("groups", features, labels, 2, split, encoded.train, encoded.names)


def _source(
    name: str, partitioner: Partitioner, max_examples: int | None = None, **settings: Any
) -> Callable[[str | None], Pool]:
    """Returns the function that reads a data set, or at most some random examples of it."""

    @lru_cache(maxsize=1)
    def pool(data_dir: str | None) -> Pool:
        source = data.get_source(name)
        splits = source.read(source.find(data_dir), **settings)
        if max_examples is not None and len(splits.train.labels) > max_examples:
            chosen = generator(0, 2).permutation(len(splits.train.labels))[:max_examples]
            train = splits.train
            columns = {key: np.asarray(values)[chosen] for key, values in train.columns.items()}
            train = data.Examples(train.features[chosen], train.labels[chosen], columns)
            splits = splits._replace(train=train, test=None)
        return _by_partitioner(name, splits, partitioner)

    return pool


_ANIMALS_AND_VEHICLES = (
    data.Cluster(15, (2, 3, 4, 5, 6, 7), at_most=100),
    data.Cluster(10, (0, 1, 8, 9), at_most=150),
)

_WITHOUT_FAULTS = (
    Federation(
        "digits",
        "scikit-learn's 1,797 digits, Dirichlet(0.3) over labels",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=20, cohort=5),
        _digits,
        target=0.85,
    ),
    Federation(
        "synthetic",
        "FedProx's synthetic(1, 1), 30 devices of at most 300 examples",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=20, cohort=6),
        _synthetic,
        target=0.6,
    ),
    Federation(
        "groups",
        "FedFB's data with two sensitive groups, three populations of ten clients",
        _config(ModelConfig(name="mlp", hidden=(16,)), rounds=20, cohort=6),
        _groups,
        target=0.85,
        sensitive_feature="group",
    ),
    Federation(
        "mnist",
        "20,000 images of MNIST, Dirichlet(0.1) over labels, 100 clients",
        _config(ModelConfig(name="mlp", hidden=(64,)), rounds=50, cohort=10, steps=20),
        _source("mnist", data.dirichlet(100, 0.1, 50), max_examples=20_000),
        target=0.85,
    ),
    Federation(
        "cifar10",
        "CIFAR-10, 15 clients with animals and 10 with vehicles",
        _config(ModelConfig(name="mlp", hidden=(64,)), rounds=50, cohort=5, steps=20),
        _source("cifar10", data.planted_clusters(_ANIMALS_AND_VEHICLES)),
        target=0.35,
    ),
    Federation(
        "adult",
        "Adult by occupation",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=40, cohort=5, steps=20),
        _source("adult", data.by_column("occupation")),
        target=0.83,
        sensitive_feature="sex",
    ),
    Federation(
        "census_income",
        "Census-Income by industry",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=40, cohort=6, steps=20),
        _source("census_income", data.by_column("industry")),
        target=0.89,
        sensitive_feature="sex",
    ),
    Federation(
        "mpls_stops",
        "police stops in Minneapolis by neighborhood; for traffic or a suspicion",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=40, cohort=10, steps=20),
        # Nearly all stops have the same value of the default label, whether there was a search.
        _source("mpls_stops", data.by_column("neighborhood"), label="problem"),
        target=0.74,
        sensitive_feature="race",
    ),
    Federation(
        "shakespeare",
        "next characters of roles in Shakespeare, a fifth of their sequences",
        _config(
            ModelConfig(name="char_lstm", layers=1, width=32), rounds=40, cohort=5, evaluations=2
        ),
        _source("shakespeare", data.natural(), max_examples=44_422, length=20),
        target=0.25,
        min_examples=200,
    ),
    Federation(
        "cifar10_resnet18",
        "CIFAR-10, Dirichlet(0.3) over labels, 1,000 clients; ResNet-18",
        _config(ModelConfig(name="resnet18"), rounds=100, cohort=20, batch_size=20, evaluations=4),
        _source("cifar10", data.dirichlet(1000, 0.3, 20)),
        target=0.4,
        min_examples=20,
    ),
)


def _with_dropouts(federation: Federation) -> Federation:
    config = replace(federation.config, faults=FaultsConfig(dropout=_DROPOUT))
    name, summary = f"{federation.name}_dropouts", f"{federation.summary}; {_DROPOUT:.0%} drop out"
    return federation._replace(
        name=name, summary=summary, config=config, variant_of=federation.name
    )


FEDERATIONS = {
    each.name: each for each in (*_WITHOUT_FAULTS, *map(_with_dropouts, _WITHOUT_FAULTS))
}
"""Federated datasets by name; of each there is one with dropouts, such as ``digits_dropouts``."""


def quantity_of(federation: str) -> Quantity:
    """Returns what the clients of a federated dataset are measured by."""
    known = FEDERATIONS.get(federation)
    return known.quantity if known else ACCURACY


def variables_of(quantity: Quantity) -> dict[str, str]:
    """Returns the variables of results by measure; ``accuracy`` stands for any quantity.

    Examples:
        >>> variables_of(ACCURACY)["worst_10pct"]
        'accuracy_worst_10pct'
    """
    return {
        "accuracy": quantity.mean,
        "worst_10pct": quantity.worst,
        "dissimilarity": quantity.dissimilarity,
        "standard_deviation": quantity.spread,
    }
