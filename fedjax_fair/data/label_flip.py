"""Clients whose labels are wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedjax_fair import checks
from fedjax_fair.data.federated import FederatedData

__all__ = ["flip_labels"]


def flip_labels(data: FederatedData, clients: Sequence[int]) -> FederatedData:
    """Makes some clients train on wrong labels: class ``c`` becomes ``num_classes - 1 - c``.

    Test examples keep their labels. Clients differ in more than their numbers of examples of each
    class then, so that `fedjax_fair.results.class_based` refuses the results.

    Args:
        data: A federation with one partition.
        clients: Ids of those whose training labels are flipped.

    Returns:
        A federation that shares everything else.

    Raises:
        ValueError: If a client does not exist, labels are no classes, or every run has a partition
            of its own.

    Examples:
        >>> from fedjax_fair.data import from_arrays
        >>> data = from_arrays(np.eye(4), [0, 1, 2, 2], [[0, 1], [2, 3]], test_fraction=0.0)
        >>> flip_labels(data, [1]).train.labels.tolist()
        [0, 1, 0, 0]
    """
    checks.items("clients", clients, data.num_clients)
    if data.num_partitions is not None:
        raise ValueError("data: expected one partition, not one for every run.")
    train = data.train
    labels = np.array(train.labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"data: expected classes as labels, got {labels.dtype}.")
    order, sizes = np.asarray(train.order), np.asarray(train.sizes)
    owners = np.repeat(np.arange(data.num_clients), sizes)
    rows = order[: owners.size][np.isin(owners, np.asarray(clients, np.int64))]
    labels[rows] = data.num_classes - 1 - labels[rows]
    return data._replace(train=train._replace(labels=labels), label_skew_only=False)
