"""Partition of training examples, and of separate test examples to the same clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.partitions.biased import split_by_request
from fedjax_fair.data.partitions.class_partition import split_test
from fedjax_fair.data.partitions.partition import assign_by_owner
from fedjax_fair.data.partitions.partitioner import Partition, Partitioner, column_values

__all__ = ["partition_parts"]


def partition_parts(
    partitioner: Partitioner,
    labels: Sequence[np.ndarray],
    columns: Sequence[Mapping[str, Any]],
    seed: int,
) -> list[Partition]:
    """Splits training examples, and test examples if there are any.

    Test examples are assigned by the column of clients if they have it. Otherwise every client gets
    test examples with the distribution of its training examples over classes, and over the values
    of the columns that the partitioner splits ``by`` (`split_test`); or the requested bias.

    Args:
        partitioner: The partitioner.
        labels: Classes of training and maybe of test examples; targets count as one class.
        columns: Columns of the same parts.
        seed: Seed of the partition.
    """
    partition = partitioner.split(labels[0], seed, **columns[0])
    if len(labels) == 1:
        return [partition]
    if partition.bias is not None:
        return [partition, split_by_request(partition.bias, labels[1], columns[1], seed)]
    name = partitioner.column
    if name is not None and name in columns[1]:
        owners, test_owners = (
            column_values(name, each, len(part)) for each, part in zip(columns, labels, strict=True)
        )
        # A partitioner may leave clients out.
        return [partition, assign_by_owner(owners[partition.order], test_owners)]
    classes = _joint_classes(labels, columns, partitioner.by)
    return [partition, split_test(partition, *classes, seed)]


def _joint_classes(
    labels: Sequence[np.ndarray],
    columns: Sequence[Mapping[str, Any]],
    by: Sequence[str],
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Returns a class for every combination of label and values of columns."""
    num_train = len(labels[0])
    joint = np.concatenate(labels)
    if joint.ndim > 1 or joint.dtype.kind == "f":
        joint = np.zeros(len(joint), np.int64)
    for name in by:
        parts = (
            column_values(name, each, len(part)) for each, part in zip(columns, labels, strict=True)
        )
        codes = np.unique(np.concatenate([*parts]), return_inverse=True)[1]
        # Numbered again, so that codes stay below the number of examples.
        joint = np.unique(joint * (codes.max() + 1) + codes, return_inverse=True)[1]
    return joint[:num_train], joint[num_train:]
