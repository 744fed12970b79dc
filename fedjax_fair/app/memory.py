"""Lower bounds of the memory of a run, before anything is compiled."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh

from fedjax_fair.app.settings.config import Config
from fedjax_fair.data import FederatedData
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel.collectives import AXIS
from fedjax_fair.parallel.mesh import num_run_groups
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.solvers.sgd import STEPS_PER_BLOCK
from fedjax_fair.training.memory_estimate import array_bytes

__all__ = ["IN_FLIGHT", "check_memory", "format_bytes", "min_memory"]

IN_FLIGHT = "schedule.concurrency: "
"""Start of the subject of the models that clients of asynchronous rounds were sent."""


def min_memory(
    method: BaseRound, config: Config, num_runs: int, data: FederatedData, mesh: Mesh | None
) -> dict[str, int]:
    """Computes lower bounds of the memory of a method on a device, without the data.

    Returns:
        Bytes, by the settings that decide: of the states of the clients of a device, if there are
        any; of the arrays that runs share, such as frozen parameters; of the models that clients
        of asynchronous rounds were sent; of other states, a model and a gradient; of the drawn
        examples of a client and the features of a minibatch.
    """
    state = jax.eval_shape(method.init, jax.random.key(0), data.partition(0))
    runs = -(-num_runs // num_run_groups(mesh))
    # The device with the most clients has at least the mean.
    shards = 1 if mesh is None else mesh.shape.get(AXIS, 1)
    clients = -(-tree_bytes(state.clients) // shards)
    arrays = array_bytes(jax.tree.leaves(method))
    sent = jax.tree.leaves(state.models_in_flight)
    optional = {
        f"data.clients={data.num_clients}: the states of clients in {num_runs} runs": runs
        * clients,
        "model: the arrays that runs share": arrays,
        f"{IN_FLIGHT}{len(sent[0]) if sent else 0} models that clients were sent in {num_runs} "
        "runs": runs * tree_bytes(sent),
    }
    model, solver = tree_bytes(state.variables), config.solver
    train: Any = data.train
    batch_size = solver.batch_size or 0
    if not solver.replacement:
        batch_size = min(batch_size, train.order.shape[-1])
    label = train.labels.nbytes // len(train.labels) + train.order.itemsize
    drawn = (solver.steps or STEPS_PER_BLOCK) * (label + 1)
    features = train.features.nbytes // len(train.features)
    return {subject: size for subject, size in optional.items() if size} | {
        f"training.seeds: {num_runs} runs of a model of {format_bytes(model)}": runs
        * (tree_bytes(state._replace(key=None, clients=())) - tree_bytes(sent))
        + 2 * model,
        f"solver.batch_size={solver.batch_size}, solver.steps={solver.steps}: the minibatches of a "
        "client": batch_size * (drawn + features),
    }


def check_memory(method: str, needed: dict[str, int], limit: int) -> None:
    """Raises ``ValueError`` if a lower bound of the memory of a method exceeds a limit."""
    for subject, size in needed.items():
        if size > limit:
            raise ValueError(
                f"{subject} need {format_bytes(size)} or more for {method}: expected at most the "
                f"{format_bytes(limit)} of memory."
            )


def format_bytes(size: int) -> str:
    """Formats a number of bytes with its unit.

    Examples:
        >>> format_bytes(1_250_000), format_bytes(3_000_000_000_000)
        ('1.2 MB', '3,000.0 GB')
    """
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:,.1f} {name}"
