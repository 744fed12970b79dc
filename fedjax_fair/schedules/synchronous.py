"""Rounds that wait for their cohort."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from fedjax_fair.roles import Cohort, Number, Timing, setting
from fedjax_fair.schedules.schedule import (
    Arrived,
    RoundTiming,
    Schedule,
    Work,
    add_time,
    no_time,
)
from fedjax_fair.timing import Clock
from fedjax_fair.timing.clock import NEVER
from fedjax_fair.utils import checks

__all__ = ["Progress", "Synchronous"]

_MAX_SECONDS = NEVER // 1000


class Progress(NamedTuple):
    """State of a synchronous schedule.

    Attributes:
        clock: Virtual time.
        num_tasks: Tasks so far.
    """

    clock: Clock
    num_tasks: Int[Array, ""]


class Synchronous(Schedule):
    """All selected clients start together, and the round ends with its last result.

    Clients that are offline when the round starts have no task. If all are, it starts when the
    first of them is back. A round ends with the last result that counts; if fewer than
    ``num_responses`` come by the deadline, with the deadline, and without one, when all tasks have
    ended.

    Args:
        times: How long clients take for a task, and when they are online.
        num_responses: Results that a round waits for, the first ones; by default those of the whole
            cohort. A selector of 1.3 times as many clients is the over-selection of Bonawitz et al.
        deadline: Seconds after which results do not count; by default there is none.
        min_responses: With fewer results the model stays as it is.
        offline: What becomes of the task of a client that goes offline: ``"abort"`` ends it without
            a result, ``"pause"`` continues it when the client is back, and ``"ignore"`` asks only
            at the start.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Bonawitz et al., *Towards Federated Learning at Scale: System Design*, 2019,
        https://arxiv.org/abs/1902.01046

    Examples:
        >>> import fedjax_fair as ff
        >>> times = ff.timing.lognormal(0.05, 1.0, num_clients=100)
        >>> over_selected = Synchronous(times, num_responses=10, deadline=60)
    """

    _: KW_ONLY
    num_responses: int | None = setting(checks.positive_int, default=None)
    deadline: Number | None = setting(checks.positive, default=None)
    min_responses: int = setting(checks.positive_int, default=1)

    @property
    def has_late_results(self) -> bool:
        """True if results may not count."""
        return not (
            self.num_responses is None
            and self.deadline is None
            and self.min_responses == 1
            and self.times.online is None
        )

    def available(self, state: Progress) -> Bool[Array, " clients"] | None:
        """Returns the mask of clients that are online; None for all."""
        return self.online(state.clock)

    def init(self, sent: PyTree, cohort: Cohort) -> Progress:
        """Returns the state at time 0; see `Schedule.init`."""
        (cohort_size,) = cohort.clients.shape
        for name in ("num_responses", "min_responses"):
            if (value := getattr(self, name)) is not None and value > cohort_size:
                raise ValueError(
                    f"{name}={value}: expected at most {cohort_size}, the clients of a round; "
                    "select more clients."
                )
        return Progress(no_time(), jnp.zeros((), jnp.int32))

    def respond(
        self,
        key: Key[Array, ""],
        state: Progress,
        cohort: Cohort,
        work: Work,
    ) -> Arrived:
        """Returns which results arrive, and when.

        Args:
            key: Key of the durations.
            state: The state.
            cohort: The participants, with the mask of expected responses.
            work: What they do.
        """
        clients, size = cohort.clients, cohort.clients.shape[0]
        waits = self.waits(clients, state.clock)
        start = state.clock.advance(jnp.min(waits))
        starts = self.is_online(clients, start)
        numbers = state.num_tasks + jnp.arange(size, dtype=jnp.int32)
        ends, complete = self.run_tasks(key, numbers, clients, work, start)
        arrives = starts & complete
        if cohort.responded is not None:
            arrives &= cohort.responded
        deadline = NEVER if self.deadline is None else _milliseconds(self.deadline)
        num_responses = size if self.num_responses is None else self.num_responses
        rank = jnp.argsort(jnp.argsort(jnp.where(arrives, ends, NEVER)))  # Both are stable.
        counts = arrives & (rank < num_responses) & (ends <= deadline)
        num_counted = jnp.sum(counts, dtype=jnp.int32)
        last = jnp.max(jnp.where(counts, ends, 0))
        otherwise = jnp.max(jnp.where(starts, ends, 0)) if self.deadline is None else deadline
        elapsed = jnp.where(num_counted == num_responses, last, otherwise)
        timing = Timing(staleness=jnp.zeros(size, jnp.int32), milliseconds=ends)
        counts &= num_counted >= self.min_responses
        classes = self.classes_of(clients)
        num_classes = len(self.times.class_names)
        worked = jnp.where(starts, jnp.minimum(ends, elapsed), 0)
        lost = jnp.where(counts, 0, worked)
        clock = start.advance(elapsed)
        times = RoundTiming(
            clock=clock,
            started=starts,
            staleness=timing.staleness,
            dispatched=Clock(*(jnp.broadcast_to(part, size) for part in start)),
            arrived=start.advance(jnp.where(arrives, ends, 0)),
            spent=add_time(no_time(num_classes), classes, worked),
            lost=add_time(no_time(num_classes), classes, lost),
            num_discarded=jnp.zeros((), jnp.int32),
        )
        has_misses = self.has_late_results or cohort.responded is not None
        cohort = cohort._replace(responded=counts if has_misses else None, timing=timing)
        return Arrived(cohort, None, times, Progress(clock, state.num_tasks + size))


def _milliseconds(seconds: Number) -> Int[Array, ""]:
    bounded = jnp.minimum(jnp.asarray(seconds, jnp.float32), _MAX_SECONDS)
    return jnp.maximum(jnp.round(1000 * bounded), 1).astype(jnp.int32)
