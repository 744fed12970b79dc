"""Schedules in `fit`: identities, batches of settings, checkpoints, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_federation
from test_conformance import FEDERATION, SELECTORS, Scaling

import fedjax_fair as ff
from fedjax_fair import aggregators, communication, faults, schedules, selectors, solvers
from fedjax_fair.rounds.client_state import make_client
from fedjax_fair.rounds.round import run
from fedjax_fair.rounds.round_context import make_context
from fedjax_fair.rounds.round_state import Purpose, derive_key
from fedjax_fair.timing import ClientTimes

DATA = make_federation()
NUM = DATA.num_clients
SGD = solvers.SGD(0.1, 2, steps=3)
NAMES = tuple("abcdef")
EQUAL = ClientTimes(np.zeros(NUM), seconds_per_task=2.0)
SPEEDS = ClientTimes(np.linspace(0.1, 0.9, NUM), seconds_per_task=0.5, jitter=0.3)


def method(schedule=None, selector=None, aggregator=None, solver=SGD, **settings):
    selector = selector or selectors.Uniform(4)
    aggregator = aggregator or aggregators.Mean("uniform")
    return ff.Round(linear_model(), selector, solver, aggregator, schedule=schedule, **settings)


def trained(round, rounds=10, data=DATA):
    data = jax.tree.map(jnp.asarray, data)
    return jax.jit(lambda key: run(round, round.init(key, data), data, rounds))(jax.random.key(3))


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("selector", [selectors.Full(), selectors.Uniform(4)], ids=str)
def test_with_equal_speeds_and_a_full_buffer_rounds_are_synchronous(selector):
    size = NUM if isinstance(selector, selectors.Full) else 4
    asynchronous = schedules.Asynchronous(EQUAL, buffer_size=size)
    # A mask of available clients selects another branch of the sampler.
    everyone = faults.Trace(np.ones((1, NUM)))
    plain, _ = trained(method(selector=selector, faults=everyone))
    for schedule in (asynchronous, schedules.Synchronous(EQUAL)):
        settings = {"faults": everyone} if schedule is None else {}
        state, info = trained(method(schedule, selector, **settings))
        if schedule is asynchronous:
            assert_equal(state.variables, plain.variables)
        assert info.timing.clock.as_seconds().tolist() == list(range(2, 22, 2))
        assert not info.timing.staleness.any()


def test_a_synchronous_schedule_without_limits_changes_no_bit():
    plain, plain_info = trained(method())
    state, info = trained(method(schedules.Synchronous(SPEEDS)))
    assert_equal(state.variables, plain.variables)
    assert_equal(info._replace(timing=None, available=None), plain_info)


def test_one_client_at_a_time_trains_from_the_newest_model():
    schedule = schedules.Asynchronous(SPEEDS, buffer_size=1)
    one = selectors.Uniform(1)
    everyone = faults.Trace(np.ones((1, NUM)))
    state, info = trained(method(schedule, one), 20)
    plain, plain_info = trained(method(selector=one, faults=everyone), 20)
    assert_equal(info.clients, plain_info.clients)
    assert_equal(state.variables, plain.variables)


def test_updates_are_of_the_models_that_were_sent():
    schedule = schedules.Asynchronous(SPEEDS, buffer_size=2)
    round, rounds = method(schedule, selectors.Full()), 12
    data = jax.tree.map(jnp.asarray, DATA)
    step = jax.jit(lambda state: round.step(state, data))
    states, infos = [round.init(jax.random.key(3), data)], []
    for _ in range(rounds):
        state, info = step(states[-1])
        states.append(state)
        infos.append(info)
    staleness = np.stack([info.timing.staleness for info in infos])
    assert staleness.max() > 1
    for index, (state, info) in enumerate(zip(states[1:], infos, strict=True)):
        tasks = state.schedule.tasks
        for slot in np.flatnonzero(tasks.is_busy):
            row, version = tasks.row[slot], tasks.version[slot]
            stored = jax.tree.map(lambda leaf, row=row: leaf[row], state.schedule.models[0])
            assert_equal(stored, states[version].variables)
        clients, total = np.asarray(info.clients), 0
        for slot, client in enumerate(clients):
            sent = states[index - int(info.timing.staleness[slot])]
            key = jax.random.fold_in(derive_key(state.key, Purpose.SOLVE, index), int(client))
            context = make_context(round.model, sent.round, sent.variables, data)
            at = make_client(context, jnp.int32(client))
            occurrence = int(np.sum(clients[:slot] == client))
            solved = SGD.solve(jax.random.fold_in(key, occurrence), sent.variables, at)
            total = total + np.asarray(solved.update.params["kernel"]) / 2
        change = state.variables.params["kernel"] - states[index].variables.params["kernel"]
        np.testing.assert_allclose(change, total, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(filter(str.isidentifier, SELECTORS)))
def test_selectors_never_start_a_client_twice(name):
    selector = SELECTORS[name]()
    schedule = schedules.Asynchronous(SPEEDS, buffer_size=2)
    solver = SGD if name == "drfa" else Scaling()  # DRFA needs a snapshot.
    _, info = trained(method(schedule, selector, solver=solver), 12, FEDERATION)
    clients = np.asarray(info.clients).ravel()
    start, end = (
        getattr(info.timing, name).as_seconds().ravel() for name in ("dispatched", "arrived")
    )
    for client in np.unique(clients):
        own = clients == client
        order = np.argsort(start[own])
        assert (start[own][order][1:] >= end[own][order][:-1]).all()


def test_settings_are_a_batch_axis():
    times = [SPEEDS, SPEEDS.replace(jitter=0.9), EQUAL.replace(jitter=0.1)]
    methods = [method(schedules.Asynchronous(each, buffer_size=2)) for each in times]
    together = ff.fit(methods, DATA, rounds=6, seeds=(1, 1, 2), on_nonfinite="raise").dataset
    for index, (each, seed) in enumerate(zip(methods, (1, 1, 2), strict=True)):
        alone = ff.fit(each, DATA, rounds=6, seeds=(seed,)).dataset
        one = together.isel(seed=[index])
        np.testing.assert_array_equal(alone.cohort_clients, one.cohort_clients)
        np.testing.assert_array_equal(alone.cohort_arrived, one.cohort_arrived)
        np.testing.assert_allclose(alone.test_loss, one.test_loss, rtol=1e-5)


@pytest.mark.parametrize("buffer_size", [None, 2])
def test_runs_continue_with_tasks_in_flight(tmp_path, buffer_size):
    schedule = schedules.Synchronous(SPEEDS, num_responses=3)
    if buffer_size is not None:
        schedule = schedules.Asynchronous(SPEEDS, buffer_size=buffer_size)
    solver = solvers.Scaffold(SGD)
    round = method(schedule, aggregator=aggregators.ScaffoldMean(), solver=solver)
    settings = {"seeds": (0, 1), "eval_every": 1}
    whole = ff.fit(round, DATA, rounds=7, **settings)
    for rounds in (3, 5, 7):
        continued = ff.fit(round, DATA, rounds=rounds, checkpoints=tmp_path, **settings)
    assert continued.dataset.identical(whole.dataset)
    assert_equal(continued.variables, whole.variables)


def test_runs_end_at_a_virtual_time(tmp_path):
    schedule = schedules.Asynchronous(SPEEDS, buffer_size=2)
    settings = {"seeds": (0, 1), "eval_every": 2, "until_seconds": 6.0}
    result = ff.fit(method(schedule), DATA, rounds=50, checkpoints=tmp_path, **settings).dataset
    assert result.sizes["training_round"] < 50
    assert (result.virtual_time.isel(round=-1) >= 6).all()
    assert (result.virtual_time.isel(round=-2) < 6).any()
    again = ff.fit(method(schedule), DATA, rounds=50, checkpoints=tmp_path, **settings).dataset
    assert again.identical(result)
    with pytest.warns(UserWarning, match=r"until_seconds=6: after 2 rounds seed 0 at .* s, seed 1"):
        ff.fit(method(schedule), DATA, rounds=2, **settings)
    with pytest.raises(ValueError, match=r"until_seconds=6\.0: expected None, because the method"):
        ff.fit(method(), DATA, rounds=2, **settings)


def test_lost_tasks_receive_models_too():
    times = ClientTimes(np.zeros(NUM), seconds_per_task=np.arange(1.0, NUM + 1), class_names=NAMES,
                        device_class=np.arange(NUM))  # fmt: skip
    schedule = schedules.Asynchronous(times, buffer_size=2, max_staleness=0)
    results = ff.fit(method(schedule, selectors.Full()), DATA, rounds=9, eval_every=4).dataset
    each = (results.class_seconds / np.arange(1.0, NUM + 1)).values
    num_lost = each - results.participation.values  # Every client is a class.
    np.testing.assert_array_equal(results.class_lost_seconds, num_lost * np.arange(1, NUM + 1))
    num_tasks = each.sum(axis=-1)
    num_arrived = results.participation.sum("client")
    size = results.bytes_up[0, -1] / num_arrived[0, -1]
    np.testing.assert_array_equal(results.bytes_down, num_tasks * size.item())
    assert num_tasks[0, -1] > num_arrived[0, -1]


class Slow(solvers.SGD):
    num_examples = None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"faults": faults.Trace(np.ones((1, NUM)))}, "Trace counts rounds; .* timing.Online"),
        ({"faults": faults.Staleness(0.5, max_staleness=2)}, "Staleness counts rounds"),
        ({"faults": faults.Dropout(0.5)}, "Dropout is drawn for a cohort that starts together"),
        ({"faults": faults.Stragglers(0.5, deadline_steps=2)}, "Stragglers is drawn"),
        ({"solver": Slow(0.1, 2, steps=3)}, r"Slow defines no num_examples\(sizes, max_steps\)"),
        (
            {"privacy": communication.DifferentialPrivacy(1.0, 0.1)},
            "privacy: no guarantee is known",
        ),
    ],
)
def test_what_asynchronous_rounds_refuse(settings, message):
    with pytest.raises(ValueError, match=message):
        method(schedules.Asynchronous(SPEEDS, buffer_size=2), **settings)


def test_a_buffer_holds_at_most_the_clients_in_training():
    schedule = schedules.Asynchronous(SPEEDS, buffer_size=5)
    with pytest.raises(ValueError, match="buffer_size=5: expected at most 4, the cohort size"):
        ff.fit(method(schedule), DATA, rounds=1)


def test_times_are_of_all_clients():
    times = ClientTimes(np.ones(3))
    with pytest.raises(ValueError, match="times of 3 clients: expected 6"):
        ff.fit(method(schedules.Synchronous(times)), DATA, rounds=1)


def test_times_in_milliseconds_are_found_before_the_first_round():
    times = ClientTimes(np.full(NUM, 1e6))  # Clients process up to six examples.
    with pytest.raises(ValueError, match=r"client \d: a task of 6e\+06 seconds; expected at most"):
        ff.fit(method(schedules.Synchronous(times)), DATA, rounds=1)
