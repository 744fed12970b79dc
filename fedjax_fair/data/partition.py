"""Ways to split examples over clients: seeded partitioners, on the host, in NumPy.

A partitioner is made by a factory from the settings of the split and knows nothing of the data:
``dirichlet(100, alpha=0.3).split(labels, seed)``. The same labels and seed give the same partition.
The factories that plant classes on clients are in ``class_partition``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedjax_fair import checks
from fedjax_fair.data.ownership import (
    Partition,
    Partitioner,
    equal_parts,
    generator,
    join_indices,
    owned,
    require_enough,
    shuffled_by_class,
)

__all__ = [
    "by_column",
    "dirichlet",
    "explicit",
    "follow_owners",
    "iid",
    "quantity_skew",
    "shards",
]

DIRICHLET_ATTEMPTS = 11  # As many as flwr-datasets makes before it gives up.


def iid(num_clients: int) -> Partitioner:
    """Splits shuffled examples into equal parts (sizes differ by at most one).

    Args:
        num_clients: Number of clients.

    Returns:
        A partitioner that drops nothing.

    Raises:
        ValueError: If ``num_clients`` is not a positive integer; when splitting, if there are fewer
            examples than clients.

    Examples:
        >>> iid(3).split(np.zeros(10, int), seed=0).sizes.tolist()
        [4, 3, 3]
    """
    checks.positive_int("num_clients", num_clients)

    def split(labels, /, seed, **columns):
        require_enough(len(labels), num_clients)
        sizes = equal_parts(len(labels), num_clients)
        return owned(generator(seed).permutation(len(labels)), sizes, len(labels))

    return Partitioner(f"iid({num_clients})", split, label_skew=True)


def quantity_skew(
    num_clients: int,
    law: Literal["lognormal", "power"] = "lognormal",
    *,
    skew: float = 1.0,
    min_size: int = 1,
) -> Partitioner:
    """Splits shuffled examples into unequal parts.

    Client ``i`` gets ``min_size`` examples and a share of the rest in proportion to ``(i + 1) **
    -skew`` under the power law (client 0 owns the most) or to ``exp(skew * z_i)``, ``z_i`` standard
    normal, under the lognormal law. Both are equal parts at ``skew=0``.

    Args:
        num_clients: Number of clients.
        law: ``"power"`` or ``"lognormal"``.
        skew: Exponent or standard deviation of the logarithm, at least 0.
        min_size: Fewest examples of a client, at least 1.

    Returns:
        A partitioner that drops nothing.

    Raises:
        ValueError: If a setting is out of range; when splitting, if there are fewer than
            ``num_clients * min_size`` examples.

    Examples:
        >>> quantity_skew(3, "power", skew=1.0).split(np.zeros(25, int), seed=0).sizes.tolist()
        [13, 7, 5]
    """
    checks.positive_int("num_clients", num_clients)
    checks.one_of("law", law, ("power", "lognormal"))
    checks.non_negative("skew", skew)
    checks.positive_int("min_size", min_size)

    def split(labels, /, seed, **columns):
        require_enough(len(labels), num_clients, min_size)
        rng = generator(seed)
        ranks = np.arange(1, num_clients + 1)
        logarithms = -np.log(ranks) if law == "power" else rng.standard_normal(num_clients)
        logarithms = skew * logarithms
        weights = np.exp(logarithms - logarithms.max())
        rest = len(labels) - num_clients * min_size
        sizes = min_size + _largest_remainder(rest, weights)
        return owned(rng.permutation(len(labels)), sizes, len(labels))

    return Partitioner(f"quantity_skew({num_clients}, {law}, {skew})", split, label_skew=True)


def _largest_remainder(total: int, weights: np.ndarray) -> np.ndarray:
    """Cuts ``total`` in proportion to weights; rounding favors the largest remainders."""
    exact = total * (weights / weights.sum())
    parts = np.floor(exact).astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - parts.sum()]] += 1
    return parts


def dirichlet(
    num_clients: int, alpha: float | Sequence[float] | np.ndarray = 0.5, min_size: int = 10
) -> Partitioner:
    """Splits each class in proportions drawn from a Dirichlet distribution.

    A small ``alpha`` gives every class to few clients, a large one gives all clients the same mix.
    A draw that leaves a client below ``min_size`` is repeated, eleven times at most. Under one seed
    the partition equals, index for index, that of ``DirichletPartitioner`` of flwr-datasets 0.6.1
    with ``self_balancing=False``.

    Args:
        num_clients: Number of clients.
        alpha: Concentration, above 0; a number, or one of each client ``[clients]``.
        min_size: Fewest examples of a client, at least 1.

    Returns:
        A partitioner that drops nothing.

    Raises:
        ValueError: If a setting is out of range; when splitting, if there are fewer than
            ``num_clients * min_size`` examples or every draw left a client below ``min_size``.

    References:
        Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, 2019,
        https://arxiv.org/abs/1905.12022

    Examples:
        >>> partition = dirichlet(2, alpha=0.5, min_size=1).split(np.arange(20) % 2, seed=0)
        >>> int(partition.sizes.sum()), partition.dropped.tolist()
        (20, [])
    """
    checks.positive_int("num_clients", num_clients)
    checks.positive("alpha", alpha, many=True)
    checks.positive_int("min_size", min_size)
    if np.shape(alpha) not in ((), (num_clients,)):
        raise ValueError(
            f"alpha of shape {np.shape(alpha)}: expected one or {num_clients=} numbers."
        )
    concentration = np.broadcast_to(np.asarray(alpha, float), (num_clients,))

    def split(labels, /, seed, **columns):
        require_enough(len(labels), num_clients, min_size)
        rng = generator(seed)
        for _ in range(DIRICHLET_ATTEMPTS):
            owners = _dirichlet_owners(labels, concentration, rng)
            sizes = np.bincount(owners, minlength=num_clients)
            if sizes.min() >= min_size:
                break
        else:
            raise ValueError(
                f"dirichlet: {alpha=} left a client of {num_clients} with {sizes.min()} of "
                f"{len(labels)} examples in the last of {DIRICHLET_ATTEMPTS} draws: expected at "
                f"least {min_size=}; raise alpha or lower min_size."
            )
        # A client's examples come class by class, ascending within a class, and are then shuffled.
        by_class = np.argsort(labels, kind="stable")
        order = by_class[np.argsort(owners[by_class], kind="stable")]
        for client in np.split(order, np.cumsum(sizes)[:-1]):
            rng.shuffle(client)
        return owned(order, sizes, len(labels))

    return Partitioner(f"dirichlet({num_clients}, {alpha})", split, label_skew=True)


def _dirichlet_owners(labels, concentration, rng) -> np.ndarray:
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        proportions = rng.dirichlet(concentration)
        # Parts end where the cumulative proportion, rounded down, says; the last takes the rest.
        ends = (np.cumsum(proportions) * len(members)).astype(int)[:-1]
        owners[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    return owners


def shards(num_clients: int, shards_per_client: int = 2) -> Partitioner:
    """Sorts examples by class, cuts them into equal shards and assigns those at random.

    Args:
        num_clients: Number of clients.
        shards_per_client: Shards of each client; two gives most clients two classes.

    Returns:
        A partitioner. A shard holds ``examples // (num_clients * shards_per_client)`` examples;
        what is left over belongs to no client.

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
        used = num_clients * shards_per_client
        require_enough(len(labels), num_clients, shards_per_client)
        rng = generator(seed)
        size = len(labels) // used
        # Leftover whole shards are drawn too, so that the last class is not the one that loses.
        drawn = rng.permutation(len(labels) // size)[:used]
        order = shuffled_by_class(labels, rng)[(drawn[:, None] * size + np.arange(size)).ravel()]
        return owned(order, np.full(num_clients, shards_per_client * size), len(labels))

    return Partitioner(f"shards({num_clients}, {shards_per_client})", split, label_skew=True)


def by_column(column: str) -> Partitioner:
    """Makes every distinct value of a column one client, for natural owners such as writers.

    Args:
        column: Name of the column. Clients are its distinct values, ascending. Where test examples
            have the column too they go to the same owner, and strangers' are dropped.

    Returns:
        A partitioner that drops nothing; the seed does not matter.

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
        values = np.asarray(columns[column])
        if values.shape != (len(labels),):
            raise ValueError(
                f"{column=} of shape {values.shape}: expected one value for each of {len(labels)} "
                "examples."
            )
        _, owners, sizes = np.unique(values, return_inverse=True, return_counts=True)
        return owned(np.argsort(owners, kind="stable"), sizes, len(labels))

    return Partitioner(f"by_column({column})", split, column)


def follow_owners(train_owners: np.ndarray, test_owners: np.ndarray) -> Partition:
    """Assigns test examples to the clients that ``by_column`` made of the training examples.

    Args:
        train_owners: The column's value of every training example.
        test_owners: That of every test example.

    Returns:
        A partition of the test examples. A client may have none; those of owners without training
        examples are dropped.

    Examples:
        >>> test = follow_owners(np.array(["b", "a"]), np.array(["a", "c", "b", "a"]))
        >>> test.client_indices, test.dropped.tolist()
        ([array([0, 3], dtype=int32), array([2], dtype=int32)], [1])
    """
    owners = np.unique(train_owners)
    known = np.flatnonzero(np.isin(test_owners, owners))
    position = np.searchsorted(owners, test_owners[known])
    order = known[np.argsort(position, kind="stable")]
    return owned(order, np.bincount(position, minlength=len(owners)), len(test_owners))


def explicit(indices: Sequence[Any]) -> Partitioner:
    """Hands out exactly the given examples.

    Args:
        indices: Indices of each client's examples, one non-empty array a client, no index twice.

    Returns:
        A partitioner that drops what no client names; the seed does not matter.

    Raises:
        ValueError: If a client has no examples; when splitting, if an index is not an integer in
            ``[0, examples)`` or appears twice.

    Examples:
        >>> explicit([[3, 0], [1]]).split(np.zeros(4, int), seed=0).dropped.tolist()
        [2]
    """
    arrays = [np.asarray(client) for client in indices]
    empty = [client for client, array in enumerate(arrays) if not array.size]
    if empty or not arrays:
        raise ValueError(
            f"client indices: {len(empty)} of {len(arrays)} clients own nothing, first "
            f"{empty[:5]}; expected at least one client and none empty."
        )

    def split(labels, /, seed, **columns):
        return owned(*join_indices(arrays, len(labels)), len(labels))

    return Partitioner(f"explicit({len(arrays)})", split)
