"""Changed labels of the training examples of some clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.conversion import as_array
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.partitions.partitioner import generator
from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.utils import checks

__all__ = ["flip_labels", "inject_label_bias"]


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
    labels, indices, _ = _training_labels(data, clients)
    is_flipped = np.zeros(labels.shape, bool)
    is_flipped[indices] = labels[indices] != MASKED_LABEL
    labels[is_flipped] = data.num_classes - 1 - labels[is_flipped]
    return data._replace(train=data.train._replace(labels=labels), label_skew_only=False)


def inject_label_bias(
    data: FederatedData,
    clients: Sequence[int],
    feature: str,
    value: Any,
    rate: float,
    seed: int = 0,
) -> FederatedData:
    """Replaces label 1 by 0 for a share of the people with one value of a sensitive feature.

    Only training labels change: test and validation labels stay true. A base rate p becomes ``p *
    (1 - rate)``; for a base rate q < p the rate is ``1 - q / p``. To remove people instead, which
    also changes sizes and prevalences, choose base rates of `biased`.

    Args:
        data: A federated dataset with one partition, two classes and sensitive features.
        clients: Ids of the clients.
        feature: Name of a sensitive feature.
        value: Its value, such as ``"F"``.
        rate: Share of the labels 1 that change at each client, in ``[0, 1]``, rounded to the
            nearest number of people.
        seed: Non-negative seed of the choice of people.

    Returns:
        A federated dataset that shares all other arrays.

    Raises:
        ValueError: If there is no such client, feature or value, there are more than two classes,
            or the rate is out of range.

    Examples:
        >>> from fedjax_fair.data import from_arrays
        >>> data = from_arrays(np.eye(4), [1, 1, 1, 0], [range(4)], test_fraction=0.0,
        ...                    sensitive_features={"sex": ["F", "F", "M", "M"]})
        >>> train = inject_label_bias(data, [0], "sex", "F", rate=1.0).train
        >>> sorted(zip(train.sensitive_features[:, 0].tolist(), train.labels.tolist()))
        [(0, 0), (0, 0), (1, 0), (1, 1)]
    """
    checks.fraction("rate", rate)
    known = dict(data.sensitive_names or ())
    if feature not in known:
        raise ValueError(f"{feature=}: expected one of the sensitive features {list(known)}.")
    if str(value) not in known[feature]:
        raise ValueError(f"{value=}: expected a value of {feature}, one of {list(known[feature])}.")
    labels, indices, owners = _training_labels(data, clients)
    if data.num_classes != 2 or labels.ndim != 1:
        raise ValueError(
            f"data with {data.num_classes} classes and labels of shape {labels.shape}: expected "
            "one of two classes for each example."
        )
    codes = np.asarray(data.train.sensitive_features)[indices, list(known).index(feature)]
    is_one = (codes == known[feature].index(str(value))) & (labels[indices] == 1)
    rng = generator(seed)
    for client in np.unique(owners):
        people = indices[is_one & (owners == client)]
        labels[rng.permutation(people)[: round(rate * len(people))]] = 0
    return data._replace(train=data.train._replace(labels=labels), label_skew_only=False)


def _training_labels(
    data: FederatedData, clients: Sequence[int]
) -> tuple[np.ndarray, Int[np.ndarray, " examples"], Int[np.ndarray, " examples"]]:
    """Returns a copy of the labels, and the training examples of some clients and their owners."""
    ids = as_array("clients", clients)
    checks.items("clients", ids, data.num_clients)
    if data.num_partitions is not None:
        raise ValueError(
            f"data has {data.num_partitions} partitions: expected one; change the labels "
            "of each before data.stack."
        )
    labels = np.array(data.train.labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"data has labels of {labels.dtype}: expected classes, integers; "
            "targets have no label to change."
        )
    owners = np.repeat(np.arange(data.num_clients), np.asarray(data.train.sizes))
    is_chosen = np.isin(owners, ids)
    return labels, np.asarray(data.train.order)[: owners.size][is_chosen], owners[is_chosen]
