"""Whether a run can fit into memory at all, before anything is compiled or written."""

from __future__ import annotations

import os
from typing import Any

import jax

from fedjax_fair.app.config import SolverConfig, TrainingConfig
from fedjax_fair.data import FederatedData
from fedjax_fair.simulate import RoundState
from fedjax_fair.solvers.sgd import PLANNED

__all__ = ["require_memory", "total_memory"]


def require_memory(
    name: str,
    state: RoundState,
    solver: SolverConfig,
    training: TrainingConfig,
    data: FederatedData,
) -> None:
    """Refuses a run that is larger than all memory there is.

    A lower bound: the states of all seeds with the model that a client trains and its gradient, or
    the minibatches that it draws in one go and the features of one of them. What it lets pass may
    still be too large.

    Args:
        name: The method.
        state: The state of one of its runs, or its shapes.
        solver: How its clients train.
        training: How many runs there are.
        data: The federation.

    Raises:
        ValueError: If it does not fit; it names the setting that decides, and both sizes.
    """
    limit = total_memory()
    variables = _bytes(state.variables)
    models = len(training.seeds) * _bytes(state._replace(key=None)) + 2 * variables
    if models > limit:
        raise ValueError(
            f"training.seeds: {len(training.seeds)} runs of {name}, whose model takes "
            f"{_readable(variables)}, need {_readable(models)} or more: expected at most the "
            f"{_readable(limit)} of memory."
        )
    train: Any = data.train
    lanes = solver.batch_size or 0
    if not solver.replacement:
        lanes = min(lanes, train.order.shape[-1])
    of_label = train.labels.nbytes // len(train.labels) + train.order.itemsize
    planned = (solver.steps or PLANNED) * (of_label + 1)
    batch = lanes * (planned + train.features.nbytes // len(train.features))
    if batch > limit:
        raise ValueError(
            f"solver.batch_size={solver.batch_size}, solver.steps={solver.steps}: the minibatches "
            f"of a client of {name} need {_readable(batch)} or more: expected at most the "
            f"{_readable(limit)} of memory."
        )


def total_memory() -> int:
    """Bytes of the first device, or of the machine where that is a processor."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None:
        return stats["bytes_limit"]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _readable(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
