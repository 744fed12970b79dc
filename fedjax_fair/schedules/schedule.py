"""Durations of tasks and clients that go offline, in synchronous and asynchronous rounds."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree

from fedjax_fair.roles import Cohort
from fedjax_fair.timing import Clock
from fedjax_fair.timing.client_times import ClientTimes
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree, setting

__all__ = [
    "Arrived", "Models", "Offline", "RoundTiming", "Schedule", "Work", "add_time", "no_time",
]  # fmt: skip

Offline = Literal["abort", "pause", "ignore"]


class Work(NamedTuple):
    """Parts of the tasks of some clients.

    Attributes:
        examples: Examples that local training processes, ``[cohort]``.
        bytes_down: Bytes that a client receives.
        bytes_up: Bytes that it sends.
    """

    examples: Int[Array, " cohort"]
    bytes_down: int
    bytes_up: int


class RoundTiming(NamedTuple):
    """A round in virtual time.

    Attributes:
        clock: Time after the round.
        started: Whether each slot of the cohort had a task.
        staleness: Updates of the global model since the version that each participant was sent.
        dispatched: Start of each participant's task.
        arrived: Arrival of each result, also of one that came too late; the start if there is none.
        spent: Time of tasks that ended in this round, by device class.
        lost: Its part whose results do not count.
        num_discarded: Tasks that ended in this round and have no slot in its cohort.
    """

    clock: Clock
    started: Bool[Array, " cohort"]
    staleness: Int[Array, " cohort"]
    dispatched: Clock
    arrived: Clock
    spent: Clock
    lost: Clock
    num_discarded: Int[Array, ""]


class Models(NamedTuple):
    """From which models a cohort trains.

    Attributes:
        models: What clients were sent, ``[rows, ...]``.
        row: Row of each participant, ``[cohort]``.
        version: Its round.
    """

    models: PyTree
    row: Int[Array, " cohort"]
    version: Int[Array, " cohort"]


class Arrived(NamedTuple):
    """The clients whose results arrive in a round, and when.

    Attributes:
        cohort: The clients, in the order of arrival; ``responded`` is false without a result.
        models: The models that they are trained from; None for the present one.
        times: Times of the round; None without a schedule, and until they are known.
        state: The new state of the schedule.
    """

    cohort: Cohort
    models: Models | None
    times: RoundTiming | None
    state: PyTree


class Schedule(Tree):
    """Base class of schedules.

    Args:
        times: How long clients take for a task, and when they are online.
        offline: What becomes of the task of a client that goes offline: ``"abort"`` ends it without
            a result, ``"pause"`` continues it when the client is back, and ``"ignore"`` asks only
            at the start.
    """

    times: ClientTimes = setting(
        checks.instance, ClientTimes, "timing.from_table('speeds.csv', 100)"
    )
    _: KW_ONLY
    offline: Offline = "abort"

    @abstractmethod
    def init(self, sent: PyTree, cohort: Cohort) -> PyTree:
        """Returns the state at time 0.

        Args:
            sent: What clients are sent; only the shapes matter.
            cohort: A cohort of the selector; only the shapes matter.
        """

    @abstractmethod
    def available(self, state: PyTree) -> Bool[Array, " clients"] | None:
        """Returns the mask of clients that can start; None for all."""

    def unavailable(self, state: PyTree) -> Int[Array, " unavailable"] | None:
        """Returns the ids of the other clients, as `Context.unavailable`, if they are few."""
        return None

    @property
    def num_clients(self) -> int:
        """Number of clients that have times."""
        return np.shape(self.times.seconds_per_example)[0]

    def online(self, clock: Clock) -> Bool[Array, " clients"] | None:
        """Returns the mask of clients that are online; None if all always are."""
        if self.times.online is None:
            return None
        return self.is_online(jnp.arange(self.num_clients, dtype=jnp.int32), clock)

    def is_online(self, clients: Int[Array, " cohort"], clock: Clock) -> Bool[Array, " cohort"]:
        """Returns whether some clients are online."""
        if self.times.online is None:
            return jnp.ones(clients.shape, bool)
        return jax.vmap(self.times.online.is_online, (0, None))(clients, clock)

    def waits(self, clients: Int[Array, " cohort"], clock: Clock) -> Int[Array, " cohort"]:
        """Returns the milliseconds until some clients are online, 0 for those that are."""
        if self.times.online is None:
            return jnp.zeros(clients.shape, jnp.int32)
        return jax.vmap(self.times.online.wait, (0, None))(clients, clock)

    def run_tasks(
        self,
        key: Key[Array, ""],
        numbers: Int[Array, " cohort"],
        clients: Int[Array, " cohort"],
        work: Work,
        clock: Clock,
    ) -> tuple[Int[Array, " cohort"], Bool[Array, " cohort"]]:
        """Returns when tasks end that start now, in milliseconds, and whether they have a result.

        Args:
            key: Key of the durations.
            numbers: Numbers of the tasks in the run; each has a random factor of its own.
            clients: The clients, which are online.
            work: What they do.
            clock: The time.
        """

        def duration(number, client, examples):
            key_task = jax.random.fold_in(key, number)
            return self.times.milliseconds(
                key_task, client, examples, work.bytes_down, work.bytes_up
            )

        durations = jax.vmap(duration)(numbers, clients, work.examples)
        complete = jnp.ones(clients.shape, bool)
        if self.times.online is None or self.offline == "ignore":
            return durations, complete
        if self.offline == "pause":
            ends = jax.vmap(self.times.online.work, (0, None, 0))(clients, clock, durations)
            return ends, complete
        rest = jax.vmap(self.times.online.rest, (0, None))(clients, clock)
        return jnp.minimum(durations, rest), durations <= rest

    def classes_of(self, clients: Int[Array, "..."]) -> Int[Array, "..."]:
        """Returns the device classes of some clients."""
        return jnp.asarray(self.times.device_class, jnp.int32)[clients]


def no_time(*shape: int) -> Clock:
    """Returns times of zero."""
    return Clock(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))


def add_time(total: Clock, places: Int[Array, "..."], milliseconds: Int[Array, "..."]) -> Clock:
    """Adds the durations of tasks to the totals at their places; others are beyond the last one."""
    seconds = total.seconds.at[places].add(milliseconds // 1000, mode="drop")
    rest = total.milliseconds.at[places].add(milliseconds % 1000, mode="drop")
    return Clock(seconds + rest // 1000, rest % 1000)
