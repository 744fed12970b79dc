"""Federated datasets from arrays in memory or in an ``.npz`` file."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_fair import checks
from fedjax_fair.data.client_examples import ClientExamples, as_integers
from fedjax_fair.data.federated import FederatedData, validate
from fedjax_fair.data.partition import assign_by_owner, by_column, from_indices
from fedjax_fair.data.partitioner import (
    Partition,
    generator,
    join_indices,
    make_partition,
    split_off,
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
    """Combines examples and their partitions to a validated federated dataset.

    Gray ``uint8`` images get a channel axis, other integers become int32, floats float32.

    Args:
        train: Features, labels and partition of the training examples.
        test: Features, labels and partition of the test examples, or None to hold them out.
        num_classes: Number of classes.
        name: Name in results.
        label_skew_only: As in `Partitioner`, for both partitions.
        test_fraction: Fraction of every client's examples held out for testing, rounded down, in
            ``[0, 1)``.
        validation_fraction: Fraction of every client's remaining training examples held out for
            validation (`hold_out`), in ``[0, 1)``.
        seed: Seed of the choice of held-out examples.

    Raises:
        ValueError: If the arguments do not fit together (see `validate`).
    """
    checks.positive_int("num_classes", num_classes)
    checks.unit_interval("test_fraction", test_fraction)
    checks.unit_interval("validation_fraction", validation_fraction)
    checks.non_negative_int("seed", seed)
    features, labels, partition = train
    num_unassigned = 0
    if test is None:
        num_unassigned = len(partition.unassigned)
        # Streams 0 and 1 split examples over clients.
        parts = split_off(partition, test_fraction, generator(seed, 2))
        # Copies of disjoint parts: two views of all examples would take twice the memory on a
        # device.
        train, test = (_compact(features, labels, part) for part in parts)
    train_part, test_part = (
        ClientExamples.of(_as_features(features), _as_labels("labels", labels), part)
        for features, labels, part in (train, test)
    )
    groups: Any = partition.groups
    data = FederatedData(
        train_part, test_part, groups, num_classes, name, label_skew_only, num_unassigned
    )
    validate(data)
    return hold_out(data, validation_fraction, seed) if validation_fraction else data


def _compact(features: Any, labels: Any, partition: Partition) -> tuple[Any, Any, Partition]:
    """Copies the assigned examples, in the order of their clients."""
    order, total = partition.order, len(partition.order)
    assigned = make_partition(np.arange(total), partition.sizes, total)
    return np.asarray(features)[order], np.asarray(labels)[order], assigned


def _as_features(features: Any) -> np.ndarray:
    array = np.asarray(features)
    if 0 in array.shape[1:]:
        raise ValueError(f"features of shape {array.shape}: expected no axis of length 0.")
    if array.dtype == np.uint8:
        return array[..., None] if array.ndim == 3 else array
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32, copy=False)
    if np.issubdtype(array.dtype, np.integer):
        return _as_int32("features", array)
    raise ValueError(
        f"features of {array.dtype}: expected uint8, integers or floats; encode other types first."
    )


def _as_labels(name: str, labels: Any) -> np.ndarray:
    """Converts classes to int32 or targets to float32."""
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] and np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32, copy=False)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{name} of {array.dtype} and shape {array.shape}: expected the class of each example, "
            "1-D integers from 0, which np.unique(labels, return_inverse=True)[1] makes of other "
            "values; or targets, floats [total, outputs]."
        )
    return _as_int32(name, array)


def _as_int32(name: str, values: np.ndarray) -> np.ndarray:
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
    """Makes a federated dataset of arrays in memory.

    Args:
        features: Inputs, ``[total, ...]``: images ``uint8`` ``[total, height, width, channels]`` or
            gray without channels, otherwise floats or integers.
        labels: Classes, ``[total]``, integers from 0; or targets, floats ``[total, outputs]``
            (`models.as_regression`, `models.as_multi_label`).
        client_indices: Indices of each client's examples, as in `from_indices`.
        test_features: Test inputs. The three test arguments are given together or not at all.
        test_labels: Test classes or targets.
        test_client_indices: Indices of each client's test examples; they may be empty.
        groups: Ground-truth group of each client, ``[clients]``.
        num_classes: Number of classes, by default one more than the largest label; of targets, the
            number of outputs.
        name: Name in results.
        test_fraction: As in `federate`, without test arguments.
        validation_fraction: As in `federate`.
        seed: As in `federate`.

    Returns:
        A validated federated dataset of NumPy arrays.

    Raises:
        ValueError: If the arrays do not fit together (see `validate`).

    Examples:
        >>> data = from_arrays(np.eye(10), np.arange(10) % 2, [range(5), range(5, 10)])
        >>> data.train.sizes.tolist(), data.test.sizes.tolist(), data.num_classes
        ([4, 4], [1, 1], 2)
    """
    labels = _as_labels("labels", labels)
    _check_length("features", features, labels)
    partition = from_indices(client_indices).split(labels, seed)
    if groups is not None:
        groups = as_integers("groups", groups).astype(np.int32)
        partition = partition._replace(groups=groups)
    test = None
    given = [test_features is not None, test_labels is not None, test_client_indices is not None]
    if test_client_indices is not None and all(given):
        test_labels = _as_labels("test_labels", test_labels)
        _check_length("test_features", test_features, test_labels)
        order, sizes = join_indices(test_client_indices, len(test_labels))
        test = (test_features, test_labels, make_partition(order, sizes, len(test_labels)))
    elif any(given):
        raise ValueError(
            "test_features, test_labels, test_client_indices: expected all three or none, got "
            f"{given}."
        )
    if num_classes is None:
        num_classes = _num_classes(labels, np.zeros(0, labels.dtype) if test is None else test[1])
    return federate(
        (features, labels, partition),
        test,
        num_classes=num_classes,
        name=name,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        seed=seed,
    )


def _num_classes(labels: np.ndarray, test_labels: np.ndarray) -> int:
    if labels.ndim > 1:
        return labels.shape[1]
    labels = np.concatenate([labels, test_labels])
    first, last = labels.min(), labels.max()
    if first > 0:
        raise ValueError(
            f"labels span [{first}, {last}]: expected classes from 0. Pass labels - {first} for "
            f"{last - first + 1} classes, or num_classes={last + 1} if the first have no examples."
        )
    return 1 + int(last)


def _check_length(name: str, features: Any, labels: np.ndarray) -> None:
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
    """Reads a federated dataset from an ``.npz`` file, without pickles.

    Args:
        path: A file with ``features [total, ...]``, ``labels [total]`` and ``client [total]``, the
            owner of each example, an integer or a string; clients are the distinct owners,
            ascending. Optional are ``test_features``, ``test_labels`` and ``test_client``
            (together), ``groups [clients]`` and ``num_classes``.
        test_fraction: As in `from_arrays`.
        validation_fraction: As in `from_arrays`.
        seed: As in `from_arrays`.

    Returns:
        A validated federated dataset named after the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, contains pickles or lacks an array, or the arrays do not
            fit together.

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
        return from_arrays(
            **_arguments(arrays),
            name=os.path.splitext(os.path.basename(path))[0],
            test_fraction=test_fraction,
            validation_fraction=validation_fraction,
            seed=seed,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _arguments(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Makes arguments of ``from_arrays`` of the arrays of a file."""
    client, labels = arrays["client"], _as_labels("labels", arrays["labels"])
    if client.dtype.kind not in "iuUS":
        raise ValueError(f"client of {client.dtype}: expected integers or strings.")
    names = ("features", "test_features", "test_labels", "groups")
    arguments: dict[str, Any] = {name: arrays.get(name) for name in names}
    arguments["labels"] = labels
    arguments["client_indices"] = by_column("client").split(labels, 0, client=client).client_indices
    if "num_classes" in arrays:
        arguments["num_classes"] = arrays["num_classes"].tolist()
        checks.positive_int("num_classes", arguments["num_classes"])
    if "test_client" in arrays:
        test_client = arrays["test_client"]
        test = assign_by_owner(client, test_client)
        if test.unassigned.size or test_client.shape != arrays.get("test_labels", client).shape:
            raise ValueError(
                f"test_client of shape {test_client.shape}: expected an owner with training "
                f"examples for every test example, {test.unassigned.size} have none."
            )
        arguments["test_client_indices"] = test.client_indices
    return arguments


def _read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except _DAMAGED as error:
            raise ValueError(f"{path}: expected an .npz file of plain arrays ({error}).") from error


# MemoryError: a header that claims more than there is. NumPy commits no memory before it reads.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(AttributeError, MemoryError, OSError, TypeError, ValueError),
)
