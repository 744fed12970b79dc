"""Lower bounds of the memory of a run, before anything is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedjax_fair.app.config import Config, SolverConfig
from fedjax_fair.data import FederatedData
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.simulate import RoundState
from fedjax_fair.solvers.sgd import STEPS_PER_BLOCK

__all__ = [
    "MemoryEstimate",
    "check_memory",
    "format_bytes",
    "min_memory",
]


class MemoryEstimate(NamedTuple):
    """Lower bounds of the memory of a method on a device, in bytes.

    Attributes:
        model: One model.
        runs: States of all runs, and the model and gradient of a client.
        minibatches: Drawn examples of a client, and the features of one minibatch.
    """

    model: int
    runs: int
    minibatches: int


def min_memory(
    state: RoundState, solver: SolverConfig, runs: int, data: FederatedData
) -> MemoryEstimate:
    """Computes lower bounds of the memory of a method, without the data.

    Args:
        state: State of one run, or its shapes.
        solver: Settings of local training.
        runs: Number of runs on a device.
        data: The federated dataset.
    """
    model = tree_bytes(state.variables)
    states = runs * tree_bytes(state._replace(key=None)) + 2 * model
    train: Any = data.train
    batch_size = solver.batch_size or 0
    if not solver.replacement:
        batch_size = min(batch_size, train.order.shape[-1])
    label = train.labels.nbytes // len(train.labels) + train.order.itemsize
    drawn = (solver.steps or STEPS_PER_BLOCK) * (label + 1)
    features = train.features.nbytes // len(train.features)
    return MemoryEstimate(model, states, batch_size * (drawn + features))


def check_memory(name: str, estimate: MemoryEstimate, config: Config, limit: int) -> None:
    """Checks that lower bounds do not exceed a limit in bytes.

    Raises:
        ValueError: If they do; names the settings that decide.
    """
    expected = f"expected at most the {format_bytes(limit)} of memory."
    if estimate.runs > limit:
        raise ValueError(
            f"training.seeds: {len(config.training.seeds)} runs of {name}, whose model takes "
            f"{format_bytes(estimate.model)}, need {format_bytes(estimate.runs)} or more: "
            f"{expected}"
        )
    if estimate.minibatches > limit:
        solver = config.solver
        raise ValueError(
            f"solver.batch_size={solver.batch_size}, solver.steps={solver.steps}: the minibatches "
            f"of a client of {name} need {format_bytes(estimate.minibatches)} or more: {expected}"
        )


def format_bytes(size: int) -> str:
    """Formats a number of bytes with its unit.

    Examples:
        >>> format_bytes(1_250_000), format_bytes(3_000_000_000_000)
        ('1.2 MB', '3,000.0 GB')
    """
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:,.1f} {name}"
