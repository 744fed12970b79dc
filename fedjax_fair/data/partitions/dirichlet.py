"""Partition of classes in proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedjax_fair.data.conversion import as_array
from fedjax_fair.data.partitions.partitioner import (
    Partitioner,
    column_values,
    parts_by_weight,
    random_partitioner,
)
from fedjax_fair.utils import checks

__all__ = ["dirichlet"]

ATTEMPTS = 11  # As in flwr-datasets.


def dirichlet(
    num_clients: int,
    alpha: float | Sequence[float] | np.ndarray = 0.5,
    min_partition_size: int = 10,
    by: Sequence[str] = (),
) -> Partitioner:
    """Splits each class, or each group, in proportions drawn from a Dirichlet distribution.

    All examples are assigned. A draw that leaves a client below ``min_partition_size`` is repeated,
    up to eleven times; the result equals that of ``DirichletPartitioner`` of flwr-datasets 0.6.1
    with ``self_balancing=False`` and the same seed. If no draw succeeds, which is an error there,
    clients below the minimum get random examples of the others, in proportion to what these have
    beyond it. ``print`` of the data counts these clients, and more than a tenth are a warning.

    Args:
        num_clients: Number of clients.
        alpha: Concentration, above 0 and at most 1e9, a scalar or ``[clients]``. If small, every
            class has few clients; if large, all clients have the same class distribution.
        min_partition_size: Minimum number of examples of a client, at least 1.
        by: Columns whose values are split instead of classes: a sensitive feature such as
            ``"sex"`` (the partition of FairFed's experiments), or several, such as ``("sex",
            "salary")`` with the column of the label, of which each combination is split.

    Raises:
        ValueError: When splitting, if there are fewer than ``num_clients * min_partition_size``
            examples, or no such column.

    References:
        Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, 2019,
        https://arxiv.org/abs/1905.12022

        Ezzeldin et al., FairFed: Enabling Group Fairness in Federated Learning, 2023,
        https://arxiv.org/abs/2110.00857

    Examples:
        >>> partitioner = dirichlet(2, alpha=0.5, min_partition_size=1)
        >>> partition = partitioner.split(np.arange(20) % 2, seed=0)
        >>> int(partition.sizes.sum()), partition.unassigned.tolist()
        (20, [])
    """
    as_array("alpha", alpha)  # Not masked.
    checks.positive("alpha", alpha, many=True, at_most=1e9)
    checks.positive_int("min_partition_size", min_partition_size)
    if np.shape(alpha) not in ((), (num_clients,)):
        raise ValueError(
            f"alpha of shape {np.shape(alpha)}: expected a scalar or {num_clients=} elements; "
            "pass one number for all."
        )

    def assign(labels, rng):
        concentration = np.broadcast_to(np.asarray(alpha, float), (num_clients,))
        for _ in range(ATTEMPTS):
            owners = _owners(labels, concentration, rng)
            sizes = np.bincount(owners, minlength=num_clients)
            num_filled = int((sizes < min_partition_size).sum())
            if not num_filled:
                break
        else:
            _fill_up(owners, labels, sizes, min_partition_size, rng)
            sizes = np.bincount(owners, minlength=num_clients)
        # As in flwr-datasets: a client's examples, ordered by class and index, are then shuffled.
        by_class = np.argsort(labels, kind="stable")
        order = by_class[np.argsort(owners[by_class], kind="stable")]
        for client in np.split(order, np.cumsum(sizes)[:-1]):
            rng.shuffle(client)
        return order, sizes, None, num_filled

    name = f"dirichlet({num_clients}, {alpha})"
    by_class = random_partitioner(name, assign, num_clients, min_partition_size, by_class=True)
    if not by:
        return by_class
    by = (by,) if isinstance(by, str) else tuple(by)

    def split(labels, /, seed, **columns):
        values = (column_values(column, columns, len(labels)) for column in by)
        codes = [np.unique(column, return_inverse=True)[1] for column in values]
        _, groups = np.unique(np.stack(codes), axis=1, return_inverse=True)
        return by_class.split(groups, seed)

    return Partitioner(f"dirichlet({num_clients}, {alpha}, by {' x '.join(by)})", split, by=by)


def _owners(labels, concentration, rng) -> np.ndarray:
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        examples = np.flatnonzero(labels == label)
        # Cumulative proportions are rounded down; the last client gets the rest.
        ends = (np.cumsum(rng.dirichlet(concentration)) * len(examples)).astype(int)[:-1]
        owners[examples] = np.searchsorted(ends, np.arange(len(examples)), side="right")
    return owners


# Fifty clients of the digits at alpha 0.1 never all get ten examples, however often proportions are
# drawn. An error would exclude a common setting, and a minimum of one example would change the
# partitions of all others, so the last draw is filled up.
def _fill_up(owners, labels, sizes, min_partition_size, rng) -> None:
    """Moves random examples from large clients to those below the minimum size, in place."""
    missing = np.maximum(min_partition_size - sizes, 0)
    given = parts_by_weight(int(missing.sum()), np.maximum(sizes - min_partition_size, 0))
    shuffled = rng.permutation(len(owners))
    by_owner = shuffled[np.argsort(owners[shuffled], kind="stable")]
    position = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = by_owner[position < np.repeat(given, sizes)]
    receivers = rng.permutation(np.flatnonzero(missing))
    # Class by class, so that the receiving clients have few classes as well.
    moved = moved[np.argsort(labels[moved], kind="stable")]
    owners[moved] = np.repeat(receivers, missing[receivers])
