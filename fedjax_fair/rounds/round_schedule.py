"""What a round asks of its roles if it has a schedule, and what tasks of clients consist of."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedjax_fair.communication import pipeline as communication
from fedjax_fair.communication.differential_privacy import PrivacyMechanism
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Aggregator, Cohort, Context, Faults, Model, Solver, checked_calls
from fedjax_fair.rounds import client_state
from fedjax_fair.rounds.round_state import RoundState, Traffic
from fedjax_fair.schedules import Asynchronous, Schedule
from fedjax_fair.schedules.schedule import Work
from fedjax_fair.utils import checks

__all__ = ["check", "check_tasks", "work_of"]


def check(
    schedule: Schedule | None,
    model: Model,
    solver: Solver,
    aggregator: Aggregator,
    faults: Sequence[Faults],
    privacy: PrivacyMechanism | None,
) -> None:
    """Checks that a schedule and the other settings of a round go together.

    Raises:
        ValueError: If they do not.
    """
    is_asynchronous = isinstance(schedule, Asynchronous)
    if aggregator.needs_schedule and not is_asynchronous:
        raise ValueError(
            f"aggregator: {type(aggregator).__name__} needs schedule=schedules.Asynchronous(...), "
            "which defines staleness."
        )
    if schedule is None:
        return
    checks.instance("schedule", schedule, Schedule, "schedules.Synchronous(times)")
    if solver.num_examples is None:
        raise ValueError(
            f"solver: {type(solver).__name__} defines no num_examples(sizes, max_steps), from "
            "which the schedule computes durations."
        )
    for fault in faults:
        if fault.available is not None or fault.history_length:
            instead = "timing.Online" if fault.available else "schedules.Asynchronous"
            raise ValueError(
                f"faults: {type(fault).__name__} counts rounds; with a schedule use {instead}."
            )
        if is_asynchronous and (fault.responds is not None or fault.instruct is not None):
            raise ValueError(
                f"faults: {type(fault).__name__} is drawn for a cohort that starts together; use "
                "it with schedules.Synchronous, or times and timing.Online."
            )
    if is_asynchronous and privacy is not None:
        raise ValueError(
            "privacy: no guarantee is known for arrivals that depend on the clients' speeds; use "
            "schedules.Synchronous."
        )
    if is_asynchronous and model.bind_state is not None:
        raise ValueError(
            "schedule: clients would train from past models with the present state of "
            f"{type(model).__name__}; use schedules.Synchronous."
        )
    if isinstance(schedule, Asynchronous):
        aggregator.check_buffer(schedule.buffer_size)


def check_tasks(schedule: Schedule, solver: Solver, data: FederatedData, traffic: Traffic) -> None:
    """Checks the durations of tasks; see `BaseRound.check_tasks`.

    Raises:
        ValueError: If a task takes more than 24 days.
    """
    examples = checked_calls.call(solver, "num_examples", jnp.asarray(data.train.sizes), None)
    schedule.times.check_tasks(
        np.reshape(examples, (-1, data.num_clients)).max(axis=0),  # Of all partitions.
        traffic.down,
        traffic.up,
        can_abort=schedule.offline == "abort",
    )


def work_of(
    solver: Solver,
    aggregator: Aggregator,
    settings: communication.Communication,
    state: RoundState,
    cohort: Cohort,
    context: Context,
    *,
    visible: Context,
    shared: PyTree,
    broadcast: dict[str, PyTree],
) -> Work:
    """Returns what the tasks of a cohort consist of, without training.

    Args:
        solver: Trains each participant.
        aggregator: Instructs the participants.
        settings: How updates are communicated.
        state: State of the round.
        cohort: The participants.
        context: Context of the start of the round.
        visible: The part of it that the aggregator sees.
        shared: Arrays of the model that are communicated.
        broadcast: From ``Aggregator.broadcast``.
    """

    def sends():
        prepared = checked_calls.call(aggregator, "prepare", state.aggregator, cohort, visible)
        client = prepared.clients[0]
        participant = client_state.make_client(
            context.model,
            context.examples,
            client,
            context.round,
            instructions=jax.tree.map(lambda leaf: leaf[0], prepared.instructions),
            state=state.clients.read(context.examples, client).state if state.clients else (),
            broadcast=broadcast,
            sensitive_names=context.sensitive_names,
        )
        return checked_calls.solve(solver, state.key, context.variables, participant).sends

    max_steps = cohort.instructions.get("max_steps")
    sizes = context.sizes[cohort.clients]
    examples = checked_calls.call(solver, "num_examples", sizes, max_steps)
    return Work(
        examples=jnp.asarray(examples, jnp.int32),
        bytes_down=tree_bytes(shared) + tree_bytes(broadcast),
        bytes_up=communication.bytes_up(settings, shared) + tree_bytes(jax.eval_shape(sends)),
    )
