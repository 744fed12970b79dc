"""Rounds that do not wait: a client trains as soon as a slot is free.

Between two updates the model is constant, and durations do not depend on models. A round is
therefore one update: first the events, which are scalars, then the training of all results that
have arrived, as a cohort.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from fedjax_fair.roles import Cohort, Timing, setting
from fedjax_fair.schedules.schedule import (
    Arrived,
    Models,
    RoundTiming,
    Schedule,
    Work,
    no_time,
)
from fedjax_fair.timing import Clock
from fedjax_fair.timing.clock import NEVER
from fedjax_fair.utils import checks

__all__ = ["Asynchronous", "InFlight"]

_EVENTS_PER_RESULT = 100
"""Bound of the tasks of a round that have no result, so that a round ends."""

_NEARLY_ONE = 1e-6


class Tasks(NamedTuple):
    """Tasks in their slots, ``[slots]``.

    Attributes:
        client: The client.
        is_busy: Whether there is a task in the slot.
        remaining: Milliseconds until it ends.
        duration: Milliseconds from start to end.
        is_complete: Whether it ends with a result.
        number: Its number, in the order of dispatch.
        version: Round of the model that the client was sent.
        row: Row of this model.
        weight: Weight from the selector.
        instructions: Instructions from the selector.
    """

    client: Int[Array, " slots"]
    is_busy: Bool[Array, " slots"]
    remaining: Int[Array, " slots"]
    duration: Int[Array, " slots"]
    is_complete: Bool[Array, " slots"]
    number: Int[Array, " slots"]
    version: Int[Array, " slots"]
    row: Int[Array, " slots"]
    weight: Float[Array, " slots"]
    instructions: dict[str, PyTree]


class InFlight(NamedTuple):
    """State of an asynchronous schedule.

    Attributes:
        clock: Virtual time.
        num_tasks: Tasks so far.
        tasks: Tasks that have not ended.
        models: What clients were sent, ``[rows, ...]``.
        current: Row of the present model.
    """

    clock: Clock
    num_tasks: Int[Array, ""]
    tasks: Tasks
    models: PyTree
    current: Int[Array, ""]


class Asynchronous(Schedule):
    """Each client starts when a slot is free, and a full buffer of results updates the model.

    A round is one update. The cohort size of the selector is the number of slots, so of clients
    that train at the same time. At equal times results arrive in the order of their dispatch, then
    a full buffer updates the model, then free slots are filled with the first idle clients of the
    selector's cohort. Results of aborted tasks, and those older than ``max_staleness``, take no
    place in the buffer.

    Args:
        times: How long clients take for a task, and when they are online.
        buffer_size: Results of an update.
        max_staleness: Largest number >= 0 of updates between the model that a client was sent and
            the one that its result updates; by default there is none.
        offline: What becomes of the task of a client that goes offline: ``"abort"`` ends it without
            a result, ``"pause"`` continues it when the client is back, and ``"ignore"`` asks only
            at the start.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Nguyen et al., *Federated Learning with Buffered Asynchronous Aggregation*, 2022,
        https://arxiv.org/abs/2106.06639

    Examples:
        >>> import fedjax_fair as ff
        >>> times = ff.timing.lognormal(0.05, 1.0, num_clients=100)
        >>> schedule = Asynchronous(times, buffer_size=5)
    """

    _: KW_ONLY
    buffer_size: int = setting(checks.positive_int)
    max_staleness: int | None = setting(checks.non_negative_int, default=None)

    def init(self, sent: PyTree, cohort: Cohort) -> InFlight:
        """Returns free slots at time 0; see `Schedule.init`."""
        (num_slots,) = cohort.clients.shape
        if self.buffer_size > num_slots:
            raise ValueError(
                f"buffer_size={self.buffer_size}: expected at most {num_slots}, the cohort size of "
                "the selector, which is the number of clients that train at the same time."
            )
        zeros, zero = jnp.zeros(num_slots, jnp.int32), jnp.zeros((), jnp.int32)
        rows = num_slots if self.max_staleness is None else min(num_slots, self.max_staleness + 1)

        def empty(leaf, *leading):
            return jnp.zeros((*leading, *leaf.shape), leaf.dtype)

        return InFlight(
            clock=no_time(),
            num_tasks=zero,
            tasks=Tasks(
                client=zeros,
                is_busy=zeros > 0,
                remaining=zeros,
                duration=zeros,
                is_complete=zeros > 0,
                number=zeros,
                version=zeros,
                row=zeros,
                weight=jnp.zeros(num_slots),
                instructions=jax.tree.map(empty, cohort.instructions),
            ),
            models=jax.tree.map(lambda leaf: empty(leaf, rows), sent),
            current=zero,
        )

    def available(self, state: InFlight) -> Bool[Array, " clients"]:
        """Returns the mask of clients that have no task and are online."""
        busy = _busy_clients(state.tasks, self.num_clients)
        idle = jnp.ones(self.num_clients, bool).at[busy].set(False, mode="drop")
        online = self.online(state.clock)
        return idle if online is None else idle & online

    def unavailable(self, state: InFlight) -> Int[Array, " slots"] | None:
        """Returns the clients that have a task, if all others are online."""
        return _busy_clients(state.tasks, self.num_clients) if self.times.online is None else None

    def add_model(self, state: InFlight, sent: PyTree, round: Int[Array, ""]) -> InFlight:
        """Stores what clients are sent in this round in a row that no task needs."""
        tasks = state.tasks
        is_needed = tasks.is_busy
        if self.max_staleness is not None:
            is_needed &= round - tasks.version <= self.max_staleness
        rows = jax.tree.leaves(state.models)[0].shape[0]
        free = jnp.argmin(jnp.zeros(rows, bool).at[tasks.row].max(is_needed)).astype(jnp.int32)
        models = jax.tree.map(lambda models, new: models.at[free].set(new), state.models, sent)
        return state._replace(models=models, current=free)

    def arrive(
        self,
        key: Key[Array, ""],
        state: InFlight,
        candidates: Cohort,
        work: Work,
        round: Int[Array, ""],
    ) -> Arrived:
        """Returns the results of the next update.

        Args:
            key: Key of the durations.
            state: The state.
            candidates: Clients that may start, in this order.
            work: What they do.
            round: The present round.
        """
        size, dispatch = self.buffer_size, _Dispatch(key, candidates, work, round, state.current)
        max_events = _EVENTS_PER_RESULT * size + candidates.clients.shape[0]

        def is_unfinished(events):
            return (events.num_results < size) & (events.count < max_events)

        start = _Events.start(state, candidates, size, self.num_clients, self.times.num_classes)
        events = jax.lax.while_loop(is_unfinished, partial(self._next_event, dispatch), start)
        results, slots = events.results, jnp.arange(size, dtype=jnp.int32)
        counts = slots < events.num_results
        staleness = jnp.where(counts, round - results.version, 0)
        always = self.times.online is None and self.max_staleness is None
        cohort = Cohort(
            clients=results.client,
            weights=_normalized(results.weight, counts),
            instructions=results.instructions,
            responded=None if always else counts,
            timing=Timing(staleness, results.duration),
        )
        arrived = events.arrived
        times = RoundTiming(
            clock=events.clock,
            started=counts,
            staleness=staleness,
            dispatched=arrived.advance(-results.duration),
            arrived=arrived,
            spent=events.spent,
            lost=events.lost,
            num_discarded=events.num_discarded,
        )
        models = Models(state.models, results.row, jnp.where(counts, results.version, round))
        new = state._replace(clock=events.clock, num_tasks=events.num_tasks, tasks=events.tasks)
        return Arrived(cohort, models, times, new)

    def _next_event(self, dispatch: _Dispatch, events: _Events) -> _Events:
        """Starts a task, and moves the clock to the next end of one if no other can start."""
        # Operations on whole arrays take less time here than sorting and scattering.
        ends_now = jnp.any(events.tasks.is_busy & (events.tasks.remaining == 0))
        events, can_start = self._start_task(dispatch, events, ~ends_now)
        tasks, candidates = events.tasks, dispatch.candidates.clients
        remaining = jnp.where(tasks.is_busy, tasks.remaining, NEVER)
        elapsed, is_end = jnp.min(remaining), ~can_start
        if self.times.online is not None:
            waits = jnp.where(events.is_idle, self.waits(candidates, events.clock), NEVER)
            wakes = jnp.where(jnp.all(tasks.is_busy), NEVER, jnp.min(waits))
            is_end &= elapsed <= wakes
            elapsed = jnp.minimum(elapsed, wakes)
        slot = jnp.argmin(jnp.where(remaining == elapsed, tasks.number, NEVER))
        elapsed = jnp.where(can_start, 0, elapsed)
        clock, ended = events.clock.advance(elapsed), jax.tree.map(lambda leaf: leaf[slot], tasks)
        is_result = is_end & ended.is_complete
        if self.max_staleness is not None:
            is_result &= dispatch.round - ended.version <= self.max_staleness
        is_class = jnp.arange(self.times.num_classes) == self.classes_of(ended.client)
        place = jnp.where(is_result, events.num_results, self.buffer_size)
        put = partial(_put, jnp.arange(self.buffer_size) == place)
        return events._replace(
            tasks=tasks._replace(
                is_busy=tasks.is_busy & ~(is_end & (jnp.arange(tasks.is_busy.size) == slot)),
                remaining=jnp.where(tasks.is_busy, tasks.remaining - elapsed, 0),
            ),
            clock=clock,
            is_idle=events.is_idle | (events.is_first & is_end & (candidates == ended.client)),
            results=jax.tree.map(put, ended, events.results),
            arrived=jax.tree.map(put, clock, events.arrived),
            num_results=events.num_results + is_result.astype(jnp.int32),
            num_discarded=events.num_discarded + (is_end & ~is_result).astype(jnp.int32),
            count=events.count + (~can_start).astype(jnp.int32),
            spent=_add_where(is_end & is_class, ended.duration, events.spent),
            lost=_add_where(is_end & ~is_result & is_class, ended.duration, events.lost),
        )

    def _start_task(
        self, dispatch: _Dispatch, events: _Events, is_allowed: Bool[Array, ""]
    ) -> tuple[_Events, Bool[Array, ""]]:
        """Fills the first free slot, and returns whether another one can be filled.

        The client is the first idle candidate of those with the fewest tasks of this round.
        """
        tasks, (key, candidates, work, round, row) = events.tasks, dispatch
        clients = candidates.clients
        is_ready = events.is_idle & self.is_online(clients, events.clock)
        choice = jnp.argmin(jnp.where(is_ready, events.uses, NEVER))
        is_slot = jnp.arange(tasks.is_busy.size) == jnp.argmin(tasks.is_busy)
        is_slot &= is_allowed & is_ready[choice] & ~tasks.is_busy
        starts = jnp.any(is_slot)
        one = jnp.expand_dims(choice, 0)
        ends, complete = self.run_tasks(
            key,
            jnp.expand_dims(events.num_tasks, 0),
            clients[one],
            work._replace(examples=work.examples[one]),
            events.clock,
        )
        started = Tasks(
            client=clients[choice],
            is_busy=starts,
            remaining=ends[0],
            duration=ends[0],
            is_complete=complete[0],
            number=events.num_tasks,
            version=round,
            row=row,
            weight=candidates.weights[choice],
            instructions=jax.tree.map(lambda leaf: leaf[choice], candidates.instructions),
        )
        tasks = jax.tree.map(partial(_put, is_slot), started, tasks)
        is_chosen = starts & (jnp.arange(clients.size) == choice)
        can_start = is_allowed & jnp.any(is_ready & ~is_chosen) & ~jnp.all(tasks.is_busy)
        started_events = events._replace(
            tasks=tasks,
            num_tasks=events.num_tasks + starts.astype(jnp.int32),
            is_idle=events.is_idle & ~is_chosen,
            uses=events.uses + is_chosen.astype(jnp.int32),
        )
        return started_events, can_start


class _Dispatch(NamedTuple):
    """The parts of the tasks of a round, which do not change during the round.

    Attributes:
        key: Key of the durations.
        candidates: Clients that may start, in this order.
        work: What they do.
        round: The present round.
        row: Row of the present model.
    """

    key: Key[Array, ""]
    candidates: Cohort
    work: Work
    round: Int[Array, ""]
    row: Int[Array, ""]


class _Events(NamedTuple):
    """The events of a round so far.

    Attributes:
        tasks: Tasks in their slots.
        clock: The time.
        num_tasks: Tasks of the run so far.
        is_first: Whether each candidate is no repetition of an earlier one, ``[slots]``.
        is_idle: Whether it has no task; false for repetitions.
        uses: Its tasks of this round.
        results: Tasks whose results have arrived, ``[buffer]``.
        arrived: When they did.
        num_results: How many.
        num_discarded: Tasks that ended without one that counts.
        count: Events of this round.
        spent: Time of ended tasks by device class.
        lost: Its part without results that count.
    """

    tasks: Tasks
    clock: Clock
    num_tasks: Int[Array, ""]
    is_first: Bool[Array, " slots"]
    is_idle: Bool[Array, " slots"]
    uses: Int[Array, " slots"]
    results: Tasks
    arrived: Clock
    num_results: Int[Array, ""]
    num_discarded: Int[Array, ""]
    count: Int[Array, ""]
    spent: Clock
    lost: Clock

    @classmethod
    def start(
        cls, state: InFlight, candidates: Cohort, size: int, num_clients: int, num_classes: int
    ) -> _Events:
        """Returns the start of a round."""
        tasks, clients = state.tasks, candidates.clients
        # Sorted, because arrays of all clients would take most of the time if these are many.
        order = jnp.argsort(clients, stable=True)
        ranked = clients[order]
        is_new = jnp.append(True, ranked[1:] != ranked[:-1])
        is_first = jnp.zeros_like(is_new).at[order].set(is_new)
        busy = _busy_clients(tasks, num_clients)
        place = jnp.minimum(jnp.searchsorted(busy, clients), busy.size - 1)
        zero = jnp.zeros((), jnp.int32)
        return cls(
            tasks=tasks,
            clock=state.clock,
            num_tasks=state.num_tasks,
            is_first=is_first,
            is_idle=is_first & (busy[place] != clients),
            uses=jnp.zeros(clients.shape, jnp.int32),
            results=jax.tree.map(
                lambda leaf: jnp.zeros((size, *leaf.shape[1:]), leaf.dtype), tasks
            ),
            arrived=no_time(size),
            num_results=zero,
            num_discarded=zero,
            count=zero,
            spent=no_time(num_classes),
            lost=no_time(num_classes),
        )


def _busy_clients(tasks: Tasks, num_clients: int) -> Int[Array, " slots"]:
    """Returns the clients that have a task, in ascending order, and then ``num_clients``."""
    return jnp.sort(jnp.where(tasks.is_busy, tasks.client, num_clients))


def _put(
    is_place: Bool[Array, " places"], value: Shaped[Array, "..."], array: Shaped[Array, "..."]
) -> Shaped[Array, "..."]:
    """Writes a value at a place of the leading axis."""
    return jnp.where(jnp.expand_dims(is_place, range(1, array.ndim)), value, array)


def _add_where(
    is_class: Bool[Array, " classes"], milliseconds: Int[Array, ""], total: Clock
) -> Clock:
    """Adds the duration of a task to the total of its class."""
    return jax.tree.map(partial(jnp.where, is_class), total.advance(milliseconds), total)


def _normalized(
    weights: Float[Array, " buffer"], counts: Bool[Array, " buffer"]
) -> Float[Array, " buffer"]:
    """Returns weights that sum to 1; a sum of nearly 1 stays, so that nothing is rounded."""
    weights = jnp.where(counts, weights, 0)
    total = jnp.sum(weights)
    equal = counts.astype(weights.dtype)
    equal /= jnp.maximum(jnp.sum(equal), 1)
    return jnp.where(
        jnp.abs(total - 1) < _NEARLY_ONE,
        weights,
        jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), equal),
    )
