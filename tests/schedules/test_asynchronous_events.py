"""Events of asynchronous rounds, compared with a queue in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from event_queue import Availability, simulate

from fedjax_fair.roles import Cohort
from fedjax_fair.schedules import Asynchronous
from fedjax_fair.schedules.schedule import Work
from fedjax_fair.timing import ClientTimes, Online

NUM, ROUNDS = 15, 60
KEY = jax.random.key(5)
WORK = Work(jnp.ones(NUM, jnp.int32), 0, 0)


def order(round, available, np=np):
    """A permutation of the clients that changes with the round, first those that are available."""
    score = (np.arange(NUM) * 7919 + round * 104729) % 9973
    return np.lexsort((score, ~available))


@jax.jit(static_argnames="slots")
def events(schedule, slots):
    shape = Cohort(jnp.zeros(slots, jnp.int32), jnp.zeros(slots))
    version = jnp.zeros((), jnp.int32)  # In place of a model.
    work = WORK._replace(examples=WORK.examples[:slots])

    def step(state, round):
        candidates = order(round, schedule.available(state), jnp)[:slots]
        cohort = Cohort(candidates, jnp.full(slots, 1 / slots))
        state = schedule.add_model(state, round, round)
        arrived = schedule.arrive(KEY, state, cohort, work, round)
        sent = arrived.models.models[arrived.models.row]
        return arrived.state, (arrived.cohort, arrived.times, sent)

    rounds = jnp.arange(ROUNDS, dtype=jnp.int32)
    return jax.lax.scan(step, schedule.init(version, shape), rounds)[1]


@jax.jit
def durations_of(times):
    """Milliseconds by number of the task and client."""

    def duration(number, client):
        key = jax.random.fold_in(KEY, number)
        return times.milliseconds(key, client, WORK.examples[0], 0, 0)

    numbers, clients = jnp.arange(200 * ROUNDS), jnp.arange(NUM)
    return jax.vmap(jax.vmap(duration, (None, 0)), (0, None))(numbers, clients)


def draw_times(rng, kind):
    if kind == "ties":
        return ClientTimes(np.zeros(NUM), seconds_per_task=rng.integers(1, 4, NUM))
    return ClientTimes(rng.lognormal(1, 1, NUM), seconds_per_task=0.5, jitter=0.7)


def draw_intervals(rng):
    """Gaps of all lengths, at whole seconds, so that ends of tasks and intervals coincide."""
    intervals = []
    for _ in range(NUM):
        bounds = np.cumsum(rng.integers(1, 30, 4000))
        intervals.append(list(zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True)))
    return intervals


@pytest.mark.parametrize("kind", ["ties", "lognormal"])
@pytest.mark.parametrize(
    ("slots", "buffer_size", "max_staleness", "offline"),
    [
        (8, 3, None, None),
        (10, 10, None, None),
        (NUM, 1, None, None),
        (NUM, 5, 2, None),
        (12, 4, 0, "abort"),
        (8, 3, None, "abort"),
        (8, 3, None, "pause"),
        (NUM, 4, None, "ignore"),
    ],
)
def test_events_are_those_of_a_queue(kind, slots, buffer_size, max_staleness, offline):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        times, online = draw_times(rng, kind), [[(0, 10**9)]] * NUM
        if offline is not None:
            online = draw_intervals(rng)
            times = times.replace(online=Online.from_intervals(online, 2_000_000))
        schedule = Asynchronous(
            times,
            buffer_size=buffer_size,
            max_staleness=max_staleness,
            offline=offline or "abort",
        )
        cohort, found, sent = events(schedule, slots)
        durations = np.asarray(durations_of(times)).tolist()
        expected, ends, lost = simulate(
            ROUNDS,
            slots,
            buffer_size,
            lambda round, available: order(round, np.array(available))[:slots].tolist(),
            durations,
            Availability([[(1000 * a, 1000 * b) for a, b in each] for each in online]),
            offline or "abort",
            ROUNDS if max_staleness is None else max_staleness,
        )
        if cohort.responded is not None:
            assert cohort.responded.all()
        tasks, staleness = zip(*(zip(*buffer, strict=True) for buffer in expected), strict=True)
        np.testing.assert_array_equal(cohort.clients, [[t.client for t in each] for each in tasks])
        np.testing.assert_array_equal(found.staleness, staleness)
        np.testing.assert_array_equal(cohort.timing.staleness, staleness)
        np.testing.assert_array_equal(sent, [[t.version for t in each] for each in tasks])
        in_ms = lambda clock: np.round(1000 * clock.as_seconds()).astype(int)  # noqa: E731
        np.testing.assert_array_equal(in_ms(found.arrived), [[t.end for t in e] for e in tasks])
        np.testing.assert_array_equal(
            in_ms(found.dispatched), [[t.start for t in e] for e in tasks]
        )
        np.testing.assert_array_equal(in_ms(found.clock), ends)
        np.testing.assert_array_equal(found.num_discarded, lost)
        assert any(lost) == (max_staleness is not None or offline == "abort")
        assert np.unique(np.diff(ends)).size > 1
