"""Examples of many clients as flat arrays, without padding."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Int, Shaped

from fedjax_fair.data.conversion import as_array, as_integers, check_range, require
from fedjax_fair.data.partitions.partitioner import Partition
from fedjax_fair.numerics.labels import MASKED_LABEL, are_sequences

__all__ = ["MAX_CLASSES", "ClientExamples", "Replicated", "check_examples"]

MAX_CLASSES = 1_000_000  # Results have a count for every client and class.


class Replicated(NamedTuple):
    """Marks examples of which each of several devices has all, to measure clients in parallel."""


class ClientExamples(NamedTuple):
    """Examples of every client: ``order[offsets[i] : offsets[i] + sizes[i]]`` of client ``i``.

    Attributes:
        features: Inputs of all examples, ``[total, ...]``; images are ``uint8``.
        labels: Class of each example, ``[total]``, integers; or a sequence of classes for each,
            ``[total, length]``, -1 where masked; or targets ``[total, ...]``, floats.
        order: Indices into the examples, grouped by client, ``[assigned]``.
        offsets: Exclusive cumulative sum of ``sizes``, ``[clients]``.
        sizes: Number of examples of each client, ``[clients]``.
        devices: Device that has the features, labels and ``order`` of each client, ``[clients]``
            (`fedjax_fair.parallel.mesh`); ``Replicated()`` if each has all, None for one device.
        residents: Clients of each device, padded with -1 to an equal number, one device after
            another; None if a device has all clients.
        slots: Index of each client among the residents of its device, ``[clients]``, or None.
        sensitive_features: Codes of the sensitive features of each example, ``[total, features]``,
            int32, which `FederatedData.sensitive_names` describes; or None.
    """

    features: Shaped[Array, "total ..."]
    labels: Shaped[Array, "total ..."]
    order: Int[Array, " assigned"]
    offsets: Int[Array, " clients"]
    sizes: Int[Array, " clients"]
    devices: Int[Array, " clients"] | Replicated | None = None
    residents: Int[Array, " slots"] | None = None
    slots: Int[Array, " clients"] | None = None
    sensitive_features: Int[Array, "total features"] | None = None

    @classmethod
    def of(
        cls, features: Any, labels: Any, partition: Partition, sensitive_features: Any = None
    ) -> ClientExamples:
        """Makes NumPy arrays of a partition; training moves them to a device once."""
        order: Any = partition.order
        sizes: Any = partition.sizes
        offsets: Any = (np.cumsum(sizes) - sizes).astype(np.int32)
        return cls(features, labels, order, offsets, sizes, sensitive_features=sensitive_features)

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.sizes.shape[-1]

    @property
    def has_all_clients(self) -> bool:
        """True if this device has the examples of all clients."""
        return self.devices is None or isinstance(self.devices, Replicated)

    @property
    def has_targets(self) -> bool:
        """True if labels are floating-point targets instead of classes."""
        return np.issubdtype(self.labels.dtype, np.floating)

    @property
    def client_indices(self) -> list[np.ndarray]:
        """Indices of each client's examples, one array per client, of a single partition."""
        order = np.asarray(self.order)
        places = zip(np.asarray(self.offsets), np.asarray(self.sizes), strict=True)
        return [order[start : start + size] for start, size in places]

    def without_padding(self) -> ClientExamples:
        """Removes the padding of ``order`` that stacked partitions have."""
        return self._replace(order=self.order[: int(np.sum(self.sizes))])

    def class_counts(self, num_classes: int) -> Int[np.ndarray, "*runs clients classes"]:
        """Counts the labels of each client and class; targets count as one class."""
        labels, orders, sizes = map(np.asarray, (self.labels, self.order, self.sizes))
        if self.has_targets:
            return sizes[..., None]

        def count(order, sizes):
            owners = np.repeat(np.arange(sizes.size), sizes)
            classes = labels[order[: owners.size]]
            if are_sequences(classes):
                is_label = classes != MASKED_LABEL
                owners, classes = np.repeat(owners, is_label.sum(axis=1)), classes[is_label]
            cells = owners * num_classes + classes
            return np.bincount(cells, minlength=sizes.size * num_classes).reshape(-1, num_classes)

        if sizes.ndim == 1:
            return count(orders, sizes)
        return np.stack([count(*run) for run in zip(orders, sizes, strict=True)])


def check_examples(name: str, examples: ClientExamples, num_classes: int) -> None:
    """Checks shapes, types and ranges of the arrays of one partition; see `validate`."""
    features, labels = (
        as_array(f"{name}.{field}", getattr(examples, field)) for field in ("features", "labels")
    )
    order, offsets, sizes = (
        as_integers(f"{name}.{field}", getattr(examples, field))
        for field in ("order", "offsets", "sizes")
    )
    require(
        features.shape[:1] == labels.shape[:1],
        f"{name}.features of shape {features.shape}: expected one for each of "
        f"{labels.shape} labels; use the same examples for both.",
    )
    require(
        np.issubdtype(features.dtype, np.integer) or np.issubdtype(features.dtype, np.floating),
        f"{name}.features of {features.dtype}: expected uint8, integers or floats; convert them.",
    )
    for field, values in {"features": features, "labels": labels}.items():
        if np.issubdtype(values.dtype, np.floating):
            bad = values.size - np.isfinite(values).sum()
            require(
                not bad,
                f"{name}.{field}: {bad} values are not finite as {values.dtype}; expected none, so "
                "replace them, or leave these examples out.",
            )
    if are_sequences(labels):
        _check_sequences(f"{name}.labels", labels, num_classes)
    elif not np.issubdtype(labels.dtype, np.floating):
        labels = as_integers(f"{name}.labels", labels)
        check_range(f"{name}.labels", labels, num_classes, f" ({num_classes=})")
    check_range(f"{name}.order", order, len(labels), f" ({len(labels)} examples)")
    require(
        sizes.size and sizes.min() >= 0,
        f"{name}.sizes={sizes}: expected one or more clients, no size negative.",
    )
    require(
        np.array_equal(offsets, np.cumsum(sizes) - sizes) and sizes.sum() == len(order),
        f"{name}.offsets of shape {offsets.shape}: expected the exclusive cumulative sum of sizes, "
        f"which add up to {sizes.sum()}, for the {len(order)} entries of order; "
        "`ClientExamples.of` computes them.",
    )


def _check_sequences(name: str, labels: np.ndarray, num_classes: int) -> None:
    """Checks shape and range of sequences of labels, and that no sequence is masked entirely."""
    require(
        labels.ndim == 2,
        f"{name} of {labels.dtype} and shape {labels.shape}: expected one class for each example, "
        "[examples], or a sequence, [examples, length]; flatten further axes, such as [N, H, W] to "
        "[N, H*W].",
    )
    first, last = (labels.min(), labels.max()) if labels.size else (0, 0)
    require(
        MASKED_LABEL <= first <= last < num_classes,
        f"{name} span [{first}, {last}]: expected [0, {num_classes - 1}] ({num_classes=}), or "
        f"{MASKED_LABEL} where masked.",
    )
    empty = np.flatnonzero((labels == MASKED_LABEL).all(axis=1))
    require(
        not empty.size,
        f"{name}: all labels of {empty.size} examples are masked ({MASKED_LABEL}), first "
        f"{empty[:5].tolist()}; expected one or more labels for each, so leave these examples out.",
    )
