"""Adapter for the partitioners of flwr-datasets."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedjax_fair.data.conversion import one_line
from fedjax_fair.data.partitions.partitioner import Partitioner, join_indices, make_partition

__all__ = ["FlwrPartitioner", "as_partitioner"]

_INDEX = "__index__"  # No data set has a column of this name.


@runtime_checkable
class FlwrPartitioner(Protocol):
    """Interface of the partitioners of flwr-datasets."""

    def load_partition(self, partition_id: int) -> Any:
        """Returns the examples of one client as a data set."""


def as_partitioner(
    partition: Partitioner | FlwrPartitioner, argument: str = "partition"
) -> Partitioner:
    """Converts a partitioner of flwr-datasets; returns one of this package unchanged.

    Its data set has the column ``label`` and all scalar columns. The seed is that of the
    partitioner, not of the split.

    Raises:
        ValueError: If it is no partitioner; when splitting, if it needs a column that is missing,
            gives an example to two clients or none to one.
    """
    if isinstance(partition, Partitioner):
        return partition
    if not isinstance(partition, FlwrPartitioner):
        raise ValueError(
            f"{argument} is a {type(partition).__name__}: expected a Partitioner, such as "
            "data.iid(10), or one of flwr-datasets."
        )
    name = type(partition).__name__

    def split(labels, /, seed, **columns):
        datasets = import_module("datasets")  # Installed with flwr-datasets.
        table = {name: values for name, values in columns.items() if np.ndim(values) == 1}
        table |= {"label": labels, _INDEX: range(len(labels))}
        fresh: Any = copy.deepcopy(partition)
        try:
            fresh.dataset = datasets.Dataset.from_dict(table)
            clients = range(fresh.num_partitions)
            parts = [np.asarray(fresh.load_partition(client)[_INDEX], int) for client in clients]
        except Exception as error:  # Its checks raise errors of many types.
            available = ", ".join(sorted(table.keys() - {_INDEX}))
            raise ValueError(
                f"partition: {name} cannot split examples with the columns {available} "
                f"({one_line(error)}); name one of them in the partitioner."
            ) from error
        if empty := [client for client, part in enumerate(parts) if not part.size]:
            raise ValueError(
                f"partition: {len(empty)} clients of {name} have no examples, first {empty[:5]}; "
                "expected none, so use fewer partitions."
            )
        return make_partition(*join_indices(parts, len(labels)), len(labels))

    return Partitioner(name, split)
