"""Federations by name: scikit-learn's digits, sets of tensorflow-datasets, original files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_fair import checks
from fedjax_fair.data import raw_files, tfds_images
from fedjax_fair.data.arrays import federate
from fedjax_fair.data.bundled import BUNDLED, Examples, Splits
from fedjax_fair.data.class_partition import classes_per_client, split_test
from fedjax_fair.data.federated import FederatedData, stack
from fedjax_fair.data.flwr import FlwrPartitioner, as_partitioner
from fedjax_fair.data.partition import assign_by_owner, iid
from fedjax_fair.data.partitioner import Partitioner
from fedjax_fair.data.tfds_folder import DamagedError, names_prepared, resolve_data_dir

__all__ = [
    "Description",
    "available",
    "default_partition",
    "default_split",
    "describe",
    "load",
    "prepare",
]

KNOWN = (*BUNDLED, "mnist", "fashion_mnist", "cifar10", "cifar100", "emnist/byclass")


def default_split(name: str) -> tuple[str, int]:
    """The kind of partition of a data set for which none is named, and its number of clients.

    Examples:
        >>> default_split("mnist"), default_split("cifar100")
        (('classes_per_client', 100), ('iid', 100))
    """
    clients = 50 if name == "digits" else 100
    return ("classes_per_client" if name in ("digits", "mnist", "cifar10") else "iid"), clients


def default_partition(name: str) -> Partitioner:
    """The partition of a data set for which none is named.

    Examples:
        >>> default_partition("mnist").name, default_partition("cifar100").name
        ('classes_per_client(100, 3)', 'iid(100)')
    """
    split, clients = default_split(name)
    return iid(clients) if split == "iid" else classes_per_client(clients)


def load(
    name: str,
    partition: Partitioner | FlwrPartitioner | None = None,
    seed: int | Sequence[int] = 0,
    data_dir: str | os.PathLike[str] | None = None,
    validation_fraction: float = 0.0,
) -> FederatedData:
    """Loads a data set and splits it over clients.

    ``digits``, 1,797 gray images of 8x8 pixels, comes with scikit-learn. Its values 0 to 16 are
    scaled to 0 to 255 like those of every other set, and every fifth image of each class, in the
    order of the file, is for testing (355 of them). Names that are not in
    `fedjax_fair.data.bundled` are those of image classification sets in tensorflow-datasets
    (``mnist``, ``fashion_mnist``, ``cifar10``, ``cifar100``, ``emnist/byclass``, ...), prepared
    beforehand. They are decoded once and then read from a checked cache beside the set, or in the
    user's cache folder where that is not writable. Images of EMNIST are turned upright:
    tensorflow-datasets stores them transposed.

    Test examples are split with the class mix of each client's training examples, or to their
    owners where the partition follows a column. Where a set has no test split, a fifth of each
    client's examples is held out.

    Args:
        name: Name of the data set.
        partition: How to split it; by default ``default_partition(name)``. One of flwr-datasets
            does as it is, with a seed of its own; it finds the labels as the column ``label``.
        seed: Seed of the partition, a non-negative integer. Several give one partition for each run
            of ``fit`` (``fedjax_fair.data.stack``).
        data_dir: Folder of prepared sets; by default the environment variable
            ``TFDS_DATA_DIR``, or else ``~/tensorflow_datasets``. Where MNIST, Fashion-MNIST or
            CIFAR are not prepared there, the files that their authors distribute are looked for
            (`fedjax_fair.data.raw_files`); their examples are the same in another order.
        validation_fraction: Part of every client's training examples that is held out for choices
            (`hold_out`), in ``[0, 1)``.

    Returns:
        A validated federation with ``uint8`` images ``[total, height, width, channels]``.

    Raises:
        FileNotFoundError: If the set is not prepared; the message names the command that does it.
        ValueError: If it is damaged or no image classification set, or the partition is impossible.

    Examples:
        >>> data = load("digits", seed=1)
        >>> data.num_clients, data.train.features.shape, data.num_classes
        (50, (1442, 8, 8, 1), 10)
    """
    several = isinstance(seed, Sequence)
    seeds = tuple(seed) if isinstance(seed, Sequence) else (seed,)
    if not seeds or any(not checks.is_int(each) or each < 0 for each in seeds):
        raise ValueError(f"{seed=}: expected an integer >= 0, or several.")
    chosen = default_partition(name) if partition is None else as_partitioner(partition)
    source = BUNDLED[name]() if name in BUNDLED else _images(name, data_dir)
    federations = [_split(name, source, chosen, each, validation_fraction) for each in seeds]
    return stack(federations) if several else federations[0]


def _split(
    name: str,
    source: Splits,
    partition: Partitioner,
    seed: int,
    validation_fraction: float,
) -> FederatedData:
    train, test, num_classes = source
    train_partition = partition.split(train.labels, seed, **train.columns)
    tested = None
    if test is not None:
        if partition.column is not None and partition.column in test.columns:
            owners = train.columns[partition.column], test.columns[partition.column]
            test_partition = assign_by_owner(*owners)
        else:
            test_partition = split_test(train_partition, train.labels, test.labels, seed)
        tested = (test.features, test.labels, test_partition)
    return federate(
        (train.features, train.labels, train_partition),
        tested,
        num_classes=num_classes,
        name=name,
        label_skew_only=partition.label_skew_only,
        validation_fraction=validation_fraction,
        seed=seed,
    )


def _images(name: str, data_dir) -> Splits:
    found = _find(name, data_dir)
    if isinstance(found, raw_files.RawFiles):
        return raw_files.read(found)
    splits = {
        split: Examples(columns[found.image], columns[found.label], columns)
        for split, columns in tfds_images.read(found).items()
    }
    return Splits(splits["train"], splits.get("test"), found.num_classes)


def _find(name: str, data_dir) -> tfds_images.ImageSet | raw_files.RawFiles:
    """A prepared set, or else the files that its authors distribute."""
    try:
        return tfds_images.find(name, data_dir)
    except FileNotFoundError as error:
        found = raw_files.find(name, data_dir)
        if found is not None:
            return found
        files = raw_files.expected_files(name)
        hint = f" The original files would do as well: {files}." if files else ""
        if name not in KNOWN and (close := difflib.get_close_matches(name.casefold(), KNOWN, n=1)):
            hint = f" Did you mean {close[0]!r}?"
        raise FileNotFoundError(f"{error}{hint}") from None


class Description(NamedTuple):
    """What is known of a data set without reading its examples.

    Attributes:
        name: What ``load`` calls it.
        prepared: Whether it can be loaded.
        folder: Where it is, or would be; None for one that is bundled.
        shape: Height, width and channels of an image; None if it is not prepared.
        num_classes: Number of classes; None if it is not prepared.
        num_train: Number of training examples; None if it is not prepared.
        num_test: Number of test examples; None if it is not prepared.
        partition: Name of the default partition.
        validation: What a tenth of each client's training examples is then, as a sweep holds out.
        damage: Why it can not be loaded although it is prepared; None otherwise.
    """

    name: str
    prepared: bool
    folder: Path | None
    shape: tuple[int, ...] | None
    num_classes: int | None
    num_train: int | None
    num_test: int | None
    partition: str
    validation: str | None = None
    damage: str | None = None


def describe(name: str, data_dir: str | os.PathLike[str] | None = None) -> Description:
    """Describes one data set, prepared or not.

    Args:
        name: Name of the data set.
        data_dir: As in ``load``.

    Returns:
        Its description.

    Raises:
        ValueError: If it is prepared but damaged or no image classification set, or neither
            prepared nor one of the well-known names.

    Examples:
        >>> describe("digits").num_train
        1442
    """
    partition = default_partition(name).name
    if name in BUNDLED:
        train, test, num_classes = BUNDLED[name]()
        shape, num_test = train.features.shape[1:], 0 if test is None else len(test.labels)
        num_train = len(train.labels)
        held = _validation(name, num_train)
        return Description(
            name, True, None, shape, num_classes, num_train, num_test, partition, held
        )
    try:
        found = _find(name, data_dir)
    except FileNotFoundError as error:
        if name not in KNOWN:
            raise ValueError(str(error)) from error
        folder = resolve_data_dir(data_dir) / name
        return Description(name, False, folder, None, None, None, None, partition)
    splits = found.lengths if isinstance(found, raw_files.RawFiles) else found.splits
    return Description(
        name,
        True,
        found.folder,
        found.shape,
        found.num_classes,
        splits["train"],
        splits.get("test", 0),
        partition,
        _validation(name, splits["train"]),
    )


def _validation(name: str, num_train: int) -> str:
    """What a tenth of a client's training examples is, where all clients have equally many."""
    _, clients = default_split(name)
    each = num_train // clients
    return f"{each // 10} of about {each} training examples a client, with --data.validation-fraction 0.1"


def available(data_dir: str | os.PathLike[str] | None = None) -> list[Description]:
    """Describes the well-known data sets and all others prepared in a folder.

    Args:
        data_dir: As in ``load``.

    Returns:
        Descriptions, well-known names first; damaged sets among them, with the reason.

    Examples:
        >>> [entry.name for entry in available() if entry.folder is None]
        ['digits']
    """
    others = [name for name in names_prepared(data_dir) if name not in KNOWN]
    entries = (_describe_any(name, data_dir) for name in (*KNOWN, *others))
    return [entry for entry in entries if entry is not None]


def _describe_any(name: str, data_dir: str | os.PathLike[str] | None) -> Description | None:
    """A description, with the reason if the set is damaged; None if it is of another kind."""
    try:
        return describe(name, data_dir)
    except ValueError as error:
        if name not in KNOWN and not isinstance(error, DamagedError):
            return None
        folder, partition = resolve_data_dir(data_dir) / name, default_partition(name).name
        return Description(
            name, False, folder, None, None, None, None, partition, damage=str(error)
        )


def prepare(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Downloads and prepares a data set so that ``load`` finds it.

    Args:
        name: Name of the data set. A bundled one needs nothing.
        data_dir: As in ``load``.

    Returns:
        The folder written, None for a bundled set.

    Raises:
        ModuleNotFoundError: If TensorFlow, which preparing needs, is not installed.
        ValueError: If tensorflow-datasets knows no such set.
    """
    return None if name in BUNDLED else tfds_images.prepare(name, data_dir)
