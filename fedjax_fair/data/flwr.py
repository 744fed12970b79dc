"""Partitioners of flwr-datasets as they are."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedjax_fair.data.partitioner import Partitioner, join_indices, make_partition

__all__ = ["FlwrPartitioner", "as_partitioner"]

_INDEX = "__index__"  # No column of a data set is called so.


@runtime_checkable
class FlwrPartitioner(Protocol):
    """What the partitioners of flwr-datasets have in common, ``dataset`` and others aside."""

    def load_partition(self, partition_id: int) -> Any:
        """The examples of one client, as a data set."""


def as_partitioner(partition: Partitioner | FlwrPartitioner) -> Partitioner:
    """A partitioner of this package, or one of flwr-datasets made into such.

    The latter is copied and given a data set of the library ``datasets``: the labels are its column
    ``label``, beside columns of one number or word an example by their own names. Its seed is its
    own, not that of a split.

    Args:
        partition: Either kind.

    Returns:
        A partitioner; what of one of flwr-datasets no client gets is dropped.

    Raises:
        ValueError: If it is neither; when splitting, if it finds no column of its name, or gives an
            example to two clients or none to one.
    """
    if isinstance(partition, Partitioner):
        return partition
    if not isinstance(partition, FlwrPartitioner):
        raise ValueError(
            f"partition is a {type(partition).__name__}: expected a Partitioner, such as "
            "data.iid(10), or one of flwr-datasets."
        )

    def split(labels, /, seed, **columns):
        datasets = import_module("datasets")  # Which flwr-datasets needs, and nothing here.
        table = {name: values for name, values in columns.items() if np.ndim(values) == 1}
        table |= {"label": labels, _INDEX: range(len(labels))}
        own: Any = copy.deepcopy(partition)
        try:
            own.dataset = datasets.Dataset.from_dict(table)
            numbers = range(own.num_partitions)
            parts = [np.asarray(own.load_partition(number)[_INDEX], int) for number in numbers]
        except Exception as error:  # What its checks raise is of several kinds.
            names = ", ".join(sorted(table.keys() - {_INDEX}))
            reason = " ".join(str(error).split())
            raise ValueError(
                f"partition: {type(own).__name__} can not split examples with {names} ({reason})."
            ) from error
        if empty := [number for number, part in enumerate(parts) if not part.size]:
            raise ValueError(
                f"partition: {len(empty)} clients of {type(own).__name__} own nothing, first "
                f"{empty[:5]}; expected none."
            )
        return make_partition(*join_indices(parts, len(labels)), len(labels))

    return Partitioner(type(partition).__name__, split)
