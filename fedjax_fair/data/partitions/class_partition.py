"""Partitioners that assign classes to clients, and the split of test examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.partitions.partitioner import (
    Partition,
    Partitioner,
    check_classes,
    equal_parts,
    generator,
    make_partition,
    random_partitioner,
    shuffled_by_class,
)
from fedjax_fair.utils import checks

__all__ = ["PLANTED", "Cluster", "classes_per_client", "planted_clusters", "split_test"]

MAX_PASSES = 10_000  # Far more than needed in any case tried.


def classes_per_client(num_clients: int, classes: int = 3) -> Partitioner:
    """Gives every client the same number of classes, and every class equally many clients.

    Classes are assigned at random, each equally often or once more, and swapped between clients
    until none has a class twice. Each class is then shuffled and split into equal shards, one per
    client; its remainder is unassigned.

    Args:
        num_clients: Number of clients.
        classes: Classes of each client, at most those in the labels.

    Raises:
        ValueError: When splitting, if a class has fewer examples than clients.

    Examples:
        >>> labels = np.arange(40) % 4
        >>> partition = classes_per_client(6, 2).split(labels, seed=0)
        >>> [len(set(labels[indices])) for indices in partition.client_indices]
        [2, 2, 2, 2, 2, 2]
    """
    checks.positive_int("classes", classes)

    def assign(labels, rng):
        present = np.unique(labels)
        if classes > len(present):
            raise ValueError(
                f"{classes=}: expected at most the {len(present)} classes in the labels; "
                "choose fewer."
            )
        uses = rng.permutation(equal_parts(num_clients * classes, len(present)))
        slots = present[_draw_slots(num_clients, uses, rng)]
        order, lengths = _split_over_slots(labels, slots.ravel(), np.inf, rng)
        return order, lengths.reshape(slots.shape).sum(axis=1)

    name = f"classes_per_client({num_clients}, {classes})"
    return random_partitioner(name, assign, num_clients, classes, by_class=True)


def _draw_slots(num_clients: int, uses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws distinct classes for every client, class ``c`` for ``uses[c]`` clients."""
    width = uses.sum() // num_clients
    if 2 * width > len(uses):
        # Random swaps rarely make nearly full rows distinct, so draw the missing classes instead.
        missing = _draw_slots(num_clients, num_clients - uses, rng)
        has_class = np.ones((num_clients, len(uses)), bool)
        np.put_along_axis(has_class, missing, False, axis=1)
        return np.nonzero(has_class)[1].reshape(num_clients, width)
    slots = rng.permutation(np.repeat(np.arange(len(uses)), uses)).reshape(num_clients, width)
    _separate(slots, rng)
    return slots


def _separate(slots: np.ndarray, rng: np.random.Generator) -> None:
    """Swaps slots between random rows, in place, until no row has a value twice.

    A swap that would increase the number of repetitions is not made.
    """
    num_rows, width = slots.shape
    for _ in range(MAX_PASSES):
        repeated = _repetitions(slots) > 0
        if not repeated.any():
            return
        rows = rng.permutation(num_rows)[: num_rows // 2 * 2]
        first, second = rows.reshape(2, -1)
        is_repeated = repeated[first] | repeated[second]
        first, second = first[is_repeated], second[is_repeated]
        swapped = slots[np.concatenate([first, second])]
        pair, half = np.arange(len(first)), len(first)
        columns = rng.integers(width, size=(2, half))
        swapped[pair, columns[0]] = slots[second, columns[1]]
        swapped[pair + half, columns[1]] = slots[first, columns[0]]
        before = _repetitions(slots[first]) + _repetitions(slots[second])
        after = _repetitions(swapped).reshape(2, half).sum(axis=0)
        accepted = after <= before
        slots[first[accepted]] = swapped[:half][accepted]
        slots[second[accepted]] = swapped[half:][accepted]
    raise ValueError(
        f"classes_per_client: {slots.shape} slots still repeat after {MAX_PASSES} passes; "
        "use another seed, or fewer classes per client."
    )


def _repetitions(slots: np.ndarray) -> np.ndarray:
    ascending = np.sort(slots, axis=1)
    return (ascending[:, 1:] == ascending[:, :-1]).sum(axis=1)


class Cluster(NamedTuple):
    """A group of clients with the same classes.

    Attributes:
        num_clients: Number of clients in the cluster.
        classes: Their classes, without repetition.
        at_most: Maximum number of examples of one class per client.
    """

    num_clients: int
    classes: Sequence[int]
    at_most: int


_TEN_CLASSES = (Cluster(4, range(4), 800), Cluster(6, range(4, 10), 800))
PLANTED: dict[str, tuple[Cluster, ...]] = {
    "digits": _TEN_CLASSES,
    "mnist": _TEN_CLASSES,
    "cifar10": _TEN_CLASSES,
    "cifar100": (
        Cluster(2, range(20), 220),
        Cluster(3, range(20, 50), 160),
        Cluster(5, range(50, 100), 100),
    ),
    # 62 classes of EMNIST. The cap is ours: without it the digits, which are twenty times as
    # frequent as some letters, would dominate.
    "femnist": (
        Cluster(8, range(2), 800),
        Cluster(36, range(2, 10), 800),
        Cluster(16, range(10, 25), 800),
        Cluster(18, range(25, 45), 800),
        Cluster(12, range(45, 62), 800),
    ),
}


def planted_clusters(clusters: str | Sequence[Cluster] = "mnist") -> Partitioner:
    """Makes groups of clients with the same classes; ``Partition.groups`` is the group of each.

    Every class is shuffled and split equally over its clients, up to ``at_most`` examples each; all
    other examples are unassigned. Clients are in the order of the groups.

    Args:
        clusters: The groups, or a name in ``PLANTED``: ``"digits"``, ``"mnist"``, ``"cifar10"``,
            ``"cifar100"`` (10 clients each) or ``"femnist"`` (90 clients, EMNIST by class).

    Raises:
        ValueError: When splitting, if a class has fewer examples than clients.

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
        raise ValueError(
            f"{clusters=}: expected a name ({', '.join(PLANTED)}) or at least one data.Cluster."
        )
    for cluster in clusters:
        if not isinstance(cluster, Cluster):
            raise ValueError(f"clusters: expected each to be a data.Cluster, got {cluster!r}.")
        checks.positive_int("num_clients", cluster.num_clients)
        checks.positive_int("at_most", cluster.at_most)
        classes = cluster.classes
        if not isinstance(classes, Sequence) or len(set(classes)) != len(classes) or not classes:
            raise ValueError(f"{classes=}: expected a list of one or more classes, each once.")
        for label in classes:
            checks.non_negative_int("classes", label)
    num_clients = sum(cluster.num_clients for cluster in clusters)

    def assign(labels, rng):
        groups = np.repeat(np.arange(len(clusters)), [cluster.num_clients for cluster in clusters])
        per_client = [cluster for cluster in clusters for _ in range(cluster.num_clients)]
        widths = np.array([len(cluster.classes) for cluster in per_client], np.int64)
        slots = np.concatenate([list(cluster.classes) for cluster in per_client])
        at_most = np.repeat([cluster.at_most for cluster in per_client], widths)
        order, lengths = _split_over_slots(labels, slots, at_most, rng)
        return order, np.add.reduceat(lengths, np.cumsum(widths) - widths), groups

    return random_partitioner(f"planted_clusters({name})", assign, num_clients, by_class=True)


def _split_over_slots(labels: Any, slots: np.ndarray, at_most: Any, rng: np.random.Generator):
    """Shuffles every class and splits it over its slots: indices by slot, and their numbers."""
    classes, counts = np.unique(labels, return_counts=True)
    used, num_slots = np.unique(slots, return_counts=True)
    available = np.zeros(len(used), np.int64)
    available[np.isin(used, classes)] = counts[np.isin(classes, used)]
    if (short := np.flatnonzero(available < num_slots)).size:
        label, size, expected = (values[short[0]] for values in (used, available, num_slots))
        raise ValueError(
            f"class {label} has {size} examples: expected at least {expected}, one per client; "
            "use fewer clients, or leave the class out."
        )
    slot_class = np.searchsorted(used, slots)
    shard = available // num_slots
    first = (np.cumsum(counts) - counts)[np.isin(classes, used)]
    starts = first[slot_class] + _rank_among_equals(slot_class) * shard[slot_class]
    lengths = np.minimum(shard[slot_class], at_most).astype(np.int64)
    return shuffled_by_class(labels, rng)[_ranges(starts, lengths)], lengths


def _rank_among_equals(values: np.ndarray) -> np.ndarray:
    """Counts earlier equal entries: ``[5, 7, 5, 5] -> [0, 0, 1, 2]``."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = _ranges(np.zeros_like(counts), counts)
    return ranks


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the ranges ``start, ..., start + length - 1``."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def split_test(
    train: Partition,
    train_labels: Int[np.ndarray, " train"],
    test_labels: Int[np.ndarray, " test"],
    seed: int,
) -> Partition:
    """Splits test examples with the class distribution of each client's training examples.

    The largest remainders of a class are rounded up, equal ones at random. A client may have no
    examples. Classes without training examples are unassigned.

    Args:
        train: Partition of the training examples.
        train_labels: Classes of the training examples.
        test_labels: Classes of the test examples.
        seed: Seed, which may be that of ``train``.

    Raises:
        ValueError: If labels are not one class for each example.

    Examples:
        >>> from fedjax_fair.data.partitions.partition import from_indices
        >>> labels = np.array([0, 0, 0, 1])
        >>> train = from_indices([[0], [1, 2, 3]]).split(labels, seed=0)
        >>> test = split_test(train, labels, np.array([0, 0, 0, 0, 0, 0, 1, 2]), seed=0)
        >>> test.sizes.tolist(), test.unassigned.tolist()
        ([2, 5], [7])
    """
    check_classes("train_labels", train_labels)
    check_classes("test_labels", test_labels)
    rng = generator(seed, 1)  # Stream 0 split the training examples.
    num_clients = len(train.sizes)
    owners = np.repeat(np.arange(num_clients), train.sizes)
    # Pairs of class and client that occur: a dense table would be too large for a million clients.
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
    class_sizes = np.bincount(labels, counts).astype(np.int64)[labels]
    quotas, remainders = np.divmod(totals[labels] * counts, class_sizes)
    rest = totals - np.bincount(labels, quotas, minlength=len(totals)).astype(np.int64)
    ranking = np.lexsort((rng.random(len(labels)), -remainders, labels))
    ranks = _rank_among_equals(labels[ranking])
    quotas[ranking[ranks < rest[labels[ranking]]]] += 1
    return quotas
