"""Types of partitions and partitioners, and functions that partitioners share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair import checks

__all__ = [
    "Partition",
    "Partitioner",
    "check_enough",
    "equal_parts",
    "generator",
    "join_indices",
    "make_partition",
    "parts_by_weight",
    "shuffled_by_class",
    "split_off",
]


class Partition(NamedTuple):
    """Assignment of examples to clients.

    Attributes:
        order: Indices into the examples, grouped by client, ``[assigned]``, int32.
        sizes: Number of examples of each client, ``[clients]``, int32.
        groups: Ground-truth group of each client, ``[clients]``, int32, or None.
        unassigned: Indices of the examples of no client, ascending, int32.
    """

    order: Int[np.ndarray, " assigned"]
    sizes: Int[np.ndarray, " clients"]
    groups: Int[np.ndarray, " clients"] | None
    unassigned: Int[np.ndarray, " unassigned"]

    @property
    def client_indices(self) -> list[np.ndarray]:
        """Indices of each client's examples, one array per client."""
        return np.split(self.order, np.cumsum(self.sizes)[:-1])


class Partitioner(NamedTuple):
    """A method to split examples over clients.

    Attributes:
        name: Name in results, with settings.
        split: ``split(labels, seed, **columns) -> Partition``, with arrays ``[examples]`` and a
            non-negative seed. Every client gets at least one example.
        column: Column that names the owner of training and test examples; None to split test
            examples with the class distribution of the training examples.
        label_skew_only: Whether a client's examples of a class are random ones of that class.
    """

    name: str
    split: Callable[..., Partition]
    column: str | None = None
    label_skew_only: bool = False


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Returns the generator of a non-negative seed; its streams are independent."""
    checks.non_negative_int("seed", seed)
    return np.random.default_rng((seed, *stream) if stream else seed)


def make_partition(order: Any, sizes: Any, total: int, groups: Any = None) -> Partition:
    """Makes a partition of ``total`` examples, of which ``order`` lists the assigned ones."""
    is_free = np.ones(total, bool)
    is_free[order] = False
    order, sizes = np.asarray(order, np.int32), np.asarray(sizes, np.int32)
    groups = None if groups is None else np.asarray(groups, np.int32)
    return Partition(order, sizes, groups, np.flatnonzero(is_free).astype(np.int32))


def split_off(
    partition: Partition, fraction: float, rng: np.random.Generator
) -> tuple[Partition, Partition]:
    """Splits a random ``floor(fraction * size)`` of each client's examples off the rest."""
    clients = np.repeat(np.arange(len(partition.sizes)), partition.sizes)
    shuffled = partition.order[np.lexsort((rng.random(len(clients)), clients))]
    sizes = np.floor(partition.sizes * fraction).astype(np.int64)
    offsets = np.cumsum(partition.sizes) - partition.sizes
    is_off = np.arange(len(clients)) - offsets[clients] < sizes[clients]
    total = len(partition.order) + len(partition.unassigned)
    return (
        make_partition(shuffled[~is_off], partition.sizes - sizes, total, partition.groups),
        make_partition(shuffled[is_off], sizes, total, partition.groups),
    )


def check_enough(num_examples: int, num_clients: int, per_client: int = 1) -> None:
    """Checks that there are ``per_client`` examples for every client."""
    if num_examples < num_clients * per_client:
        raise ValueError(
            f"{num_examples} examples for {num_clients=}: expected at least "
            f"{num_clients * per_client}, {per_client} per client."
        )


def equal_parts(total: int, parts: int) -> np.ndarray:
    """Divides ``total`` into parts that differ by at most one, larger ones first."""
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


def parts_by_weight(total: int, weights: np.ndarray) -> np.ndarray:
    """Divides ``total`` in proportion to weights; the largest remainders are rounded up."""
    exact = total * (weights / weights.sum())
    parts = np.floor(exact).astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - parts.sum()]] += 1
    return parts


def shuffled_by_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the indices of all examples, grouped by class, shuffled within classes."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(np.asarray(labels)[shuffled], kind="stable")]


def join_indices(arrays: Sequence[Any], total: int) -> tuple[np.ndarray, np.ndarray]:
    """Joins indices in ``[0, total)``, one array per client, to ``order`` and ``sizes``."""
    arrays = [np.asarray(array) for array in arrays]
    # An empty list is an array of floats, which would make floats of all indices.
    filled = [array for array in arrays if array.size] or [np.zeros(0, np.int64)]
    if any(array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) for array in filled):
        raise ValueError("client indices: expected a 1-D array of integers for each client.")
    order = np.concatenate(filled)
    if order.size and not 0 <= order.min() <= order.max() < total:
        raise ValueError(
            f"client indices span [{order.min()}, {order.max()}]: expected [0, {total - 1}]."
        )
    repeated = np.flatnonzero(np.bincount(order, minlength=1) > 1)
    if repeated.size:
        raise ValueError(
            f"client indices: {repeated.size} examples have two clients, first {repeated[0]}."
        )
    return order, np.array([array.size for array in arrays])
