"""Conditions on the roles of a round with a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from fedjax_fair.communication.differential_privacy import PrivacyMechanism
from fedjax_fair.roles import Aggregator, Faults, Model, Solver
from fedjax_fair.schedules import Asynchronous, Schedule
from fedjax_fair.utils import checks

__all__ = ["check"]


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
