"""Who owns which example: what a partition is, and what partitioners share."""

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
    "hold_out_of_each",
    "join_indices",
    "make_partition",
    "parts_by_weight",
    "shuffled_by_class",
]


class Partition(NamedTuple):
    """Partition of a set of examples.

    Attributes:
        order: Indices into the examples, grouped by client, ``[assigned]``, int32.
        sizes: Number of examples of each client, ``[clients]``, int32.
        groups: Planted group of each client, ``[clients]``, int32, or None.
        unassigned: Indices of the examples without an owner, ascending, int32.
    """

    order: Int[np.ndarray, " assigned"]
    sizes: Int[np.ndarray, " clients"]
    groups: Int[np.ndarray, " clients"] | None
    unassigned: Int[np.ndarray, " unassigned"]

    @property
    def client_indices(self) -> list[np.ndarray]:
        """Indices of each client's examples, one array a client."""
        return np.split(self.order, np.cumsum(self.sizes)[:-1])


class Partitioner(NamedTuple):
    """A way to split examples over clients.

    Attributes:
        name: What the split is called in results, with its settings.
        split: ``split(labels, seed, **columns) -> Partition``: labels ``[examples]``, a
            non-negative seed, and further columns ``[examples]`` of which it uses what it needs.
            Every client gets at least one example, every example has at most one owner.
        column: Column that names the owner of an example, which test examples follow too; None
            where test examples are split with the class mix of the training examples.
        label_skew_only: Whether clients differ in the number of their examples and in their classes
            alone: a client's examples of a class are random ones of that class.
    """

    name: str
    split: Callable[..., Partition]
    column: str | None = None
    label_skew_only: bool = False


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Random numbers of a seed, a non-negative integer; other streams of it are independent."""
    checks.non_negative_int("seed", seed)
    return np.random.default_rng((seed, *stream) if stream else seed)


def make_partition(order: Any, sizes: Any, total: int, groups: Any = None) -> Partition:
    """Completes a partition of ``total`` examples with the examples that have no owner."""
    free = np.ones(total, bool)
    free[order] = False
    groups = None if groups is None else np.asarray(groups, np.int32)
    unassigned = np.flatnonzero(free).astype(np.int32)
    return Partition(np.asarray(order, np.int32), np.asarray(sizes, np.int32), groups, unassigned)


def hold_out_of_each(
    partition: Partition, fraction: float, rng: np.random.Generator
) -> tuple[Partition, Partition]:
    """Takes a random ``floor(fraction * size)`` of each client's examples: the rest, and these."""
    clients = np.repeat(np.arange(len(partition.sizes)), partition.sizes)
    shuffled = partition.order[np.lexsort((rng.random(len(clients)), clients))]
    taken = np.floor(partition.sizes * fraction).astype(np.int64)
    offsets = np.cumsum(partition.sizes) - partition.sizes
    held = np.arange(len(clients)) - offsets[clients] < taken[clients]
    total = len(partition.order) + len(partition.unassigned)
    return (
        make_partition(shuffled[~held], partition.sizes - taken, total, partition.groups),
        make_partition(shuffled[held], taken, total, partition.groups),
    )


def check_enough(examples: int, num_clients: int, each: int = 1) -> None:
    """Requires ``each`` examples for every client."""
    if examples < num_clients * each:
        raise ValueError(
            f"{examples} examples for {num_clients=}: expected at least {num_clients * each}, "
            f"{each} for each client."
        )


def equal_parts(total: int, parts: int) -> np.ndarray:
    """Cuts ``total`` into parts that differ by at most one, larger ones first."""
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


def parts_by_weight(total: int, weights: np.ndarray) -> np.ndarray:
    """Cuts ``total`` in proportion to weights; rounding favors the largest remainders."""
    exact = total * (weights / weights.sum())
    parts = np.floor(exact).astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - parts.sum()]] += 1
    return parts


def shuffled_by_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices of all examples, class after class, in random order within a class."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(np.asarray(labels)[shuffled], kind="stable")]


def join_indices(arrays: Sequence[Any], total: int) -> tuple[np.ndarray, np.ndarray]:
    """Joins each client's indices, integers in ``[0, total)`` and none twice: order and sizes."""
    arrays = [np.asarray(array) for array in arrays]
    # An empty list is an array of floats, which must not make floats of all indices.
    filled = [array for array in arrays if array.size] or [np.zeros(0, np.int64)]
    if any(array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) for array in filled):
        raise ValueError("client indices: expected a 1-D array of integers for each client.")
    order = np.concatenate(filled)
    if order.size and not 0 <= order.min() <= order.max() < total:
        raise ValueError(
            f"client indices span [{order.min()}, {order.max()}]: expected [0, {total - 1}]."
        )
    twice = np.flatnonzero(np.bincount(order, minlength=1) > 1)
    if twice.size:
        raise ValueError(
            f"client indices: {twice.size} examples have two owners, first {twice[0]}."
        )
    return order, np.array([array.size for array in arrays])
