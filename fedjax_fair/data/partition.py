"""Partitioners: seeded ways to split examples over clients, in NumPy.

Partitioners by class are in `class_partition` and `dirichlet`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_fair import checks
from fedjax_fair.data.partitioner import (
    Partition,
    Partitioner,
    check_enough,
    equal_parts,
    generator,
    join_indices,
    make_partition,
    parts_by_weight,
    shuffled_by_class,
)

__all__ = [
    "assign_by_owner",
    "by_column",
    "from_indices",
    "iid",
    "quantity_skew",
    "shards",
]


def iid(num_clients: int) -> Partitioner:
    """Splits shuffled examples into parts whose sizes differ by at most one.

    Args:
        num_clients: Number of clients.

    Raises:
        ValueError: If ``num_clients`` is not a positive integer; when splitting, if there are fewer
            examples than clients.

    Examples:
        >>> iid(3).split(np.zeros(10, int), seed=0).sizes.tolist()
        [4, 3, 3]
    """
    checks.positive_int("num_clients", num_clients)

    def split(labels, /, seed, **columns):
        check_enough(len(labels), num_clients)
        sizes = equal_parts(len(labels), num_clients)
        return make_partition(generator(seed).permutation(len(labels)), sizes, len(labels))

    return Partitioner(f"iid({num_clients})", split, label_skew_only=True)


def quantity_skew(
    num_clients: int,
    distribution: Literal["lognormal", "power"] = "lognormal",
    *,
    skew: float = 1.0,
    min_partition_size: int = 1,
) -> Partitioner:
    """Splits shuffled examples into unequal parts.

    Client ``i`` gets ``min_partition_size`` examples and a share of the rest in proportion to ``(i
    + 1) ** -skew`` (power) or ``exp(skew * z_i)``, ``z_i`` standard normal (lognormal).

    Args:
        num_clients: Number of clients.
        distribution: ``"power"`` or ``"lognormal"``.
        skew: At least 0; 0 for equal parts.
        min_partition_size: Minimum number of examples of a client, at least 1.

    Returns:
        A partitioner that assigns all examples.

    Raises:
        ValueError: If a setting is out of range; when splitting, if there are fewer than
            ``num_clients * min_partition_size`` examples.

    Examples:
        >>> quantity_skew(3, "power", skew=1.0).split(np.zeros(25, int), seed=0).sizes.tolist()
        [13, 7, 5]
    """
    checks.positive_int("num_clients", num_clients)
    checks.one_of("distribution", distribution, ("power", "lognormal"))
    checks.non_negative("skew", skew)
    checks.positive_int("min_partition_size", min_partition_size)

    def split(labels, /, seed, **columns):
        check_enough(len(labels), num_clients, min_partition_size)
        rng = generator(seed)
        if distribution == "power":
            logarithms = -skew * np.log(np.arange(1, num_clients + 1))
        else:
            logarithms = skew * rng.standard_normal(num_clients)
        weights = np.exp(logarithms - logarithms.max())
        rest = len(labels) - num_clients * min_partition_size
        sizes = min_partition_size + parts_by_weight(rest, weights)
        return make_partition(rng.permutation(len(labels)), sizes, len(labels))

    name = f"quantity_skew({num_clients}, {distribution}, {skew})"
    return Partitioner(name, split, label_skew_only=True)


def shards(num_clients: int, shards_per_client: int = 2) -> Partitioner:
    """Sorts examples by class, cuts them into equal shards and assigns these at random.

    Args:
        num_clients: Number of clients.
        shards_per_client: Shards of each client, each with ``examples // (num_clients *
            shards_per_client)`` examples; the rest is unassigned.

    Raises:
        ValueError: If a setting is out of range; when splitting, if there are fewer examples than
            shards.

    References:
        McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
        2017, https://arxiv.org/abs/1602.05629

    Examples:
        >>> shards(2, 2).split(np.arange(9) % 3, seed=0).sizes.tolist()
        [4, 4]
    """
    checks.positive_int("num_clients", num_clients)
    checks.positive_int("shards_per_client", shards_per_client)

    def split(labels, /, seed, **columns):
        num_shards = num_clients * shards_per_client
        check_enough(len(labels), num_clients, shards_per_client)
        rng = generator(seed)
        size = len(labels) // num_shards
        # Draw from all shards, so that unassigned ones are not always of the last class.
        drawn = rng.permutation(len(labels) // size)[:num_shards]
        order = shuffled_by_class(labels, rng)[(drawn[:, None] * size + np.arange(size)).ravel()]
        return make_partition(order, np.full(num_clients, shards_per_client * size), len(labels))

    return Partitioner(f"shards({num_clients}, {shards_per_client})", split, label_skew_only=True)


def by_column(column: str) -> Partitioner:
    """Makes one client of every distinct value of a column, ascending, such as a writer.

    Args:
        column: Name of the column. Test examples that have it go to the same client; those of
            other owners are unassigned.

    Returns:
        A partitioner that assigns all examples and ignores the seed.

    Raises:
        ValueError: When splitting, if the column is missing or has another length than the labels.

    Examples:
        >>> partition = by_column("writer").split(np.zeros(4, int), 0, writer=["b", "a", "b", "b"])
        >>> partition.sizes.tolist(), partition.order.tolist()
        ([1, 3], [1, 0, 2, 3])
    """

    def split(labels, /, seed, **columns):
        if column not in columns:
            raise ValueError(f"{column=}: expected one of the columns {sorted(columns)}.")
        owners = np.asarray(columns[column])
        if owners.shape != (len(labels),):
            raise ValueError(
                f"{column=} of shape {owners.shape}: expected one value for each of {len(labels)} "
                "examples."
            )
        return assign_by_owner(owners, owners)

    return Partitioner(f"by_column({column})", split, column)


def assign_by_owner(train_owners: np.ndarray, test_owners: np.ndarray) -> Partition:
    """Assigns test examples to the clients that `by_column` makes of the training examples.

    Test examples of other owners are unassigned.

    Args:
        train_owners: The column's value of every training example.
        test_owners: The column's value of every test example.

    Examples:
        >>> test = assign_by_owner(np.array(["b", "a"]), np.array(["a", "c", "b", "a"]))
        >>> test.client_indices, test.unassigned.tolist()
        ([array([0, 3], dtype=int32), array([2], dtype=int32)], [1])
    """
    owners = np.unique(train_owners)
    assigned = np.flatnonzero(np.isin(test_owners, owners))
    clients = np.searchsorted(owners, test_owners[assigned])
    order = assigned[np.argsort(clients, kind="stable")]
    return make_partition(order, np.bincount(clients, minlength=len(owners)), len(test_owners))


def from_indices(indices: Mapping[Any, Any] | Sequence[Any]) -> Partitioner:
    """Assigns given examples to each client.

    Args:
        indices: Indices of each client's examples, one non-empty array per client, no index twice;
            in a list, or a mapping by client name. Clients are numbered in this order.

    Returns:
        A partitioner that ignores the seed.

    Raises:
        ValueError: If a client has no examples; when splitting, if an index is not an integer in
            ``[0, examples)`` or appears twice.

    Examples:
        >>> partition = from_indices({"ward 7": [3, 0], "ward 9": [1]}).split(np.zeros(4, int), 0)
        >>> partition.client_indices, partition.unassigned.tolist()
        ([array([3, 0], dtype=int32), array([1], dtype=int32)], [2])
    """
    values = indices.values() if isinstance(indices, Mapping) else indices
    arrays = [np.asarray(array) for array in values]
    empty = [client for client, array in enumerate(arrays) if not array.size]
    if empty or not arrays:
        raise ValueError(
            f"client indices: {len(empty)} of {len(arrays)} clients have no examples, first "
            f"{empty[:5]}; expected at least one client and none empty."
        )

    def split(labels, /, seed, **columns):
        return make_partition(*join_indices(arrays, len(labels)), len(labels))

    return Partitioner(f"from_indices({len(arrays)})", split)
