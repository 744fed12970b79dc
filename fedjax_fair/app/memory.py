"""Whether a run can fit into memory at all, before anything is compiled or written."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from fedjax_fair.app.config import SolverConfig, TrainingConfig
from fedjax_fair.data import FederatedData
from fedjax_fair.simulate import RoundState
from fedjax_fair.solvers.sgd import PLANNED

__all__ = [
    "MemoryEstimate",
    "check_memory",
    "format_bytes",
    "min_memory",
    "num_bytes",
    "total_memory",
]


class MemoryEstimate(NamedTuple):
    """Bytes that a method needs of a device at least.

    Attributes:
        model: One model.
        runs: The states of its runs, with the model that a client trains and its gradient.
        minibatches: What a client draws in one go, and the features of one minibatch.
    """

    model: int
    runs: int
    minibatches: int


def min_memory(
    state: RoundState, solver: SolverConfig, runs: int, data: FederatedData
) -> MemoryEstimate:
    """What a method needs of a device at least, besides the data.

    Args:
        state: The state of one of its runs, or its shapes.
        solver: How its clients train.
        runs: How many runs a device makes.
        data: The federation.
    """
    model = num_bytes(state.variables)
    states = runs * num_bytes(state._replace(key=None)) + 2 * model
    train: Any = data.train
    num_positions = solver.batch_size or 0
    if not solver.replacement:
        num_positions = min(num_positions, train.order.shape[-1])
    of_label = train.labels.nbytes // len(train.labels) + train.order.itemsize
    planned = (solver.steps or PLANNED) * (of_label + 1)
    return MemoryEstimate(
        model, states, num_positions * (planned + train.features.nbytes // len(train.features))
    )


def check_memory(
    name: str, least: MemoryEstimate, solver: SolverConfig, training: TrainingConfig, limit: int
) -> None:
    """Refuses a method that is larger than all memory there is.

    What it lets pass may still be too large.

    Args:
        name: The method.
        least: What it needs.
        solver: How its clients train.
        training: How many runs there are.
        limit: Bytes of all memory.

    Raises:
        ValueError: If it does not fit; it names the setting that decides, and both sizes.
    """
    if least.runs > limit:
        raise ValueError(
            f"training.seeds: {len(training.seeds)} runs of {name}, whose model takes "
            f"{format_bytes(least.model)}, need {format_bytes(least.runs)} or more: expected at most the "
            f"{format_bytes(limit)} of memory."
        )
    if least.minibatches > limit:
        raise ValueError(
            f"solver.batch_size={solver.batch_size}, solver.steps={solver.steps}: the minibatches "
            f"of a client of {name} need {format_bytes(least.minibatches)} or more: expected at most "
            f"the {format_bytes(limit)} of memory."
        )


def total_memory() -> int:
    """Bytes of the first device, or of the machine where that is a processor."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None:
        return stats["bytes_limit"]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def num_bytes(tree: PyTree) -> int:
    """Bytes of all arrays in a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def format_bytes(size: int) -> str:
    """A number of bytes with its unit.

    Examples:
        >>> format_bytes(1_250_000), format_bytes(3_000_000_000_000)
        ('1.2 MB', '3,000.0 GB')
    """
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:,.1f} {name}"
