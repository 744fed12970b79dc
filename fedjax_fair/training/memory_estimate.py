"""Memory of devices, and the memory that a batch of runs needs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from fedjax_fair.numerics.trees import tree_bytes

__all__ = [
    "Memory",
    "array_bytes",
    "device_bytes",
    "free_memory",
    "total_memory",
    "transient_bytes",
]


class Memory(NamedTuple):
    """Bytes of one device that a batch of runs needs.

    ``temporaries`` include outputs. ``model`` are the arrays of the model that runs share, such as
    frozen parameters; ``states`` have the trained ones, and ``in_flight`` those that the clients of
    asynchronous rounds were sent.
    """

    data: int
    states: int
    temporaries: int
    records: int = 0
    model: int = 0
    in_flight: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        return sum(self)

    @property
    def shared(self) -> int:
        """The bytes that do not depend on the number of runs."""
        return self.data + self.model

    def by_purpose(self) -> dict[str, int]:
        """Returns the fields that are not 0, by name."""
        return {name.replace("_", " "): size for name, size in self._asdict().items() if size}

    def max_runs(self, runs: int, limit: float) -> int:
        """Returns how many runs fit into ``limit`` bytes if ``runs`` need this much."""
        return max(0, int((limit - self.shared) * runs / (self.total - self.shared)))


def array_bytes(leaves: Iterable[Any]) -> int:
    """Returns the bytes of the distinct arrays among some leaves, without scalars."""
    return tree_bytes(list({id(leaf): leaf for leaf in leaves if np.ndim(leaf)}.values()))


def device_bytes(tree: PyTree) -> int:
    """Returns the bytes of the distinct arrays of a tree on one device, by their shardings."""
    leaves: Any = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}.values()
    return tree_bytes(
        [jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in leaves]
    )


def transient_bytes(executable: Any) -> int:
    """Returns the bytes that an executable needs in addition to its arguments."""
    memory = executable.memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes


def total_memory() -> int:
    """Returns the bytes of the first device, or of the machine if that is a CPU."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None:
        return stats["bytes_limit"]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_memory() -> int:
    """Returns nine tenths of the free bytes of an accelerator, or half on a CPU."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None:
        return int(0.9 * (stats["bytes_limit"] - stats["bytes_in_use"]))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
