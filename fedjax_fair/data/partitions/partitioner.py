"""Types of partitions and partitioners, and functions that partitioners share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedjax_fair.data.conversion import as_array, check_range, find_missing
from fedjax_fair.utils import checks
from fedjax_fair.utils.warning import warn

__all__ = [
    "BiasRequest",
    "Partition",
    "Partitioner",
    "check_classes",
    "column_values",
    "equal_parts",
    "generator",
    "index_arrays",
    "join_indices",
    "make_partition",
    "parts_by_weight",
    "random_partitioner",
    "shuffled_by_class",
    "split_off",
]


class BiasRequest(NamedTuple):
    """Requested bias of each client (`fedjax_fair.data.biased`).

    Attributes:
        by: Columns whose combinations of values are the groups.
        values: Values of each column, ascending.
        cells: Share of each group and label, ``[clients, groups, 2]``.
        kind: Attribute or value by which each client is biased, ``[clients]``, or None.
    """

    by: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    cells: Float[np.ndarray, "clients groups 2"]
    kind: Int[np.ndarray, " clients"] | None = None

    def of_clients(self, clients: Int[np.ndarray, " selected"]) -> BiasRequest:
        """Returns the request of some clients."""
        kind = None if self.kind is None else self.kind[clients]
        return self._replace(cells=self.cells[clients], kind=kind)


class Partition(NamedTuple):
    """Assignment of examples to clients.

    Attributes:
        order: Indices into the examples, grouped by client, ``[assigned]``, int32.
        sizes: Number of examples of each client, ``[clients]``, int32.
        groups: Ground-truth group of each client, ``[clients]``, int32, or None.
        unassigned: Indices of the examples of no client, ascending, int32.
        client_names: Name of each client, or None.
        num_filled: Number of clients that got examples only to reach a minimum size.
        bias: Requested bias of each client, or None.
    """

    order: Int[np.ndarray, " assigned"]
    sizes: Int[np.ndarray, " clients"]
    groups: Int[np.ndarray, " clients"] | None
    unassigned: Int[np.ndarray, " unassigned"]
    client_names: tuple[str, ...] | None = None
    num_filled: int = 0
    bias: BiasRequest | None = None

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
        column: Column that names the owner of training and test examples; None for `split_test`.
        label_skew_only: Whether a client's examples of a class are random ones of that class.
        by: Columns whose values are split instead of classes; test examples are split by them too.
    """

    name: str
    split: Callable[..., Partition]
    column: str | None = None
    label_skew_only: bool = False
    by: tuple[str, ...] = ()


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Returns the generator of a non-negative seed; its streams are independent."""
    checks.non_negative_int("seed", seed)
    return np.random.default_rng((seed, *stream) if stream else seed)


def column_values(name: str, columns: Mapping[str, Any], total: int) -> np.ndarray:
    """Returns a column of ``total`` values.

    Raises:
        ValueError: If there is no such column, or it has another length or missing values.
    """
    if name not in columns:
        raise ValueError(f"column={name!r}: expected one of the columns {sorted(columns)}.")
    values = as_array(f"column {name!r}", columns[name])
    if values.shape != (total,):
        raise ValueError(
            f"column={name!r} of shape {values.shape}: expected one value for each of {total} "
            "examples; pass the column of these examples."
        )
    if values.dtype.kind in "fO" and (num_missing := find_missing(values).sum()):
        raise ValueError(
            f"column={name!r}: {num_missing:,} values are missing; expected none, "
            "so leave these examples out."
        )
    return values


def make_partition(
    order: Any, sizes: Any, total: int, groups: Any = None, num_filled: int = 0
) -> Partition:
    """Makes a partition of ``total`` examples, of which ``order`` lists the assigned ones."""
    is_free = np.ones(total, bool)
    is_free[order] = False
    order, sizes = np.asarray(order, np.int32), np.asarray(sizes, np.int32)
    groups = None if groups is None else np.asarray(groups, np.int32)
    unassigned = np.flatnonzero(is_free).astype(np.int32)
    return Partition(order, sizes, groups, unassigned, num_filled=num_filled)


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


def check_classes(name: str, labels: np.ndarray) -> None:
    """Raises ``ValueError`` unless there is one class for each example."""
    if labels.ndim != 1:
        raise ValueError(
            f"{name} of shape {labels.shape}: expected one class for each example, [examples]; for "
            "sequences and targets use iid, quantity_skew, from_indices or by_column."
        )


def random_partitioner(
    name: str,
    assign: Callable[..., tuple[Any, ...]],
    num_clients: int,
    per_client: int = 1,
    *,
    by_class: bool = False,
) -> Partitioner:
    """Makes a partitioner of ``assign(labels, rng)``.

    It returns the order, the sizes and optionally the groups and the number of filled clients, of
    which more than a tenth are a warning. Splitting fewer than ``per_client`` examples per client
    is an error, and with ``by_class`` labels that are not one class for each example.
    """
    checks.positive_int("num_clients", num_clients)

    def split(labels, /, seed, **columns):
        labels = as_array("labels", labels)
        if by_class:
            check_classes(f"labels of {name}", labels)
        if len(labels) < num_clients * per_client:
            raise ValueError(
                f"{len(labels)} examples for {num_clients=}: expected at least "
                f"{num_clients * per_client}, {per_client} per client; use fewer clients."
            )
        order, sizes, *rest = assign(labels, generator(seed))
        partition = make_partition(order, sizes, len(labels), *rest)
        if 10 * partition.num_filled > num_clients:
            warn(
                f"{name}: {partition.num_filled:,} of {num_clients:,} clients got examples only to "
                f"reach the minimum size of {per_client}, so that the partition is not the one "
                "named; use fewer clients, or a smaller skew or minimum (min_partition_size)."
            )
        return partition

    return Partitioner(name, split, label_skew_only=True)


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


def index_arrays(indices: Any) -> list[np.ndarray]:
    """Converts the indices of each client's examples, in a list, to arrays."""
    try:
        arrays = [as_array("client indices", array) for array in indices]
    except TypeError:
        raise ValueError(
            f"client indices are {indices!r}: expected the indices of each client's examples, such "
            "as [[0, 1], [2]]."
        ) from None
    # An empty list is an array of floats.
    if any(array.ndim != 1 or (array.size and array.dtype.kind not in "iu") for array in arrays):
        raise ValueError(
            "client indices: expected a 1-D array of integers for each client; the owner of each "
            "example is the argument clients of from_arrays."
        )
    return arrays


def join_indices(arrays: Sequence[np.ndarray], total: int) -> tuple[np.ndarray, np.ndarray]:
    """Joins indices in ``[0, total)``, one array per client, to ``order`` and ``sizes``."""
    for client, array in enumerate(arrays):
        check_range(f"indices of client {client}", array, total)
    order = np.concatenate([np.zeros(0, np.int64), *(array.astype(np.int64) for array in arrays)])
    repeated = np.flatnonzero(np.bincount(order, minlength=1) > 1)
    if repeated.size:
        raise ValueError(
            f"client indices: {repeated.size} examples have two clients, first {repeated[0]}; "
            "expected one for each, so remove it from the other."
        )
    return order, np.array([array.size for array in arrays])
