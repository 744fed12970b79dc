"""Durations and responses of synchronous rounds, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.roles import Cohort
from fedjax_fair.schedules import Synchronous
from fedjax_fair.schedules.schedule import Work
from fedjax_fair.timing import ClientTimes, Online

TIMES = ClientTimes([0.0] * 5, seconds_per_task=[8, 2, 10, 4, 6], device_class=[1, 0, 1, 0, 0],
                    class_names=("fast", "slow"))  # fmt: skip
WORK = Work(jnp.zeros(5, jnp.int32), 0, 0)
COHORT = Cohort(jnp.arange(5), jnp.full(5, 0.2))


@jax.jit
def respond(schedule, responded=None):
    cohort = COHORT._replace(responded=responded)
    return schedule.respond(jax.random.key(0), schedule.init((), COHORT), cohort, WORK)


def summary(schedule, responded=None):
    cohort, _, times, _ = respond(schedule, responded)
    counts = None if cohort.responded is None else np.flatnonzero(cohort.responded).tolist()
    seconds = [part.as_seconds().tolist() for part in (times.clock, times.spent, times.lost)]
    return counts, *seconds


ALL = [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("settings", "counts", "clock", "spent", "lost"),
    [
        ({}, None, 10, [12, 18], [0, 0]),
        ({"num_responses": 5}, ALL, 10, [12, 18], [0, 0]),
        ({"num_responses": 3}, [1, 3, 4], 6, [12, 12], [0, 12]),
        ({"deadline": 5.0}, [1, 3], 5, [11, 10], [5, 10]),
        ({"num_responses": 1, "deadline": 5.0}, [1], 2, [6, 4], [4, 4]),
        ({"num_responses": 3, "deadline": 5.0}, [1, 3], 5, [11, 10], [5, 10]),
        ({"deadline": 6.0}, [1, 3, 4], 6, [12, 12], [0, 12]),  # A result at the deadline.
        ({"deadline": 5.0, "min_responses": 3}, [], 5, [11, 10], [11, 10]),
        ({"deadline": 1.0}, [], 1, [3, 2], [3, 2]),
        ({"deadline": 1e9}, ALL, 10, [12, 18], [0, 0]),
    ],
)
def test_rounds_end_with_the_last_result_that_counts(settings, counts, clock, spent, lost):
    assert summary(Synchronous(TIMES, **settings)) == (counts, clock, spent, lost)


def test_equal_times_count_in_the_order_of_the_cohort():
    times = TIMES.replace(seconds_per_task=np.full(5, 3.0))
    assert summary(Synchronous(times, num_responses=2))[0] == [0, 1]


def test_clients_that_drop_out_are_waited_for():
    responded = jnp.array([True, True, False, True, True])
    found = summary(Synchronous(TIMES), responded)
    assert found == ([0, 1, 3, 4], 10, [12, 18], [0, 10])
    found = summary(Synchronous(TIMES, num_responses=4), responded)
    assert found == ([0, 1, 3, 4], 8, [12, 16], [0, 8])


@pytest.mark.parametrize(
    ("offline", "counts", "clock", "lost"),
    [
        # Client 2 goes offline after 7 of its 10 s, and is back at 20; client 1 is offline.
        ("abort", [0, 3, 4], 8, [0, 7]),
        ("pause", [0, 2, 3, 4], 23, [0, 0]),
        ("ignore", [0, 2, 3, 4], 10, [0, 0]),
    ],
)
def test_clients_go_offline(offline, counts, clock, lost):
    intervals = [[(0, 100)], [(50, 60)], [(0, 7), (20, 100)], [(0, 100)], [(0, 100)]]
    online = Online.from_intervals(intervals, 100)
    found = summary(Synchronous(TIMES.replace(online=online), offline=offline))
    assert found[:2] == (counts, clock)
    assert found[3] == lost


def test_a_round_of_offline_clients_starts_later():
    intervals = [[(30, 100)], [(40, 100)], [(30, 100)], [(50, 100)], [(50, 100)]]
    times = TIMES.replace(online=Online.from_intervals(intervals, 100))
    cohort, _, found, _ = respond(Synchronous(times))
    responded = np.flatnonzero(cohort.responded).tolist()
    assert responded == np.flatnonzero(found.started).tolist() == [0, 2]
    assert found.dispatched.as_seconds().tolist() == [30] * 5
    assert found.arrived.as_seconds().tolist() == [38, 30, 40, 30, 30]
    assert found.clock.as_seconds() == 40


def test_each_task_has_its_own_jitter():
    times = TIMES.replace(seconds_per_example=np.ones(5), jitter=0.5)
    work = Work(jnp.full(5, 10), 0, 0)
    schedule = Synchronous(times)

    @jax.jit
    def two_rounds():
        state, ends = schedule.init((), COHORT), []
        for _ in range(2):
            cohort, _, _, state = schedule.respond(jax.random.key(0), state, COHORT, work)
            ends.append(cohort.timing.milliseconds)
        return jnp.stack(ends)

    assert np.unique(np.asarray(two_rounds()) - 1000 * TIMES.seconds_per_task).size == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_responses": 6}, "num_responses=6: expected at most 5, the clients of a round"),
        ({"min_responses": 6}, "min_responses=6: expected at most 5"),
        ({"num_responses": 0}, "num_responses=0"),
        ({"deadline": 0.0}, "deadline=0.0: expected a number > 0"),
        ({"offline": "wait"}, "offline='wait': expected one of 'abort', 'pause', 'ignore'"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        Synchronous(TIMES, **settings).init((), COHORT)
