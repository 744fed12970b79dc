"""Examples that no seed trains on: the test pool, and the examples of unseen clients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.partitions.partitioner import (
    Partition,
    generator,
    make_partition,
    parts_by_weight,
    split_off,
)
from fedjax_fair.data.transforms import choose_unseen

__all__ = [
    "HOLD_OUT",
    "HeldOut",
    "MadeClients",
    "Parts",
    "Split",
    "made_clients",
    "natural_clients",
    "split_strata",
]

HOLD_OUT = 2**32
"""Seed of what is held out. Seeds of runs are smaller, so that none has its streams."""
TEST_FRACTION, VALIDATION_FRACTION = 0.2, 0.2
"""Fractions of the examples of seen clients, and of the remaining ones."""
UNSEEN_FRACTION = 0.2
"""Fraction of the clients, or of the examples of which clients are made, that is unseen."""
_TEST, _VALIDATION, _UNSEEN, _STRATA = 10, 11, 13, 14
"""Streams of seeds."""
_SHRINKAGE = 0.99
"""Step of the factor by which unseen clients shrink until the unseen part suffices."""


class Parts(NamedTuple):
    """Partitions of training, validation and test examples over the same clients."""

    train: Partition
    validation: Partition
    test: Partition


class Split(NamedTuple):
    """Partitions of one seed.

    Attributes:
        seen: Partitions over the clients that may be trained on.
        unseen: Partitions over the clients that are never trained on.
        unseen_ids: Ids of the unseen clients, which no seen client has, ``[unseen]``.
    """

    seen: Parts
    unseen: Parts
    unseen_ids: Int[np.ndarray, " unseen"]


class HeldOut(NamedTuple):
    """Examples by what seeds may use them for, ascending; no example is in two arrays.

    Attributes:
        seen: Training and validation examples of seen clients, which seeds split.
        test: Test examples.
        unseen: Training and validation examples of unseen clients.
        split: ``split(seed) -> Split``.
    """

    seen: Int[np.ndarray, " seen"]
    test: Int[np.ndarray, " test"]
    unseen: Int[np.ndarray, " unseen"]
    split: Callable[[int], Split]


class MadeClients(NamedTuple):
    """Clients that a partitioner makes of a data set.

    Attributes:
        split: ``split(examples, seed) -> Partition`` of places in ``examples`` over seen clients.
        strata: Stratum of each example, such as its class, ``[total]``, from 0.
        num_unseen: Number of unseen clients, at most that of seen clients.
        num_test: Maximum number of test examples of a client.
    """

    split: Callable[[Int[np.ndarray, " examples"], int], Partition]
    strata: Int[np.ndarray, " total"]
    num_unseen: int
    num_test: int = 100


def natural_clients(
    name: str, clients: Partition, num_fresh: int = 0, min_examples: int = 50
) -> HeldOut:
    """Holds out a fifth of the clients of a data set, and a fifth of each client's examples.

    A seed only divides the remaining examples of a client into training and validation examples.

    Args:
        name: Name of the data set, for messages.
        clients: All examples by client. Clients with few examples are left out.
        num_fresh: Number of the last examples, which are the test examples instead of a fifth.
        min_examples: Minimum number of examples of a client, fresh ones not counted.

    Raises:
        ValueError: If fewer than two clients remain.
    """
    if num_fresh:
        is_fresh = clients.order >= len(clients.order) + len(clients.unassigned) - num_fresh
        rest, test = _where(clients, ~is_fresh), _where(clients, is_fresh)
        sizes = rest.sizes
    else:
        rest, test = split_off(clients, TEST_FRACTION, generator(HOLD_OUT, _TEST))
        sizes = clients.sizes
    kept = np.flatnonzero(sizes >= min_examples)
    if len(kept) < 2:
        raise ValueError(
            f"min_examples={min_examples}: expected at most the size of the second largest client "
            f"of {name}, {np.sort(sizes)[-2:].tolist()}."
        )
    unseen = choose_unseen(kept, UNSEEN_FRACTION, HOLD_OUT)
    seen = np.setdiff1d(kept, unseen)

    def split(seed: int) -> Split:
        train, validation = split_off(rest, VALIDATION_FRACTION, generator(seed, _VALIDATION))
        parts = (train, validation, test)
        of_seen, of_unseen = (
            Parts(*(_select(part, ids) for part in parts)) for ids in (seen, unseen)
        )
        return Split(of_seen, of_unseen, unseen)

    parts = _select(rest, seen), _select(test, kept), _select(rest, unseen)
    of_seen, of_tests, of_unseen = (np.sort(part.order) for part in parts)
    return HeldOut(of_seen, of_tests, of_unseen, split)


def made_clients(name: str, clients: MadeClients, num_fresh: int = 0) -> HeldOut:
    """Holds out a test pool and a fifth of the examples, in equal shares of each stratum.

    A seed makes seen clients of the remaining examples. Unseen clients have as many examples per
    stratum as clients of another partition, all shrunk by one factor if the held-out fifth has too
    few of a stratum. The test examples of a client are random ones of the pool, as many as it
    allows up to ``num_test``, with the shares of strata of the client's other examples. A client
    has a test example once, and clients share test examples.

    Args:
        name: Name of the data set, for messages.
        clients: The clients.
        num_fresh: Number of the last examples, which are the test pool instead of 16% of all.

    Raises:
        ValueError: When splitting, if there are fewer clients than unseen ones, or too few examples
            of a stratum are held out.
    """
    strata, total = clients.strata, len(clients.strata) - num_fresh
    seen_fraction = 1 - UNSEEN_FRACTION
    test_fraction = 0.0 if num_fresh else seen_fraction * TEST_FRACTION
    seen, test, unseen = split_strata(
        strata[:total], [seen_fraction - test_fraction, test_fraction]
    )
    if num_fresh:
        test = np.arange(total, len(strata))
    test_pools, unseen_pools = (_by_stratum(part, strata) for part in (test, unseen))

    def split(seed: int) -> Split:
        made, counts = _partition(clients, seen, seed)
        parts = split_off(made, VALIDATION_FRACTION, generator(seed, _VALIDATION))
        rng = generator(seed, _UNSEEN)
        _, others = _partition(clients, seen, int(rng.integers(HOLD_OUT)))
        if not 1 <= clients.num_unseen <= len(others):
            raise ValueError(
                f"num_unseen={clients.num_unseen} of {name}: expected 1 to {len(others)}, as many "
                "as seen clients."
            )
        others = rng.choice(others, clients.num_unseen, replace=False)
        others = _shrink(others, np.array([len(pool) for pool in unseen_pools]))
        if not others.sum(axis=1).all():
            raise ValueError(
                f"{name}: the unseen part has too few examples of a stratum for {len(others)} "
                "unseen clients; use coarser strata, or fewer clients."
            )
        theirs = make_partition(_draw(others, unseen_pools, rng), others.sum(axis=1), len(strata))
        unseen_parts = split_off(theirs, VALIDATION_FRACTION, rng)
        rng = generator(seed, _TEST)
        seen_test, unseen_test = (
            _draw_test(name, numbers, test_pools, clients.num_test, rng, len(strata))
            for numbers in (counts, others)
        )
        ids = len(counts) + np.arange(clients.num_unseen)
        return Split(Parts(*parts, seen_test), Parts(*unseen_parts, unseen_test), ids)

    return HeldOut(seen, test, unseen, split)


def split_strata(
    strata: Int[np.ndarray, " examples"], fractions: Sequence[float]
) -> list[Int[np.ndarray, " part"]]:
    """Splits examples once, with equal shares of each stratum.

    Args:
        strata: Stratum of each example, from 0.
        fractions: Fraction of each part but the last one, which has the rest.

    Returns:
        Examples of each part, ascending. Numbers per stratum are rounded.

    Examples:
        >>> first, second = split_strata(np.repeat([0, 1], [4, 8]), [0.75])
        >>> np.bincount(np.repeat([0, 1], [4, 8])[first]).tolist(), len(second)
        ([3, 6], 3)
    """
    rng = generator(HOLD_OUT, _STRATA)
    order = rng.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    counts = np.bincount(strata)
    starts = np.cumsum(counts) - counts
    places = (np.arange(len(order)) - starts[strata[order]] + 0.5) / counts[strata[order]]
    parts = np.searchsorted(np.cumsum(fractions), places, side="right")
    return [np.sort(order[parts == part]) for part in range(len(fractions) + 1)]


def _by_stratum(examples: np.ndarray, strata: np.ndarray) -> list[np.ndarray]:
    return [examples[strata[examples] == stratum] for stratum in range(strata.max() + 1)]


def _partition(
    clients: MadeClients, seen: np.ndarray, seed: int
) -> tuple[Partition, Int[np.ndarray, "clients strata"]]:
    """Returns a partition of the seen part, and its numbers of examples per stratum."""
    with warnings.catch_warnings():
        # The protocol fixes the minimum size, up to which clients are filled.
        warnings.filterwarnings("ignore", message=".* to reach the minimum size of ")
        made = clients.split(seen, seed)
    strata = clients.strata
    placed = make_partition(seen[made.order], made.sizes, len(strata), made.groups)
    counts = [np.bincount(strata[own], minlength=strata.max() + 1) for own in placed.client_indices]
    return placed, np.stack(counts)


def _shrink(counts: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Multiplies numbers by client and stratum by one factor, so that their sums fit the room."""
    factor = 1.0
    while True:
        numbers = np.stack([parts_by_weight(int(factor * row.sum()), row) for row in counts])
        if (numbers.sum(axis=0) <= room).all():
            return numbers
        factor *= _SHRINKAGE


def _draw(
    counts: np.ndarray, pools: Sequence[np.ndarray], rng: np.random.Generator
) -> Int[np.ndarray, " drawn"]:
    """Draws different examples for all clients, by their numbers per stratum; sorted by client."""
    ends = np.cumsum(counts, axis=0)
    drawn = [np.split(rng.permutation(pool), of) for pool, of in zip(pools, ends.T, strict=True)]
    return _concatenate([own[client] for client in range(len(counts)) for own in drawn])


def _draw_test(
    name: str,
    counts: np.ndarray,
    pools: Sequence[np.ndarray],
    limit: int,
    rng: np.random.Generator,
    total: int,
) -> Partition:
    """Draws the most test examples of each client with its shares of strata, up to a limit."""
    room, drawn = np.array([len(pool) for pool in pools]), []
    for client, row in enumerate(counts):
        possible = (parts_by_weight(number, row) for number in range(limit, 0, -1))
        numbers = next((each for each in possible if (each <= room).all()), None)
        if numbers is None:
            raise ValueError(
                f"{name}: the test pool has {room[row > 0].tolist()} examples of the strata of "
                f"client {client}: expected one or more; use coarser strata."
            )
        drawn.append(_draw(numbers[None], pools, rng))
    return make_partition(_concatenate(drawn), [len(own) for own in drawn], total)


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays).astype(np.int32)


def _select(partition: Partition, clients: np.ndarray) -> Partition:
    """Returns the partition of some clients, in their order."""
    total = len(partition.order) + len(partition.unassigned)
    groups = None if partition.groups is None else partition.groups[clients]
    parts = partition.client_indices
    order = _concatenate([parts[client] for client in clients])
    return make_partition(order, partition.sizes[clients], total, groups)


def _where(partition: Partition, is_kept: np.ndarray) -> Partition:
    """Returns the partition with some of its assigned examples."""
    clients = np.repeat(np.arange(len(partition.sizes)), partition.sizes)[is_kept]
    sizes = np.bincount(clients, minlength=len(partition.sizes))
    total = len(partition.order) + len(partition.unassigned)
    return make_partition(partition.order[is_kept], sizes, total, partition.groups)
