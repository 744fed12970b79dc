"""Concatenation of the clients of several federated datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.conversion import require
from fedjax_fair.data.federated import PARTS, FederatedData, validate
from fedjax_fair.utils import checks

__all__ = ["concatenate"]


def concatenate(datasets: Sequence[FederatedData], name: str | None = None) -> FederatedData:
    """Makes a federated dataset of the clients of several ones, in their order.

    Args:
        datasets: One or more, with one partition each, equal shapes and types of features and
            labels, the same classes and sensitive features, and no client name twice. Groups,
            validation examples and names of clients are in all or in none. Group ids are kept.
        name: Name in results; by default the names joined by ``+``.

    Raises:
        ValueError: If they do not fit together.

    Examples:
        >>> from fedjax_fair.data import from_arrays
        >>> first = from_arrays(np.eye(4), [0, 1, 0, 1], clients=["a", "a", "b", "b"], name="one")
        >>> second = from_arrays(np.ones((2, 4)), [1, 0], clients=["c", "c"], name="two")
        >>> both = concatenate([first, second])
        >>> both.name, both.client_names, both.train.sizes.tolist()
        ('one+two', ('a', 'b', 'c'), [2, 2, 2])
    """
    require(
        isinstance(datasets, Sequence) and datasets, f"{datasets=}: expected one or more in a list."
    )
    first = datasets[0]
    for number, data in enumerate(datasets):
        place = f"datasets[{number}]"
        checks.instance(place, data, FederatedData, "data.load('digits')")
        require(
            data.num_partitions is None and data.train.devices is None,
            f"{place} has {data.num_partitions} partitions, or is on several devices; expected one "
            "partition on the host.",
        )
        for field in ("num_classes", "sensitive_names", "encoding"):
            require(
                getattr(data, field) == getattr(first, field),
                f"{place}.{field}: expected that of the first dataset.",
            )
        for field in ("groups", "validation", "client_names"):
            require(
                (getattr(data, field) is None) == (getattr(first, field) is None),
                f"{place}.{field}: expected it in all datasets or in none.",
            )
        validate(data)
        for field in ("features", "labels"):
            values, expected = getattr(data.train, field), getattr(first.train, field)
            require(
                (values.shape[1:], values.dtype) == (expected.shape[1:], expected.dtype),
                f"{place}.train.{field} {list(values.shape[1:])} of {values.dtype}: expected "
                f"{list(expected.shape[1:])} of {expected.dtype}, as in the first dataset.",
            )
    parts: dict[str, Any] = {
        part: _concatenate([getattr(data, part) for data in datasets])
        for part in PARTS
        if getattr(first, part) is not None
    }
    if "validation" in parts and all(
        data.validation is not None and data.validation.features is data.train.features
        for data in datasets
    ):
        # Copied to a device once (`map_arrays`).
        train = parts["train"]
        parts["validation"] = parts["validation"]._replace(
            features=train.features,
            labels=train.labels,
            sensitive_features=train.sensitive_features,
        )
    joined = FederatedData(
        **parts,
        groups=_join([data.groups for data in datasets]),
        num_classes=first.num_classes,
        name="+".join(data.name for data in datasets) if name is None else name,
        num_unassigned=sum(data.num_unassigned for data in datasets),
        client_names=None
        if first.client_names is None
        else tuple(name for data in datasets for name in data.client_names or ()),
        sensitive_names=first.sensitive_names,
        encoding=first.encoding,
    )
    validate(joined)
    return joined


def _concatenate(parts: Sequence[ClientExamples]) -> ClientExamples:
    totals = np.array([len(part.labels) for part in parts])
    starts = (np.cumsum(totals) - totals).astype(np.int32)
    sizes = np.concatenate([np.asarray(part.sizes) for part in parts])
    return ClientExamples(
        features=_join([part.features for part in parts]),
        labels=_join([part.labels for part in parts]),
        order=_join(
            [np.asarray(part.order) + start for part, start in zip(parts, starts, strict=True)]
        ),
        offsets=_join([(np.cumsum(sizes) - sizes).astype(np.int32)]),
        sizes=_join([sizes]),
        sensitive_features=_join([part.sensitive_features for part in parts]),
    )


def _join(arrays: Sequence[Any]) -> Any:
    return None if arrays[0] is None else np.concatenate([np.asarray(array) for array in arrays])
