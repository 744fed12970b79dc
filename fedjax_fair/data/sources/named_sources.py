"""Federated datasets by name: the table of data sources, and functions that use it."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Sequence
from functools import partial
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.data.arrays import federate
from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.federated import FederatedData, stack
from fedjax_fair.data.partitions.class_partition import classes_per_client
from fedjax_fair.data.partitions.flwr import FlwrPartitioner, as_partitioner
from fedjax_fair.data.partitions.partition import by_column, natural
from fedjax_fair.data.partitions.partition_of_test import partition_parts
from fedjax_fair.data.partitions.partitioner import Partitioner
from fedjax_fair.data.sources import raw_files, tfds_images
from fedjax_fair.data.sources.logistic import read_synthetic
from fedjax_fair.data.sources.shakespeare import find_shakespeare, read_shakespeare
from fedjax_fair.data.sources.source import (
    DataDir,
    Examples,
    Source,
    Splits,
    bundled,
    resolve_data_dir,
)
from fedjax_fair.data.sources.table_sources import TABLES, table_source
from fedjax_fair.data.sources.tfds_folder import names_prepared
from fedjax_fair.utils import checks

__all__ = ["SOURCES", "Description", "available", "describe", "get_source", "load", "prepare"]


def _images(name: str, **defaults: Any) -> Source:
    """Returns the source of an image set of tensorflow-datasets, or of its original files."""
    find = partial(_find_images, name)
    return Source(methodcaller("read"), find, attrgetter("info"), **defaults)


def _find_images(name: str, data_dir: DataDir) -> tfds_images.ImageSet | raw_files.RawFiles:
    try:
        return tfds_images.find(name, data_dir)
    except FileNotFoundError as error:
        if (files := raw_files.find(name, data_dir)) is not None:
            return files
        hint = ""
        if expected := raw_files.expected_files(name):
            hint = f" The original files also work: {expected}."
        elif name not in SOURCES:
            close = difflib.get_close_matches(name.casefold(), SOURCES, n=1)
            hint = "".join(f" Did you mean {other!r}?" for other in close)
        raise FileNotFoundError(f"{error}{hint}") from None


def _read_digits(_location: None = None) -> Splits:
    """Reads 1,797 gray images of 8 x 8 pixels, every fifth of each class for testing."""
    pixels, labels = _pixels_and_labels()
    images = np.rint(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    testing = np.zeros(len(labels), bool)
    for label in range(10):
        testing[np.flatnonzero(labels == label)[4::5]] = True
    train, test = (Examples(images[part], labels[part]) for part in (~testing, testing))
    return Splits(train, test, 10)


def _pixels_and_labels() -> tuple[np.ndarray, np.ndarray]:
    # Importing scikit-learn takes longer than reading its one file that is needed.
    spec = importlib.util.find_spec("sklearn")
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, np.int64, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels), np.asarray(labels)


def _synthetic(alpha: float, beta: float, **settings: Any) -> Source:
    """Returns a synthetic source with the settings of FedProx."""
    return Source(
        partial(read_synthetic, alpha, beta, **settings),
        partition=lambda _: by_column("device"),
        num_clients=30,
        client="device",
        model="logistic",
        learning_rate=0.01,
        batch_size=10,
        epochs=20,
        rounds=200,
    )


SOURCES: dict[str, Source] = {
    "digits": Source(
        _read_digits,
        partition=classes_per_client,
        num_clients=50,
        model="mlp",
        learning_rate=0.1,
        batch_size=10,
        epochs=5,
    ),
    # Names of the folders of FedProx's repository.
    "synthetic_iid": _synthetic(0.0, 0.0, independent=True),
    "synthetic_0_0": _synthetic(0.0, 0.0),
    "synthetic_0.5_0.5": _synthetic(0.5, 0.5),
    "synthetic_1_1": _synthetic(1.0, 1.0),
    "mnist": _images("mnist", partition=classes_per_client, model="lenet"),
    "fashion_mnist": _images("fashion_mnist", model="lenet"),
    "cifar10": _images("cifar10", partition=classes_per_client, model="cifar_cnn", rounds=400),
    "cifar100": _images("cifar100", model="cifar100_cnn", rounds=400),
    "emnist/byclass": _images("emnist/byclass", model="femnist_cnn"),
    "adult": table_source("adult", num_clients=5),
    "compas": table_source("compas", num_clients=5),
    "census_income": table_source("census_income", num_clients=20),
    "mpls_stops": table_source("mpls_stops", num_clients=20),
    **{name: table_source(name, num_clients=50) for name in TABLES if name.startswith("acs_")},
    "shakespeare": Source(
        read_shakespeare,
        find_shakespeare,
        partition=natural,
        num_clients=None,
        model="char_lstm",
        learning_rate=1.0,
        batch_size=10,
        settings=("length", "min_characters"),
    ),
}
"""Data sources by name; `get_source` also returns those of other image sets."""


def get_source(name: str) -> Source:
    """Returns the entry of ``SOURCES``, or else the source of a tensorflow-datasets image set.

    Examples:
        >>> get_source("mnist").model, get_source("svhn_cropped").model
        ('lenet', 'resnet18')
    """
    return SOURCES.get(name) or _images(name)


def load(
    name: str,
    partition: Partitioner | FlwrPartitioner | None = None,
    seed: int | Sequence[int] = 0,
    data_dir: DataDir = None,
    validation_fraction: float = 0.0,
    **settings: Any,
) -> FederatedData:
    """Loads a data set and splits it over clients.

    ``digits`` comes with scikit-learn: 1,797 gray images of 8 x 8 pixels, scaled to 0 to 255, every
    fifth of each class for testing. Names that are not in ``SOURCES`` are those of image
    classification sets in tensorflow-datasets, which are decoded once and then read from a cache.

    Test examples follow the class distribution of each client's training examples, or the
    partition's column. Without a test split, a fifth of each client's examples is held out.

    Args:
        name: Name of the data set.
        partition: A partitioner of this package or of flwr-datasets; by default that of `Source`.
        seed: Non-negative seed of the partition, or a sequence for one partition per run (`stack`).
        data_dir: Folder of prepared sets, or of the original files of MNIST, Fashion-MNIST or CIFAR
            (`fedjax_fair.data.sources.raw_files`), in which the same examples have another order.
            By default the environment variable ``TFDS_DATA_DIR``, or ``~/tensorflow_datasets``.
        validation_fraction: As in `hold_out`; 0 for no validation examples.
        **settings: Settings of the data set: ``length`` and ``min_characters`` of ``shakespeare``
            (`fedjax_fair.data.sources.shakespeare.read_shakespeare`).

    Raises:
        FileNotFoundError: If the data set is missing; the message contains the command that
            prepares it.
        ValueError: If it is damaged or no image classification set, or the partition is impossible.

    Examples:
        >>> data = load("digits", seed=1)
        >>> data.num_clients, data.train.features.shape, data.num_classes
        (50, (1442, 8, 8, 1), 10)
    """
    checks.instance("name", name, str, "'digits'")
    seeds = tuple(seed) if isinstance(seed, Sequence) else (seed,)
    if not seeds or any(not checks.is_int(one) or one < 0 for one in seeds):
        raise ValueError(
            f"{seed=}: expected an integer >= 0, or a sequence of them, such as (0, 1)."
        )
    entry = get_source(name)
    if unknown := settings.keys() - set(entry.settings):
        raise ValueError(
            f"{min(unknown)}={settings[min(unknown)]!r} is no setting of {name}; expected "
            f"{' or '.join(entry.settings) or 'none'}; remove it."
        )
    partitioner = entry.partitioner if partition is None else as_partitioner(partition)
    splits = entry.read(entry.find(data_dir), **settings)
    if partitioner.column is not None:
        splits = splits.without_feature(partitioner.column)
    per_seed = [_split(name, splits, partitioner, one, validation_fraction) for one in seeds]
    return stack(per_seed) if isinstance(seed, Sequence) else per_seed[0]


def _split(
    name: str, splits: Splits, partitioner: Partitioner, seed: int, validation_fraction: float
) -> FederatedData:
    parts = [splits.train] if splits.test is None else [splits.train, splits.test]
    labels, columns = [part.labels for part in parts], [part.columns for part in parts]
    partitions = partition_parts(partitioner, labels, columns, seed)
    sensitive = [
        {name: part.columns[name] for name in splits.sensitive_features} or None for part in parts
    ]
    federated = federate(
        *((part.features, part.labels, each) for part, each in zip(parts, partitions, strict=True)),
        num_classes=splits.num_classes,
        name=name,
        label_skew_only=partitioner.label_skew_only,
        validation_fraction=validation_fraction,
        seed=seed,
        sensitive_features=sensitive[0],
        test_sensitive_features=None if splits.test is None else sensitive[1],
    )
    return federated._replace(encoding=splits.encoding)


class Description(NamedTuple):
    """Summary of a data set.

    Attributes:
        name: Name for ``load``.
        prepared: Whether it can be loaded.
        folder: Folder of its files, existing or expected; None if an installed package contains it.
        shape: As in `Info`; None if not prepared.
        num_classes: Likewise.
        num_train: Likewise.
        num_test: Likewise.
        partition: Name of the default partition.
        validation: Size of a tenth of each client's training examples.
        damage: Error of a damaged data set.
        missing: For one that is not prepared, how to get it.
    """

    name: str
    prepared: bool
    folder: Path | None
    shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    num_train: int | None = None
    num_test: int | None = None
    partition: str = ""
    validation: str | None = None
    damage: str | None = None
    missing: str | None = None


def describe(name: str, data_dir: DataDir = None) -> Description:
    """Describes one data set, prepared or not.

    Raises:
        ValueError: If it is damaged, no image classification set, or neither prepared nor in
            ``SOURCES``.

    Examples:
        >>> describe("digits").num_train
        1442
    """
    entry = get_source(name)
    try:
        info = entry.info(data_dir)
    except FileNotFoundError as error:
        if name not in SOURCES:
            raise ValueError(str(error)) from error
        return _missing(name, data_dir, missing=str(error))
    tenth = "a tenth of each client's training examples"
    if entry.client is None and entry.num_clients is not None:
        size = info.num_train // entry.num_clients
        tenth = f"{size // 10} of about {size} training examples per client"
    tenth += ", with --data.validation-fraction 0.1"
    return Description(name, True, *info, entry.partitioner.name, tenth)


def _missing(
    name: str, data_dir: DataDir, *, damage: str | None = None, missing: str | None = None
) -> Description:
    folder, partition = resolve_data_dir(data_dir) / name, get_source(name).partitioner.name
    return Description(name, False, folder, partition=partition, damage=damage, missing=missing)


def available(data_dir: DataDir = None) -> list[Description]:
    """Describes the data sets of ``SOURCES``, and all other image sets prepared in a folder.

    Examples:
        >>> [entry.name for entry in available() if entry.folder is None]
        ['digits', 'synthetic_iid', 'synthetic_0_0', 'synthetic_0.5_0.5', 'synthetic_1_1']
    """
    entries = []
    for name in dict.fromkeys([*SOURCES, *names_prepared(data_dir)]):
        try:
            entries.append(describe(name, data_dir))
        except ValueError as error:
            # Sets of another kind, such as text, are left out.
            if name in SOURCES or isinstance(error, DamagedError):
                entries.append(_missing(name, data_dir, damage=str(error)))
    return entries


def prepare(name: str, data_dir: DataDir = None) -> Path | None:
    """Downloads and prepares a data set for ``load``.

    Returns:
        The folder written; None if an installed package contains the data set.

    Raises:
        ModuleNotFoundError: If TensorFlow, which preparing needs, is not installed.
        ValueError: If tensorflow-datasets has no such set, or it is a table, which is not
            downloaded.
    """
    if name in TABLES:
        files = [f"tables/{name}.csv.gz", *TABLES[name].originals]
        raise ValueError(
            f"{name=}: expected files that are downloaded by hand into data.dir, one of "
            f"{files[0]} or {', '.join(files[1:]) or 'its uncompressed form'}."
        )
    return None if get_source(name).find is bundled else tfds_images.prepare(name, data_dir)
