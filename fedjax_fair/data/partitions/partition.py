"""Partitioners: seeded ways to split examples over clients, in NumPy.

Partitioners by class are in `class_partition` and `dirichlet`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_fair.data.conversion import check_names, names_of, require
from fedjax_fair.data.partitions.partitioner import (
    Partition,
    Partitioner,
    column_values,
    equal_parts,
    generator,
    index_arrays,
    join_indices,
    make_partition,
    parts_by_weight,
    random_partitioner,
    shuffled_by_class,
)
from fedjax_fair.utils import checks

__all__ = [
    "assign_by_owner",
    "by_column",
    "find_unknown",
    "from_indices",
    "iid",
    "natural",
    "quantity_skew",
    "shards",
]


def iid(num_clients: int) -> Partitioner:
    """Splits shuffled examples into parts whose sizes differ by at most one.

    Args:
        num_clients: Number of clients, at most that of examples.

    Examples:
        >>> iid(3).split(np.zeros(10, int), seed=0).sizes.tolist()
        [4, 3, 3]
    """

    def assign(labels, rng):
        return rng.permutation(len(labels)), equal_parts(len(labels), num_clients)

    return random_partitioner(f"iid({num_clients})", assign, num_clients)


def quantity_skew(
    num_clients: int,
    distribution: Literal["lognormal", "power"] = "lognormal",
    *,
    skew: float = 1.0,
    min_partition_size: int = 1,
) -> Partitioner:
    """Splits all examples, shuffled, into unequal parts.

    Client ``i`` gets ``min_partition_size`` examples and a share of the rest in proportion to ``(i
    + 1) ** -skew`` (power) or ``exp(skew * z_i)``, ``z_i`` standard normal (lognormal).

    Args:
        num_clients: Number of clients.
        distribution: ``"power"`` or ``"lognormal"``.
        skew: From 0, equal parts, to 1000.
        min_partition_size: Minimum number of examples of a client, at least 1.

    Raises:
        ValueError: When splitting, if there are fewer than ``num_clients * min_partition_size``
            examples.

    Examples:
        >>> quantity_skew(3, "power", skew=1.0).split(np.zeros(25, int), seed=0).sizes.tolist()
        [13, 7, 5]
    """
    checks.one_of("distribution", distribution, ("power", "lognormal"))
    checks.non_negative("skew", skew, at_most=1000)
    checks.positive_int("min_partition_size", min_partition_size)

    def assign(labels, rng):
        if distribution == "power":
            logarithms = -skew * np.log(np.arange(1, num_clients + 1))
        else:
            logarithms = skew * rng.standard_normal(num_clients)
        weights = np.exp(logarithms - logarithms.max())
        rest = len(labels) - num_clients * min_partition_size
        shares = parts_by_weight(rest, weights)
        num_filled = int((shares == 0).sum()) if rest else 0
        return rng.permutation(len(labels)), min_partition_size + shares, None, num_filled

    name = f"quantity_skew({num_clients}, {distribution}, {skew})"
    return random_partitioner(name, assign, num_clients, min_partition_size)


def shards(num_clients: int, shards_per_client: int = 2) -> Partitioner:
    """Sorts examples by class, cuts them into equal shards and assigns these at random.

    Args:
        num_clients: Number of clients.
        shards_per_client: Shards of each client, each with ``examples // (num_clients *
            shards_per_client)`` examples, at least one; the rest is unassigned.

    References:
        McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
        2017, https://arxiv.org/abs/1602.05629

    Examples:
        >>> shards(2, 2).split(np.arange(9) % 3, seed=0).sizes.tolist()
        [4, 4]
    """
    checks.positive_int("shards_per_client", shards_per_client)

    def assign(labels, rng):
        num_shards = num_clients * shards_per_client
        size = len(labels) // num_shards
        # Draw from all shards, so that unassigned ones are not always of the last class.
        drawn = rng.permutation(len(labels) // size)[:num_shards]
        order = shuffled_by_class(labels, rng)[(drawn[:, None] * size + np.arange(size)).ravel()]
        return order, np.full(num_clients, shards_per_client * size)

    name = f"shards({num_clients}, {shards_per_client})"
    return random_partitioner(name, assign, num_clients, shards_per_client, by_class=True)


def by_column(column: str) -> Partitioner:
    """Makes one client of every distinct value of a column, ascending, such as a writer.

    Strings that are all integers ascend as numbers, so that ``"2"`` is before ``"10"``. All
    examples are assigned, and the seed is ignored.

    Args:
        column: Name of the column, which decides the client of test examples as well
            (`assign_by_owner`).

    Examples:
        >>> partition = by_column("writer").split(np.zeros(4, int), 0, writer=["b", "a", "b", "b"])
        >>> partition.sizes.tolist(), partition.order.tolist()
        ([1, 3], [1, 0, 2, 3])
    """

    def split(labels, /, seed, **columns):
        owners = column_values(column, columns, len(labels))
        return assign_by_owner(owners, owners)

    return Partitioner(f"by_column({column})", split, column)


def natural(num_clients: int | None = None) -> Partitioner:
    """Keeps the clients of a data set that has them, such as roles of plays.

    Args:
        num_clients: Number of clients, drawn at random from those of the data set; by default all.

    Examples:
        >>> partition = natural().split(np.zeros(4, int), 0, client=["b", "a", "b", "b"])
        >>> partition.client_names, partition.sizes.tolist()
        (('a', 'b'), [1, 3])
    """
    if num_clients is not None:
        checks.positive_int("num_clients", num_clients)
    column = "client"

    def split(labels, /, seed, **columns):
        if column not in columns:
            raise ValueError(
                "partition='natural': expected a data set that has clients, such as shakespeare; "
                "use another partition for this one."
            )
        partition = by_column(column).split(labels, seed, **columns)
        total = len(partition.sizes)
        if num_clients is None or num_clients == total:
            return partition
        if num_clients > total:
            raise ValueError(
                f"{num_clients=}: expected at most {total}, as many as the data set has; "
                "choose fewer."
            )
        kept = np.sort(generator(seed).choice(total, num_clients, replace=False))
        indices, names = partition.client_indices, partition.client_names
        order = np.concatenate([indices[client] for client in kept])
        some = make_partition(order, partition.sizes[kept], len(labels))
        return some._replace(client_names=names and tuple(names[client] for client in kept))

    name = f"natural({'' if num_clients is None else num_clients})"
    return Partitioner(name, split, column)


def assign_by_owner(train_owners: np.ndarray, test_owners: np.ndarray) -> Partition:
    """Assigns test examples to the clients that `by_column` makes of the training examples.

    Test examples of other owners are unassigned. Owners that are strings are the clients' names;
    strings that are all integers ascend as numbers.

    Args:
        train_owners: The column of training examples.
        test_owners: The column of test examples.

    Examples:
        >>> test = assign_by_owner(np.array(["b", "a"]), np.array(["a", "c", "b", "a"]))
        >>> test.client_indices, test.unassigned.tolist()
        ([array([0, 3], dtype=int32), array([2], dtype=int32)], [1])
    """
    owners = _ascending(train_owners)
    assigned = np.flatnonzero(np.isin(test_owners, owners))
    by_text = np.argsort(owners, kind="stable")
    clients = by_text[np.searchsorted(owners, test_owners[assigned], sorter=by_text)]
    order = assigned[np.argsort(clients, kind="stable")]
    sizes = np.bincount(clients, minlength=len(owners))
    partition = make_partition(order, sizes, len(test_owners))
    return partition._replace(client_names=names_of(owners.tolist()))


def find_unknown(
    argument: str, owners: np.ndarray, test_owners: np.ndarray, unknown_clients: str
) -> np.ndarray:
    """Returns which test examples are of clients without training examples.

    Args:
        argument: Name of the test examples, for messages.
        owners: Owner of each training example.
        test_owners: Owner of each test example.
        unknown_clients: ``"error"`` or ``"unseen"``.

    Raises:
        ValueError: If there are any, and ``unknown_clients`` is ``"error"``.
    """
    is_unknown = ~np.isin(test_owners, owners)
    names = _ascending(test_owners[is_unknown])
    require(
        unknown_clients == "unseen" or not names.size,
        f"{argument}: {is_unknown.sum():,} test examples are of {names.size:,} clients that lack "
        f"training examples, first {names[:5].tolist()}; expected none, so leave them out, or "
        "unknown_clients='unseen' makes unseen clients of them.",
    )
    return is_unknown


def _ascending(owners: np.ndarray) -> np.ndarray:
    """Returns the distinct owners; strings that are all integers in the order of numbers."""
    distinct = np.unique(owners)
    if distinct.dtype.kind not in "US":
        return distinct
    texts = [
        name.decode(errors="replace") if isinstance(name, bytes) else name
        for name in distinct.tolist()
    ]
    if not all(re.fullmatch(r"[+-]?[0-9]{1,4000}", text) for text in texts):
        return distinct
    return distinct[sorted(range(len(texts)), key=lambda place: (int(texts[place]), texts[place]))]


def from_indices(indices: Mapping[Any, Any] | Sequence[Any]) -> Partitioner:
    """Assigns given examples to each client, whatever the seed.

    Args:
        indices: Indices of each client's examples, one non-empty array of integers in ``[0,
            examples)`` per client, no index twice; in a list, or a mapping by client name. Clients
            are numbered in this order. Keys that are not strings are ignored.

    Examples:
        >>> partition = from_indices({"ward 7": [3, 0], "ward 9": [1]}).split(np.zeros(4, int), 0)
        >>> partition.client_indices, partition.unassigned.tolist()
        ([array([3, 0], dtype=int32), array([1], dtype=int32)], [2])
        >>> partition.client_names
        ('ward 7', 'ward 9')
    """
    names = names_of(indices) if isinstance(indices, Mapping) else None
    arrays = index_arrays(indices.values() if isinstance(indices, Mapping) else indices)
    if names is not None:
        check_names("client indices", names, len(arrays))
    empty = [client for client, array in enumerate(arrays) if not array.size]
    if empty or not arrays:
        raise ValueError(
            f"client indices: {len(empty)} of {len(arrays)} clients have no examples, first "
            f"{empty[:5]}; expected at least one client and none empty, so leave these out."
        )

    def split(labels, /, seed, **columns):
        partition = make_partition(*join_indices(arrays, len(labels)), len(labels))
        return partition._replace(client_names=names)

    return Partitioner(f"from_indices({len(arrays)})", split)
