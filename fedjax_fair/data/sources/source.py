"""Types of data sources: data sets before they are split over clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.data.partitions.partition import iid
from fedjax_fair.data.partitions.partitioner import Partitioner
from fedjax_fair.data.tables.table_encoding import TableEncoding

__all__ = ["DataDir", "Examples", "Info", "Source", "Splits", "resolve_data_dir"]

DataDir = str | os.PathLike[str] | None


class Examples(NamedTuple):
    """Examples of one split; ``columns`` are further values per example, such as a writer."""

    features: np.ndarray
    labels: np.ndarray
    columns: Mapping[str, np.ndarray] = MappingProxyType({})


class Splits(NamedTuple):
    """A data set in memory.

    Attributes:
        train: Training examples.
        test: Test examples, or None to hold out a fifth of each client's examples.
        num_classes: Number of classes.
        sensitive_features: Columns of the examples that are sensitive features.
        encoding: Encoding of a table as features, or None.
    """

    train: Examples
    test: Examples | None
    num_classes: int
    sensitive_features: tuple[str, ...] = ()
    encoding: TableEncoding | None = None

    def without_feature(self, column: str) -> Splits:
        """Removes the features of a column of a table, which stays among ``columns``."""
        if self.encoding is None:
            return self
        owners = [each.name for each in self.encoding.columns for _ in each.feature_names]
        kept = np.array(owners) != column
        train, test = (
            part and part._replace(features=part.features[:, kept])
            for part in (self.train, self.test)
        )
        assert train is not None
        return self._replace(train=train, test=test, encoding=self.encoding.without(column))


class Info(NamedTuple):
    """Description of a data set.

    Attributes:
        folder: Folder of its files, or None if an installed package contains it.
        shape: Shape of the features of one example.
        num_classes: Number of classes.
        num_train: Number of training examples.
        num_test: Number of test examples.
    """

    folder: Path | None
    shape: tuple[int, ...]
    num_classes: int
    num_train: int
    num_test: int


def bundled(_data_dir: DataDir) -> None:
    """Returns None: an installed package contains the data set."""


class Source(NamedTuple):
    """A named data set and the defaults for training on it.

    Attributes:
        read: ``read(location, **settings) -> Splits`` reads all examples.
        find: ``find(data_dir) -> location`` finds the files without reading examples; it raises
            FileNotFoundError or `DamagedError`.
        describe: ``describe(location) -> Info``; by default from the examples.
        partition: Factory of the default partitioner, called with ``num_clients``.
        num_clients: Default number of clients; None for those of the data set.
        model: Default network, a name of the model registry.
        learning_rate: Default learning rate of SGD.
        batch_size: Default size of minibatches.
        epochs: Default number of local epochs.
        rounds: Default number of rounds.
        client: Column whose values are the clients by default; None if ``partition`` makes them.
        settings: Keyword arguments of ``read`` that are settings of `load` and fields of
            ``--data``.
    """

    read: Callable[..., Splits]
    find: Callable[[DataDir], Any] = bundled
    describe: Callable[[Any], Info] | None = None
    partition: Callable[[Any], Partitioner] = iid
    num_clients: int | None = 100
    model: str = "resnet18"
    learning_rate: float = 0.05
    batch_size: int = 50
    epochs: int = 1
    rounds: int = 100
    client: str | None = None
    settings: tuple[str, ...] = ()

    @property
    def needs_folder(self) -> bool:
        """True if its files are in a folder, not in an installed package."""
        return self.find is not bundled

    @property
    def partitioner(self) -> Partitioner:
        """The default partitioner."""
        return self.partition(self.num_clients)

    def info(self, data_dir: DataDir = None) -> Info:
        """Describes the data set in a folder; raises as ``find`` does."""
        location = self.find(data_dir)
        if self.describe is not None:
            return self.describe(location)
        train, test, num_classes, *_ = self.read(location)
        num_test = 0 if test is None else len(test.labels)
        return Info(None, train.features.shape[1:], num_classes, len(train.labels), num_test)


def resolve_data_dir(data_dir: DataDir) -> Path:
    """Returns the folder of data sets: the argument, ``TFDS_DATA_DIR`` or the default of tfds."""
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
