"""Partitioners that plant classes on clients, and test examples split like training examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair import checks
from fedjax_fair.data.partitioner import (
    Partition,
    Partitioner,
    check_enough,
    equal_parts,
    generator,
    make_partition,
    shuffled_by_class,
)

__all__ = ["PLANTED", "Cluster", "classes_per_client", "planted_clusters", "split_test"]

REPAIR_PASSES = 10_000  # Far more than any case tried has needed; the loop must end.


def classes_per_client(num_clients: int, classes: int = 3) -> Partitioner:
    """Gives every client the same number of distinct classes, every class to equally many clients.

    The ``num_clients * classes`` slots name every class equally often (where that does not divide,
    some classes drawn at random once more), are shuffled and cut into one tuple a client. A class
    that a client holds twice is swapped with a random slot of another client until none is left.
    (Where clients hold more than half of the classes, those they lack are drawn in this way.) Each
    class is then shuffled and split into equal shards, one a slot.

    Args:
        num_clients: Number of clients.
        classes: Classes of each client, at most as many as there are.

    Returns:
        A partitioner that drops what remains of each class after the equal split.

    Raises:
        ValueError: If a setting is not a positive integer; when splitting, if ``classes`` exceeds
            the number of classes, or a class has fewer examples than clients that hold it.

    Examples:
        >>> labels = np.arange(40) % 4
        >>> partition = classes_per_client(6, 2).split(labels, seed=0)
        >>> [len(set(labels[indices])) for indices in partition.client_indices]
        [2, 2, 2, 2, 2, 2]
    """
    checks.positive_int("num_clients", num_clients)
    checks.positive_int("classes", classes)

    def split(labels, /, seed, **columns):
        present = np.unique(labels)
        if classes > len(present):
            raise ValueError(
                f"{classes=}: expected at most the {len(present)} classes in the labels."
            )
        check_enough(len(labels), num_clients, classes)
        rng = generator(seed)
        uses = rng.permutation(equal_parts(num_clients * classes, len(present)))
        slots = present[_draw_slots(num_clients, uses, rng)]
        order, lengths = _split_over_slots(labels, slots.ravel(), np.inf, rng)
        return make_partition(order, lengths.reshape(slots.shape).sum(axis=1), len(labels))

    return Partitioner(f"classes_per_client({num_clients}, {classes})", split, label_skew_only=True)


def _draw_slots(num_clients: int, uses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws distinct classes for every client, class ``c`` for ``uses[c]`` clients."""
    width = uses.sum() // num_clients
    if 2 * width > len(uses):
        # Random swaps hardly ever sort out nearly full rows, so draw what each client lacks.
        lacked = _draw_slots(num_clients, num_clients - uses, rng)
        held = np.ones((num_clients, len(uses)), bool)
        np.put_along_axis(held, lacked, False, axis=1)
        return np.nonzero(held)[1].reshape(num_clients, width)
    slots = rng.permutation(np.repeat(np.arange(len(uses)), uses)).reshape(num_clients, width)
    _separate(slots, rng)
    return slots


def _separate(slots: np.ndarray, rng: np.random.Generator) -> None:
    """Swaps slots between random rows, in place, until no row holds a value twice.

    Rows meet in random disjoint pairs, so that a pass is a handful of array operations. A swap that
    would leave more repetitions than before is not made.
    """
    num_rows, width = slots.shape
    for _ in range(REPAIR_PASSES):
        repeated = _repetitions(slots) > 0
        if not repeated.any():
            return
        rows = rng.permutation(num_rows)[: num_rows // 2 * 2]
        first, second = rows.reshape(2, -1)
        met = repeated[first] | repeated[second]
        first, second = first[met], second[met]
        swapped = slots[np.concatenate([first, second])]
        pair, half = np.arange(len(first)), len(first)
        columns = rng.integers(width, size=(2, half))
        swapped[pair, columns[0]] = slots[second, columns[1]]
        swapped[pair + half, columns[1]] = slots[first, columns[0]]
        before = _repetitions(slots[first]) + _repetitions(slots[second])
        after = _repetitions(swapped).reshape(2, half).sum(axis=0)
        kept = after <= before
        slots[first[kept]] = swapped[:half][kept]
        slots[second[kept]] = swapped[half:][kept]
    raise ValueError(
        f"classes_per_client: {slots.shape} slots still repeat after {REPAIR_PASSES} passes."
    )


def _repetitions(slots: np.ndarray) -> np.ndarray:
    ascending = np.sort(slots, axis=1)
    return (ascending[:, 1:] == ascending[:, :-1]).sum(axis=1)


class Cluster(NamedTuple):
    """Clients that share their classes.

    Attributes:
        num_clients: Number of clients in the cluster.
        classes: Their classes, each once.
        at_most: Most examples of one class that a client gets.
    """

    num_clients: int
    classes: Sequence[int]
    at_most: int


PLANTED: dict[str, tuple[Cluster, ...]] = {
    "digits": (Cluster(4, range(4), 800), Cluster(6, range(4, 10), 800)),
    "mnist": (Cluster(4, range(4), 800), Cluster(6, range(4, 10), 800)),
    "cifar10": (Cluster(4, range(4), 800), Cluster(6, range(4, 10), 800)),
    "cifar100": (
        Cluster(2, range(20), 220),
        Cluster(3, range(20, 50), 160),
        Cluster(5, range(50, 100), 100),
    ),
    # 62 classes of EMNIST. The cap is ours: it keeps the digits, which are twenty times as frequent
    # as some letters, from outweighing everything else.
    "femnist": (
        Cluster(8, range(2), 800),
        Cluster(36, range(2, 10), 800),
        Cluster(16, range(10, 25), 800),
        Cluster(18, range(25, 45), 800),
        Cluster(12, range(45, 62), 800),
    ),
}


def planted_clusters(clusters: str | Sequence[Cluster] = "mnist") -> Partitioner:
    """Plants groups of clients that share their classes.

    Every class is shuffled and split equally over the clients that hold it, of which each gets at
    most ``at_most`` examples. ``Partition.groups`` is the position of each client's cluster.

    Args:
        clusters: The clusters, or the name of a setting in ``PLANTED``: ``"digits"``, ``"mnist"``,
            ``"cifar10"``, ``"cifar100"`` (10 clients each) or ``"femnist"`` (90 clients, EMNIST by
            class).

    Returns:
        A partitioner whose clients follow each other cluster by cluster; it drops what the caps and
        the equal split leave over, and all examples of other classes.

    Raises:
        ValueError: If the name is unknown, a number is not positive or a cluster repeats a class;
            when splitting, if a class has fewer examples than clients that hold it.

    Examples:
        >>> split = planted_clusters([Cluster(1, [0], 4), Cluster(2, [1, 2], 9)]).split
        >>> partition = split(np.repeat([0, 1, 2], 6), seed=0)
        >>> partition.sizes.tolist(), partition.groups.tolist(), len(partition.unassigned)
        ([4, 6, 6], [0, 1, 1], 2)
    """
    if isinstance(clusters, str):
        checks.one_of("clusters", clusters, tuple(PLANTED))
        name, clusters = clusters, PLANTED[clusters]
    elif isinstance(clusters, Sequence) and clusters:
        name = f"{len(clusters)} clusters"
    else:
        raise ValueError(f"{clusters=}: expected a name, or at least one data.Cluster.")
    for cluster in clusters:
        if not isinstance(cluster, Cluster):
            raise ValueError(f"clusters: expected each to be a data.Cluster, got {cluster!r}.")
        checks.positive_int("num_clients", cluster.num_clients)
        checks.positive_int("at_most", cluster.at_most)
        for label in cluster.classes:
            checks.non_negative_int("classes", label)
        if len(set(cluster.classes)) != len(cluster.classes) or not cluster.classes:
            raise ValueError(f"classes={list(cluster.classes)}: expected some, each once.")
    num_clients = sum(cluster.num_clients for cluster in clusters)

    def split(labels, /, seed, **columns):
        check_enough(len(labels), num_clients)
        holders = [cluster for cluster in clusters for _ in range(cluster.num_clients)]
        groups = np.repeat(np.arange(len(clusters)), [cluster.num_clients for cluster in clusters])
        widths = np.array([len(cluster.classes) for cluster in holders], np.int64)
        slots = np.concatenate([list(cluster.classes) for cluster in holders])
        at_most = np.repeat([cluster.at_most for cluster in holders], widths)
        order, lengths = _split_over_slots(labels, slots, at_most, generator(seed))
        sizes = np.add.reduceat(lengths, np.cumsum(widths) - widths)
        return make_partition(order, sizes, len(labels), groups)

    return Partitioner(f"planted_clusters({name})", split, label_skew_only=True)


def _split_over_slots(labels: Any, slots: np.ndarray, at_most: Any, rng: np.random.Generator):
    """Shuffles every class and splits it equally over the slots that name it.

    Returns:
        The indices assigned, slot after slot, and how many of them each slot got.
    """
    classes, counts = np.unique(labels, return_counts=True)
    known, holders = np.unique(slots, return_counts=True)
    available = np.zeros(len(known), np.int64)
    available[np.isin(known, classes)] = counts[np.isin(classes, known)]
    if (short := np.flatnonzero(available < holders)).size:
        label, have, need = known[short[0]], available[short[0]], holders[short[0]]
        raise ValueError(
            f"class {label} has {have} examples: expected at least {need}, one a client."
        )
    kind = np.searchsorted(known, slots)
    shard = available // holders
    first = (np.cumsum(counts) - counts)[np.isin(classes, known)]
    starts = first[kind] + _rank_among_equals(kind) * shard[kind]
    lengths = np.minimum(shard[kind], at_most).astype(np.int64)
    return shuffled_by_class(labels, rng)[_ranges(starts, lengths)], lengths


def _rank_among_equals(values: np.ndarray) -> np.ndarray:
    """How many earlier entries are the same: ``[5, 7, 5, 5] -> [0, 0, 1, 2]``."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = _ranges(np.zeros_like(counts), counts)
    return ranks


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the runs ``start, ..., start + length - 1``."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def split_test(
    train: Partition,
    train_labels: Int[np.ndarray, " train"],
    test_labels: Int[np.ndarray, " test"],
    seed: int,
) -> Partition:
    """Splits test examples with the class mix of every client's training examples.

    The test examples of a class are shuffled and split in proportion to the clients' shares of the
    assigned training examples of that class. What rounding down leaves goes to the largest remainders,
    equal ones in random order.

    Args:
        train: Partition of the training examples.
        train_labels: Their classes.
        test_labels: Classes of the test examples.
        seed: Seed; the partition's own may be used again.

    Returns:
        A partition of the test examples with the same clients and groups. A client with few
        training examples may get none. Classes that no client trains on are dropped.

    Examples:
        >>> from fedjax_fair.data.partition import from_indices
        >>> labels = np.array([0, 0, 0, 1])
        >>> train = from_indices([[0], [1, 2, 3]]).split(labels, seed=0)
        >>> test = split_test(train, labels, np.array([0, 0, 0, 0, 0, 0, 1, 2]), seed=0)
        >>> test.sizes.tolist(), test.unassigned.tolist()
        ([2, 5], [7])
    """
    rng = generator(seed, 1)  # Apart from the stream that split the training part.
    num_clients = len(train.sizes)
    owners = np.repeat(np.arange(num_clients), train.sizes)
    # Only the pairs of class and client that occur: a dense table would not fit a million clients.
    pairs, counts = np.unique(
        train_labels[train.order].astype(np.int64) * num_clients + owners, return_counts=True
    )
    labels, clients = np.divmod(pairs, num_clients)
    quotas = _quotas(labels, counts, np.bincount(test_labels, minlength=labels.max() + 1), rng)
    by_class = shuffled_by_class(test_labels, rng)
    assigned = by_class[np.isin(test_labels[by_class], labels)]
    test_owners = np.repeat(clients, quotas)
    order = assigned[np.argsort(test_owners, kind="stable")]
    sizes = np.bincount(test_owners, minlength=num_clients)
    return make_partition(order, sizes, len(test_labels), train.groups)


def _quotas(labels, counts, totals, rng) -> np.ndarray:
    """Splits ``totals[label]`` over the entries of a label in proportion to their counts."""
    exact = totals[labels] * counts
    whole = np.bincount(labels, counts).astype(np.int64)[labels]
    quotas, remainders = np.divmod(exact, whole)
    left = totals - np.bincount(labels, quotas, minlength=len(totals)).astype(np.int64)
    ranking = np.lexsort((rng.random(len(labels)), -remainders, labels))
    ranks = _rank_among_equals(labels[ranking])
    quotas[ranking[ranks < left[labels[ranking]]]] += 1
    return quotas
