"""Clients with flipped training labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedjax_fair import checks
from fedjax_fair.data.federated import FederatedData

__all__ = ["flip_labels"]


def flip_labels(data: FederatedData, clients: Sequence[int]) -> FederatedData:
    """Flips training labels: class ``c`` becomes ``num_classes - 1 - c``.

    Clients then differ in more than their classes, so `fedjax_fair.results.class_based` rejects
    the results.

    Args:
        data: A federated dataset with one partition.
        clients: Ids of the clients whose labels are flipped.

    Returns:
        A federated dataset that shares all other arrays.

    Raises:
        ValueError: If a client does not exist, labels are no classes, or there are several
            partitions.

    Examples:
        >>> from fedjax_fair.data import from_arrays
        >>> data = from_arrays(np.eye(4), [0, 1, 2, 2], [[0, 1], [2, 3]], test_fraction=0.0)
        >>> flip_labels(data, [1]).train.labels.tolist()
        [0, 1, 0, 0]
    """
    checks.items("clients", clients, data.num_clients)
    if data.num_partitions is not None:
        raise ValueError(f"data has {data.num_partitions} partitions: expected one.")
    train = data.train
    labels = np.array(train.labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"data has labels of {labels.dtype}: expected classes, integers.")
    owners = np.repeat(np.arange(data.num_clients), np.asarray(train.sizes))
    indices = np.asarray(train.order)[: owners.size][np.isin(owners, np.asarray(clients, np.int64))]
    labels[indices] = data.num_classes - 1 - labels[indices]
    return data._replace(train=train._replace(labels=labels), label_skew_only=False)
