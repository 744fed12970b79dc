"""Clients with flipped training labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedjax_fair.data.conversion import as_array
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.utils import checks

__all__ = ["flip_labels"]


def flip_labels(data: FederatedData, clients: Sequence[int]) -> FederatedData:
    """Flips training labels: class ``c`` becomes ``num_classes - 1 - c``; masked ones stay.

    Args:
        data: A federated dataset with one partition.
        clients: Ids of the clients whose labels are flipped.

    Returns:
        A federated dataset that shares all other arrays.

    Examples:
        >>> from fedjax_fair.data import from_arrays
        >>> data = from_arrays(np.eye(4), [0, 1, 2, 2], [[0, 1], [2, 3]], test_fraction=0.0)
        >>> flip_labels(data, [1]).train.labels.tolist()
        [0, 1, 0, 0]
    """
    ids = as_array("clients", clients)
    checks.items("clients", ids, data.num_clients)
    if data.num_partitions is not None:
        raise ValueError(f"data has {data.num_partitions} partitions: expected one.")
    train = data.train
    labels = np.array(train.labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"data has labels of {labels.dtype}: expected classes, integers.")
    owners = np.repeat(np.arange(data.num_clients), np.asarray(train.sizes))
    indices = np.asarray(train.order)[: owners.size][np.isin(owners, ids)]
    is_flipped = np.zeros(labels.shape, bool)
    is_flipped[indices] = labels[indices] != MASKED_LABEL
    labels[is_flipped] = data.num_classes - 1 - labels[is_flipped]
    return data._replace(train=train._replace(labels=labels), label_skew_only=False)
