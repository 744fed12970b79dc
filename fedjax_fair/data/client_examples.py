"""Examples of many clients as flat arrays, without padding."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Int, Shaped

from fedjax_fair.data.partitioner import Partition

__all__ = [
    "ClientExamples",
    "Replicated",
    "as_integers",
    "check_examples",
    "check_range",
    "require",
]


class Replicated(NamedTuple):
    """Marks examples of which each of several devices has all, to measure clients in parallel."""


class ClientExamples(NamedTuple):
    """Examples of every client: ``order[offsets[i] : offsets[i] + sizes[i]]`` of client ``i``.

    Attributes:
        features: Inputs of all examples, ``[total, ...]``; images are ``uint8``.
        labels: Class of each example, ``[total]``, integers; or floating-point targets ``[total,
            ...]``, for a model whose loss compares outputs with them.
        order: Indices into the examples, grouped by client, ``[assigned]``.
        offsets: Exclusive cumulative sum of ``sizes``, ``[clients]``.
        sizes: Number of examples of each client, ``[clients]``.
        devices: Device of each client's examples, ``[clients]``, if there are several
            (`fedjax_fair.parallel.mesh`): it has ``features``, ``labels`` and ``order`` of its
            clients. ``Replicated()`` if every device has all examples, None for one device.
    """

    features: Shaped[Array, "total ..."]
    labels: Shaped[Array, "total ..."]
    order: Int[Array, " assigned"]
    offsets: Int[Array, " clients"]
    sizes: Int[Array, " clients"]
    devices: Int[Array, " clients"] | Replicated | None = None

    @classmethod
    def of(cls, features: Any, labels: Any, partition: Partition) -> ClientExamples:
        """Makes NumPy arrays of a partition; training moves them to a device once."""
        offsets: Any = (np.cumsum(partition.sizes) - partition.sizes).astype(np.int32)
        order: Any = partition.order
        sizes: Any = partition.sizes
        return cls(features, labels, order, offsets, sizes)

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.sizes.shape[-1]

    @property
    def has_all_clients(self) -> bool:
        """Whether this device has the examples of all clients."""
        return self.devices is None or isinstance(self.devices, Replicated)

    @property
    def has_targets(self) -> bool:
        """Whether labels are floating-point targets instead of classes."""
        return np.issubdtype(self.labels.dtype, np.floating)

    def class_counts(self, num_classes: int) -> Int[np.ndarray, "*runs clients classes"]:
        """Counts the examples of each client and class; targets count as one class."""
        labels, orders, sizes = map(np.asarray, (self.labels, self.order, self.sizes))
        if self.has_targets:
            return sizes[..., None]

        def count(order, sizes):
            owners = np.repeat(np.arange(sizes.size), sizes)
            cells = owners * num_classes + labels[order[: owners.size]]
            return np.bincount(cells, minlength=sizes.size * num_classes).reshape(-1, num_classes)

        if sizes.ndim == 1:
            return count(orders, sizes)
        return np.stack([count(*run) for run in zip(orders, sizes, strict=True)])


def check_examples(name: str, examples: ClientExamples, num_classes: int) -> None:
    """Checks shapes, types and ranges of the arrays of one partition; see `validate`."""
    features, labels = np.asarray(examples.features), np.asarray(examples.labels)
    order, offsets, sizes = (
        as_integers(f"{name}.{field}", getattr(examples, field))
        for field in ("order", "offsets", "sizes")
    )
    require(
        features.shape[:1] == labels.shape[:1],
        f"{name}.features of shape {features.shape}: expected one for each of "
        f"{labels.shape} labels.",
    )
    require(
        np.issubdtype(features.dtype, np.integer) or np.issubdtype(features.dtype, np.floating),
        f"{name}.features of {features.dtype}: expected uint8, integers or floats.",
    )
    for field, values in {"features": features, "labels": labels}.items():
        if np.issubdtype(values.dtype, np.floating):
            bad = values.size - np.isfinite(values).sum()
            require(not bad, f"{name}.{field}: {bad} values are not finite; expected none.")
    if not np.issubdtype(labels.dtype, np.floating):
        labels = as_integers(f"{name}.labels", labels)
        check_range(f"{name}.labels", labels, num_classes, f"{num_classes=}")
    check_range(f"{name}.order", order, len(labels), f"{len(labels)} examples")
    require(
        sizes.size and sizes.min() >= 0,
        f"{name}.sizes={sizes}: expected one or more clients, no size negative.",
    )
    require(
        np.array_equal(offsets, np.cumsum(sizes) - sizes) and sizes.sum() == len(order),
        f"{name}.offsets of shape {offsets.shape}: expected the exclusive cumulative sum of sizes, "
        f"which add up to {sizes.sum()}, for the {len(order)} entries of order.",
    )


def as_integers(name: str, values: Any) -> np.ndarray:
    """Checks that values are a 1-D array of integers."""
    array = np.asarray(values)
    require(
        np.issubdtype(array.dtype, np.integer) and array.ndim == 1,
        f"{name} of {array.dtype} and shape {array.shape}: expected 1-D integers.",
    )
    return array


def require(valid: Any, message: str) -> None:
    """Raises a ValueError unless a condition holds."""
    if not valid:
        raise ValueError(message)


def check_range(name: str, values: np.ndarray, end: int, reason: str) -> None:
    """Checks that values are in ``[0, end)``."""
    if values.size and not 0 <= values.min() <= values.max() < end:
        raise ValueError(
            f"{name} span [{values.min()}, {values.max()}]: expected [0, {end - 1}] ({reason})."
        )
