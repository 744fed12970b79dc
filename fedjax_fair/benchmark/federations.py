"""Federated datasets of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

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
from fedjax_fair.benchmark.held_out import MadeClients
from fedjax_fair.benchmark.populations import BenchmarkData, Pool, partition_pool
from fedjax_fair.data.partitions.partitioner import (
    Partition,
    Partitioner,
    generator,
    make_partition,
)
from fedjax_fair.data.sensitive import encode_sensitive
from fedjax_fair.data.sources.table_sources import TABLES, find_table, read_frames
from fedjax_fair.data.tables.table_encoding import fit_encoding
from fedjax_fair.data.tables.table_labels import encode_labels
from fedjax_fair.metrics.quantities import ACCURACY, Quantity, quantities_of

__all__ = ["FEDERATIONS", "Federation", "quantity_of", "variables_of"]

_LARGEST_SYNTHETIC = 300
"""Examples of a device of `synthetic`, at most; FedProx's sizes are heavy-tailed."""
_GROUP_EXAMPLES = 3000
"""Examples of `groups` of which clients are made."""
_CLIENTS_PER_POPULATION = 8
_NUM_FRESH = 10_000
"""Test examples that a data set has beyond those of which clients are made, at most."""
_NUM_SEQUENCES = 44_422
"""Sequences of `shakespeare` that clients train on, a fifth; as many are for tests."""
_EVALUATIONS = 16
_DROPOUT = 0.3
"""Probability that the result of a participant does not arrive."""
_WITH_VARIANTS = ("adult", "mpls_stops", "mnist")


class Federation(NamedTuple):
    """A federated dataset of the benchmark.

    Attributes:
        name: Its name.
        summary: One line.
        config: Model, local training, cohort size and rounds.
        pool: ``pool(data_dir) -> Pool`` reads all examples.
        target: Mean of ``quantity`` over clients, for the rounds until it is reached.
        sensitive_feature: The sensitive feature that methods of group fairness use, or None.
        min_examples: Minimum number of examples of a client of the data.
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
        """Accuracy of classes, also of text, else the first quantity of the task."""
        return quantities_of(self.config.data.target or "classification", ())[0]

    def load(self, data_dir: str | None, seeds: Sequence[int]) -> BenchmarkData:
        """Returns the dataset with one partition per seed.

        Raises:
            FileNotFoundError: If files are missing.
        """
        return partition_pool(self.pool(data_dir), seeds, self.min_examples)


def _config(
    model: ModelConfig, rounds: int, cohort: int, steps: int = 10, batch_size: int = 10
) -> Config:
    return Config(
        methods=(),
        data=DataConfig(name="digits"),
        model=model,
        solver=SolverConfig(steps=steps, batch_size=batch_size),
        selector=SelectorConfig(cohort_size=cohort),
        training=TrainingConfig(rounds=rounds, eval_every=rounds // _EVALUATIONS),
    )


def _by_class(
    name: str,
    partitioner: Partitioner,
    num_unseen: int,
    max_examples: int | None = None,
    num_test: int = 100,
) -> Callable[[str | None], Pool]:
    """Returns the function that reads a data set of which a partitioner makes clients.

    With ``max_examples``, clients have random training examples, and the test pool has others.
    """

    @lru_cache(maxsize=1)
    def pool(data_dir: str | None) -> Pool:
        source = data.get_source(name)
        train, test, num_classes, *_ = source.read(source.find(data_dir))
        if max_examples is not None:
            train, test = _sample(train, max_examples + _NUM_FRESH), None
        parts = [part for part in (train, test) if part is not None]
        features = np.concatenate([part.features for part in parts])
        labels = np.concatenate([part.labels for part in parts]).astype(np.int32)

        def split(examples: np.ndarray, seed: int) -> Partition:
            return partitioner.split(labels[examples], seed)

        num_fresh = 0 if max_examples is None else max(0, len(labels) - max_examples)
        return Pool(
            name,
            features if features.dtype == np.uint8 else features.astype(np.float32),
            labels,
            num_classes,
            MadeClients(split, labels, num_unseen, num_test),
            num_fresh,
            label_skew_only=partitioner.label_skew_only,
        )

    return pool


def _sample(examples: data.Examples, number: int) -> data.Examples:
    """Returns some random examples, or all in another order if they are not more."""
    chosen = generator(0, 2).permutation(len(examples.labels))[:number]
    columns = {name: np.asarray(values)[chosen] for name, values in examples.columns.items()}
    return data.Examples(examples.features[chosen], examples.labels[chosen], columns)


@lru_cache(maxsize=1)
def _synthetic(_: str | None) -> Pool:
    made = data.synthetic(
        1.0, 1.0, 30, mean_size=150, spread=1.0, max_size=_LARGEST_SYNTHETIC, base_size=0,
        test_fraction=0.0,
    )  # fmt: skip
    sizes, order = np.asarray(made.train.sizes), np.asarray(made.train.order)
    features, labels = np.asarray(made.train.features), np.asarray(made.train.labels)
    devices = make_partition(order, sizes, len(labels))
    return Pool("synthetic(1, 1)", features, labels, made.num_classes, devices)


@lru_cache(maxsize=1)
def _groups(_: str | None) -> Pool:
    features, labels, groups = group_synthetic.make(_GROUP_EXAMPLES + _NUM_FRESH)
    encoded = encode_sensitive({"group": groups}, labels)

    def split(examples: np.ndarray, seed: int) -> Partition:
        return group_synthetic.split(groups[examples], _CLIENTS_PER_POPULATION, seed)

    clients = MadeClients(split, 2 * labels + groups, num_unseen=6)
    return Pool("groups", features, labels, 2, clients, _NUM_FRESH, encoded.train, encoded.names)


def _by_column(
    name: str, column: str, label: str | None = None, known: str | None = None
) -> Callable[[str | None], Pool]:
    """Returns the function that reads a table whose clients are the values of a column.

    Args:
        name: Name of the table.
        column: Column of the clients, which is no feature.
        label: Column to predict, by default that of the table.
        known: Sensitive feature. Rows where it is unknown are left out.
    """

    @lru_cache(maxsize=1)
    def pool(data_dir: str | None) -> Pool:
        import pandas as pd

        table = TABLES[name]
        rows = pd.concat(read_frames(find_table(name, data_dir)), ignore_index=True)
        if known is not None:
            rows = rows[rows[known] != "Unknown"].reset_index(drop=True)
        target = table.label if label is None else label
        (labels,), num_classes, _ = encode_labels([rows], [target])
        sensitive = encode_sensitive({key: rows[key] for key in table.sensitive_features}, labels)
        frame = rows.drop(columns=[*{target, table.label, column, *table.exclude}])

        def encode(examples: np.ndarray) -> np.ndarray:
            return fit_encoding(frame.iloc[examples]).encode(frame, "ignore")

        clients = data.by_column(column).split(labels, 0, **{column: rows[column]})
        return Pool(
            name, encode, labels, num_classes, clients,
            sensitive_features=sensitive.train, sensitive_names=sensitive.names,
        )  # fmt: skip

    return pool


@lru_cache(maxsize=1)
def _shakespeare(data_dir: str | None) -> Pool:
    source = data.get_source("shakespeare")
    splits = source.read(source.find(data_dir), length=20)
    train = _sample(splits.train, 2 * _NUM_SEQUENCES)
    roles = data.natural().split(train.labels, 0, **train.columns)
    features, labels = train.features.astype(np.int32), train.labels.astype(np.int32)
    num_fresh = len(labels) - _NUM_SEQUENCES
    return Pool("shakespeare", features, labels, splits.num_classes, roles, num_fresh)


_WITHOUT_FAULTS = (
    Federation(
        "digits",
        "scikit-learn's 1,797 digits, Dirichlet(0.3) over labels",
        _config(ModelConfig(name="mlp", hidden=(128,)), rounds=96, cohort=5, steps=20),
        _by_class("digits", data.dirichlet(20, 0.3, 40), num_unseen=5),
        target=0.85,
    ),
    Federation(
        "synthetic",
        "FedProx's synthetic(1, 1), 30 devices of at most 300 examples",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=96, cohort=6, steps=20),
        _synthetic,
        target=0.6,
    ),
    Federation(
        "groups",
        "FedFB's data with two sensitive groups, three populations of equally many clients",
        _config(ModelConfig(name="mlp", hidden=(16,)), rounds=32, cohort=6),
        _groups,
        target=0.85,
        sensitive_feature="group",
    ),
    Federation(
        "adult",
        "Adult by occupation",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=48, cohort=5, steps=20),
        _by_column("adult", "occupation"),
        target=0.83,
        sensitive_feature="sex",
    ),
    Federation(
        "mpls_stops",
        "police stops in Minneapolis of people of known race by neighborhood; for traffic or a "
        "suspicion",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=48, cohort=10, steps=20),
        # Nearly all stops have the same value of the default label, whether there was a search.
        _by_column("mpls_stops", "neighborhood", label="problem", known="race"),
        target=0.7,
        sensitive_feature="race",
        min_examples=150,
    ),
    Federation(
        "mnist",
        "20,000 images of MNIST, Dirichlet(0.3) over labels, 100 clients",
        _config(ModelConfig(name="mlp", hidden=(64,)), 80, cohort=16, batch_size=25),
        # With 100 test examples of each client, most of the spread would be chance.
        _by_class(
            "mnist", data.dirichlet(80, 0.3, 40), num_unseen=20, max_examples=20_000, num_test=400
        ),
        target=0.85,
    ),
    Federation(
        "census_income",
        "Census-Income by industry",
        _config(ModelConfig(name="mlp", hidden=(32,)), rounds=48, cohort=6, steps=20),
        _by_column("census_income", "industry"),
        target=0.89,
        sensitive_feature="sex",
    ),
    Federation(
        "mnist_cnn",
        "8,000 images of MNIST, Dirichlet(0.3) over labels, 40 clients; LeNet",
        _config(ModelConfig(name="lenet"), rounds=48, cohort=8, steps=8, batch_size=25),
        _by_class("mnist", data.dirichlet(32, 0.3, 40), num_unseen=8, max_examples=8_000),
        target=0.85,
    ),
    Federation(
        "shakespeare",
        "next characters of roles in Shakespeare, a fifth of their sequences",
        _config(ModelConfig(name="char_lstm", layers=1, width=32), rounds=48, cohort=5),
        _shakespeare,
        target=0.25,
        min_examples=200,
    ),
    Federation(
        "cifar10_resnet18",
        "CIFAR-10, Dirichlet(0.3) over labels, 1,000 clients; ResNet-18",
        _config(ModelConfig(name="resnet18"), rounds=112, cohort=20, batch_size=20),
        # More test examples would take as long as training.
        _by_class("cifar10", data.dirichlet(800, 0.3, 16), num_unseen=200, num_test=20),
        target=0.4,
    ),
)


def _with_dropouts(federation: Federation) -> Federation:
    config = replace(federation.config, faults=FaultsConfig(dropout=_DROPOUT))
    name, summary = f"{federation.name}_dropouts", f"{federation.summary}; {_DROPOUT:.0%} drop out"
    return federation._replace(
        name=name, summary=summary, config=config, variant_of=federation.name
    )


FEDERATIONS = {
    each.name: each
    for each in (
        *_WITHOUT_FAULTS,
        *(_with_dropouts(each) for each in _WITHOUT_FAULTS if each.name in _WITH_VARIANTS),
    )
}
"""Federated datasets by name; three have a variant with dropouts, such as ``adult_dropouts``."""


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
