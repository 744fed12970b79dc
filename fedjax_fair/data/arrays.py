"""Federations made of arrays in memory or in an ``.npz`` file."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_fair import checks
from fedjax_fair.data.federated import ClientExamples, FederatedData, as_integers, validate
from fedjax_fair.data.partition import assign_by_owner, by_column, from_indices
from fedjax_fair.data.partitioner import (
    Partition,
    generator,
    hold_out_of_each,
    join_indices,
    make_partition,
)
from fedjax_fair.data.validation import hold_out

__all__ = ["federate", "from_arrays", "from_npz"]


def federate(
    train: tuple[Any, Any, Partition],
    test: tuple[Any, Any, Partition] | None,
    *,
    num_classes: int,
    name: str,
    label_skew_only: bool = False,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Puts examples and their partitions together and validates the result.

    Arrays stay NumPy's: images ``uint8`` as ``[total, height, width, channels]`` (gray ones get
    their channel axis), other integers int32, floats float32.

    Args:
        train: Features, labels and partition of the training examples.
        test: The same of the test examples. None holds out a random ``floor(test_fraction * size)``
            of each client's training examples, so that every client keeps at least one.
        num_classes: Number of classes.
        name: What the data is called in results.
        label_skew_only: Whether both partitions give clients random examples of their classes.
        test_fraction: Part of every client's examples held out, in ``[0, 1)``.
        validation_fraction: Part of every client's training examples that is then held out for choices
            (`hold_out`), in ``[0, 1)``; nothing by default.
        seed: Seed of the choice of held-out examples.

    Returns:
        The federation. ``groups`` are those of the training partition.

    Raises:
        ValueError: If anything does not fit together.
    """
    checks.positive_int("num_classes", num_classes)
    checks.unit_interval("test_fraction", test_fraction)
    checks.unit_interval("validation_fraction", validation_fraction)
    checks.non_negative_int("seed", seed)
    features, labels, partition = train
    groups: Any = partition.groups
    num_unassigned = 0 if test is not None else len(partition.unassigned)
    if test is None:
        # Apart from the streams that split examples.
        train_part, test_part = hold_out_of_each(partition, test_fraction, generator(seed, 2))
        # Two copies of disjoint parts, not two views of everything: that would cost twice the
        # memory once both are on a device.
        train = _compact(features, labels, train_part)
        test = _compact(features, labels, test_part)
    examples = _client_examples(*train), _client_examples(*test)
    data = FederatedData(*examples, groups, num_classes, name, label_skew_only, num_unassigned)
    validate(data)
    return hold_out(data, validation_fraction, seed) if validation_fraction else data


def _compact(features: Any, labels: Any, partition: Partition):
    """Copies the owned examples, in the order of their owners."""
    order = np.arange(len(partition.order))
    return (
        np.asarray(features)[partition.order],
        np.asarray(labels)[partition.order],
        make_partition(order, partition.sizes, len(order)),
    )


def _client_examples(features: Any, labels: Any, partition: Partition) -> ClientExamples:
    offsets = np.cumsum(partition.sizes) - partition.sizes
    # NumPy's arrays where the container names JAX's: the training loop moves them once.
    arrays: Any = (
        _as_features(features),
        _labels("labels", labels),
        partition.order,
        offsets.astype(np.int32),
        partition.sizes,
    )
    return ClientExamples(*arrays)


def _as_features(features: Any) -> np.ndarray:
    array = np.asarray(features)
    if 0 in array.shape[1:]:
        raise ValueError(f"features of shape {array.shape}: expected numbers for every example.")
    if array.dtype == np.uint8:
        return array[..., None] if array.ndim == 3 else array
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32, copy=False)
    if np.issubdtype(array.dtype, np.integer):
        return _as_int32("features", array)
    raise ValueError(
        f"features of {array.dtype}: expected uint8, integers or floats; encode anything else as "
        "numbers first."
    )


def _as_int32(name: str, values: np.ndarray) -> np.ndarray:
    """The same integers in 32 bits; those that do not fit would become others."""
    limits = np.iinfo(np.int32)
    if values.size and not limits.min <= values.min() <= values.max() <= limits.max:
        raise ValueError(
            f"{name} span [{values.min()}, {values.max()}]: expected integers of 32 bits."
        )
    return values.astype(np.int32, copy=False)


def from_arrays(
    features: Any,
    labels: Any,
    client_indices: Mapping[Any, Any] | Sequence[Any],
    *,
    test_features: Any = None,
    test_labels: Any = None,
    test_client_indices: Sequence[Any] | None = None,
    groups: Any = None,
    num_classes: int | None = None,
    name: str = "custom",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Makes a federation of arrays in memory.

    Args:
        features: Inputs, ``[total, ...]``: images ``uint8`` ``[total, height, width, channels]`` or
            gray without channels, otherwise floats or integers.
        labels: Classes, ``[total]``, integers from 0; or targets, floats ``[total, outputs]``, for
            a model whose loss compares outputs with them (`models.as_regression`,
            `models.as_multi_label`).
        client_indices: Indices of each client's examples, none empty, no index twice; in a list, or
            by names of clients.
        test_features: Test inputs; the three test arguments are given together or not at all.
        test_labels: Test classes or targets.
        test_client_indices: Indices of each client's test examples; they may be empty.
        groups: Planted group of each client, ``[clients]``.
        num_classes: Number of classes; by default one more than the largest label, where the
            smallest is 0. Of targets it is the number of outputs.
        name: What the data is called in results.
        test_fraction: Without test arguments, the part of each client's examples that is held out
            for testing, rounded down; at least one is kept for training. In ``[0, 1)``.
        validation_fraction: Part of every client's training examples, those of the test aside, that is held
            out for choices (`hold_out`). In ``[0, 1)``.
        seed: Seed of the choice of held-out examples.

    Returns:
        A validated federation of NumPy arrays.

    Raises:
        ValueError: If the arrays do not fit together (see ``validate``).

    Examples:
        >>> data = from_arrays(np.eye(10), np.arange(10) % 2, [range(5), range(5, 10)])
        >>> data.train.sizes.tolist(), data.test.sizes.tolist(), data.num_classes
        ([4, 4], [1, 1], 2)
    """
    labels = _labels("labels", labels)
    _check_as_many("features", features, labels)
    partition = from_indices(client_indices).split(labels, seed)
    if groups is not None:
        partition = make_partition(
            partition.order, partition.sizes, len(labels), as_integers("groups", groups)
        )
    test = None
    given = [test_features is not None, test_labels is not None, test_client_indices is not None]
    if test_client_indices is not None and all(given):
        test_labels = _labels("test_labels", test_labels)
        _check_as_many("test_features", test_features, test_labels)
        order, sizes = join_indices(test_client_indices, len(test_labels))
        test = (test_features, test_labels, make_partition(order, sizes, len(test_labels)))
    elif any(given):
        raise ValueError(
            "test_features, test_labels, test_client_indices: expected all three or none, got "
            f"{given}."
        )
    if num_classes is None and labels.ndim > 1:
        num_classes = int(labels.shape[1])
    if num_classes is None:
        every = np.concatenate([labels, np.zeros(0, labels.dtype) if test is None else test[1]])
        if every.min() > 0:
            raise ValueError(
                f"labels span [{every.min()}, {every.max()}]: expected classes from 0. Are they "
                f"meant as {every.max() - every.min() + 1}, labels - {every.min()}? Or as "
                f"num_classes={every.max() + 1}, without examples of the first?"
            )
        num_classes = 1 + int(every.max())
    return federate(
        (features, labels, partition),
        test,
        num_classes=num_classes,
        name=name,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        seed=seed,
    )


def _labels(name: str, labels: Any) -> np.ndarray:
    """Requires the classes of examples, or their targets."""
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] and np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32, copy=False)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{name} of {array.dtype} and shape {array.shape}: expected the class of each example, "
            "1-D integers from 0; np.unique(labels, return_inverse=True)[1] makes such of others. "
            "Targets are floats [total, outputs]."
        )
    return _as_int32(name, array)


def _check_as_many(name: str, features: Any, labels: np.ndarray) -> None:
    shape = np.shape(features)
    if shape[:1] != labels.shape[:1]:
        raise ValueError(f"{name} of shape {shape}: expected one for each of {len(labels)} labels.")


def from_npz(
    path: str | os.PathLike[str],
    *,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Reads a federation from an ``.npz`` file, without pickles.

    Args:
        path: A file with the arrays ``features [total, ...]``, ``labels [total]`` and ``client
            [total]``, the owner of each example: an integer or a string. Optional are
            ``test_features``, ``test_labels`` and ``test_client`` (together; every owner must have
            training examples), ``groups [clients]`` and ``num_classes``. Clients are the distinct
            owners, ascending.
        test_fraction: As in ``from_arrays``, where the file has no test examples.
        validation_fraction: As in ``from_arrays``.
        seed: As in ``from_arrays``.

    Returns:
        A validated federation named after the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, holds pickles or lacks an array, or
            they do not fit together.

    Examples:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "wards.npz")
        >>> np.savez(path, features=np.eye(4), labels=[0, 1, 0, 1], client=["a", "b", "a", "b"])
        >>> from_npz(path).train.order.tolist()
        [0, 1, 2, 3]
    """
    arrays = _read_npz(path)
    if missing := {"features", "labels", "client"} - set(arrays):
        raise ValueError(f"{path} lacks {sorted(missing)}: expected features, labels and client.")
    try:
        return _from_named_arrays(arrays, path, test_fraction, validation_fraction, seed)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _from_named_arrays(
    arrays: dict[str, np.ndarray],
    path: str | os.PathLike[str],
    test_fraction: float,
    validation_fraction: float,
    seed: int,
) -> FederatedData:
    client, labels = arrays["client"], _labels("labels", arrays["labels"])
    if client.dtype.kind not in "iuUS":
        raise ValueError(f"client of {client.dtype}: expected integers or strings.")
    test_client_indices = None
    if "test_client" in arrays:
        test = assign_by_owner(client, arrays["test_client"])
        if (
            test.unassigned.size
            or arrays["test_client"].shape != arrays.get("test_labels", client).shape
        ):
            raise ValueError(
                f"test_client of shape {arrays['test_client'].shape}: expected an owner with "
                f"training examples for every test example, {test.unassigned.size} have none."
            )
        test_client_indices = test.client_indices
    return from_arrays(
        arrays["features"],
        labels,
        by_column("client").split(labels, seed, client=client).client_indices,
        test_features=arrays.get("test_features"),
        test_labels=arrays.get("test_labels"),
        test_client_indices=test_client_indices,
        groups=arrays.get("groups"),
        num_classes=_num_classes(arrays.get("num_classes")),
        name=os.path.splitext(os.path.basename(path))[0],
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        seed=seed,
    )


def _num_classes(given: np.ndarray | None) -> int | None:
    if given is None:
        return None
    if given.ndim or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"num_classes={given.tolist()!r}: expected one integer.")
    return int(given)


def _read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    size = os.path.getsize(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_contents(archive, size)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _DAMAGED as error:
        raise ValueError(f"{path}: expected an .npz file of plain arrays ({error}).") from error


_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(TypeError, ValueError, OSError),  # The last, nameless, of a place before the file.
)


def _check_contents(archive: zipfile.ZipFile, file_size: int) -> None:
    """Requires that arrays are as large as the file says, before memory is taken for them."""
    claimed = 0
    for entry in archive.infolist():
        with archive.open(entry) as file:
            version = np.lib.format.read_magic(file)
            first = np.lib.format.read_array_header_1_0
            read = first if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            held = entry.file_size - file.tell()
        array = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and array != held:
            raise ValueError(f"{entry.filename} claims {array:,} bytes and holds {held:,}")
        claimed += array
    if claimed > _MAX_DEFLATE_RATIO * file_size:
        raise ValueError(f"{claimed:,} bytes can not be in a file of {file_size:,}")


_MAX_DEFLATE_RATIO = 1032  # Of zlib; an uncompressed file holds what its size is.
