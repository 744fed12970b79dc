"""Aggregators of results from older models: references in NumPy, and their identities."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_context, make_federation

from fedjax_fair import Round, aggregators, run, schedules, selectors, server_optimizers, solvers
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Cohort, LocalResult, Timing, Variables
from fedjax_fair.timing import ClientTimes

SIZES = np.array([3, 8, 5, 1, 6, 9])
NUM_CLIENTS, WIDTH = len(SIZES), 3
CONTEXT = make_context(make_federation(sizes=SIZES).train)
BUFFERS = ((4, 0, 4), (1, 4, 2), (0, 0, 0), (5, 1, 4), (4, 2, 4), (4, 3, 4))
"""Clients 0 and 4 are fast, and more than once in a buffer."""


@jax.jit
def step(aggregator, round, state, model, cohort, results):
    """Aggregates as a round does, from a model that is no constant."""
    context = CONTEXT._replace(round=round, variables=model)
    if aggregator.compute_weights is not None:
        weights = aggregator.compute_weights(state, cohort, context)
        results = results._replace(weighted_sum=context.weighted_sum(weights, results.update))
    return aggregator.aggregate(state, cohort, results, context)


def variables(rows):
    """Rows as two parameters and a running statistic."""
    rows = jnp.asarray(rows, jnp.float32)
    return Variables({"a": rows[..., :1], "b": rows[..., 1:2]}, {"mean": rows[..., 2:]})


def as_rows(update):
    return np.concatenate([*map(np.float64, jax.tree.leaves(update))], axis=-1)


class Server:
    """A model and the state of an aggregator."""

    def __init__(self, aggregator):
        self.aggregator, self.round = aggregator, 0
        self.model = np.array([0.5, -1, 2], np.float32)
        self.state = aggregator.init(CONTEXT._replace(variables=variables(self.model)))

    def receive(self, clients, updates, staleness, responded=None):
        """Returns the update of the model, and the aggregation."""
        size = len(clients)
        timing = Timing(np.asarray(staleness, np.int32), np.full(size, 7, np.int32))
        cohort = Cohort(
            np.asarray(clients, np.int32),
            np.full(size, 1 / size, np.float32),
            responded=None if responded is None else np.asarray(responded),
            timing=timing,
        )
        results = LocalResult(
            variables(updates), np.zeros(size, np.float32), np.ones(size, np.int32)
        )
        update, self.state, aggregation = step(
            self.aggregator,
            jnp.int32(self.round),
            self.state,
            variables(self.model),
            cohort,
            results,
        )
        self.round += 1
        counted = np.ones(size, bool) if responded is None else responded
        assert not aggregation.weights[~np.asarray(counted)].any()
        np.testing.assert_allclose(aggregation.weights.sum(), 1, rtol=1e-6)
        self.model = np.float32(as_rows(jax.tree.map(jnp.add, variables(self.model), update)))
        return as_rows(update), aggregation


def draw(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def scaled(mean, scale):
    """Scales parameters only, not the running statistic."""
    return mean * [scale, scale, 1]


FACTORS = {
    aggregators.Constant(): [1, 1, 1, 1],
    aggregators.Polynomial(1.0): [1, 1 / 4, 1 / 7, 1 / 11],
    aggregators.Polynomial(0.0): [1, 1, 1, 1],
    aggregators.Polynomial(0.5): [1, 1 / 2, 7**-0.5, 11**-0.5],
    aggregators.Hinge(): [1, 1, 1, 1 / 41],
    aggregators.Hinge(0.5, 2.0): [1, 1 / 1.5, 1 / 3, 1 / 5],
}


@pytest.mark.parametrize("factor", FACTORS, ids=repr)
def test_factors_of_a_staleness_of_0_3_6_and_10(factor):
    staleness = jnp.array([0, 3, 6, 10])
    np.testing.assert_allclose(factor(staleness), FACTORS[factor], rtol=1e-6)
    assert factor(staleness)[0] == 1  # Exactly: a synchronous round is not changed.


@pytest.mark.parametrize("responded", [None, [True, False, True, True]])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
def test_fedbuff_equals_numpy(weights, normalize, responded):
    clients, staleness, updates = [4, 0, 4, 5], np.array([0, 3, 1, 8]), draw(4)
    server = Server(aggregators.FedBuff(2.0, weights=weights, normalize=normalize))
    counted = np.ones(4) if responded is None else np.array(responded, float)
    updates *= counted[:, None]
    update, aggregation = server.receive(clients, updates, staleness, responded=responded)
    shares = counted * (SIZES[clients] if weights == "num_examples" else 1)
    factors = shares / np.sqrt(1 + staleness)
    divisor = factors.sum() if normalize else shares.sum()
    expected = 2 / divisor * factors @ updates
    mean = factors / factors.sum() @ updates
    np.testing.assert_allclose(update[:2], expected[:2], rtol=1e-5)
    np.testing.assert_allclose(update[2], mean[2], rtol=1e-5)
    np.testing.assert_allclose(aggregation.weights, factors / factors.sum(), rtol=1e-5)
    np.testing.assert_allclose(aggregation.info["scale"], 2 * factors.sum() / divisor, rtol=1e-5)


@pytest.mark.parametrize("responded", [None, [True, False, True]])
@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
def test_fedbuff_without_factors_is_the_mean_bit_for_bit(weights, responded):
    mean = Server(aggregators.Mean(weights)).receive([4, 0, 1], draw(3), [0] * 3, responded)
    for factor, staleness in (
        (aggregators.Constant(), [2, 0, 7]),
        (aggregators.Polynomial(0.0), [2, 0, 7]),
        (aggregators.Polynomial(0.5), [0, 0, 0]),
    ):
        server = Server(aggregators.FedBuff(staleness=factor, weights=weights))
        update, aggregation = server.receive([4, 0, 1], draw(3), staleness, responded)
        np.testing.assert_array_equal(update, mean[0])
        np.testing.assert_array_equal(aggregation.weights, mean[1].weights)
        assert aggregation.info["scale"] == 1


def test_fedasync_mixes_models():
    server = Server(aggregators.FedAsync(0.6, aggregators.Hinge(1.0, 2.0)))
    for index, staleness in enumerate((0, 2, 5)):
        local, before = draw(1, index), np.float64(server.model)
        _, aggregation = server.receive([index], local - server.model, [staleness])
        mixing = 0.6 / (1 + max(staleness - 2, 0))
        expected = (1 - mixing) * before + mixing * local[0]
        np.testing.assert_allclose(server.model, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(aggregation.info["scale"], mixing, rtol=1e-6)


def test_fedasync_with_its_extreme_mixing_factors():
    local = draw(1)
    still = Server(aggregators.FedAsync(0.0))
    update, _ = still.receive([2], local - still.model, [1])
    assert not update.any()
    moved = Server(aggregators.FedAsync(1.0, aggregators.Constant()))
    moved.receive([2], local - moved.model, [9])
    np.testing.assert_allclose(moved.model, local[0], rtol=1e-6)


def test_ca2fl_equals_numpy():
    server, rate = Server(aggregators.CA2FL(0.5)), 0.5
    cache = np.zeros((NUM_CLIENTS, 2))
    for index, clients in enumerate(BUFFERS):
        updates = draw(3, index)
        update, _ = server.receive(clients, updates, [0, 1, 4])
        mean, differences = cache.mean(axis=0), []
        for client, own in zip(clients, np.float64(updates), strict=True):
            differences.append(own[:2] - cache[client])
            cache[client] = own[:2]
        expected = rate * (mean + np.mean(differences, axis=0))
        np.testing.assert_allclose(update[:2], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(update[2], updates[:, 2].mean(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(server.state.updates, cache, rtol=1e-6)
        np.testing.assert_allclose(server.state.mean, cache.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_ca2fl_of_all_clients_is_fedavg():
    """Also with caches, whose mean the differences cancel."""
    server, clients = Server(aggregators.CA2FL()), np.arange(NUM_CLIENTS)
    for index in range(3):
        updates = draw(NUM_CLIENTS, index)
        update, _ = server.receive(clients, updates, np.zeros(NUM_CLIENTS))
        np.testing.assert_allclose(update, updates.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_area_keeps_the_mean_of_the_last_local_models():
    server = Server(aggregators.AREA())
    last = np.tile(np.float64(server.model), (NUM_CLIENTS, 1))
    for index, clients in enumerate(BUFFERS):
        local = draw(3, index)
        _, aggregation = server.receive(clients, local - server.model, [0, 1, 4])
        for client, own in zip(clients, local, strict=True):
            last[client] = own
        np.testing.assert_allclose(server.model, last.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(server.state, last, atol=1e-6)
        np.testing.assert_allclose(aggregation.info["scale"], 3 / NUM_CLIENTS)


@pytest.mark.parametrize("make", [aggregators.CA2FL, aggregators.AREA])
def test_updates_that_are_lost_or_not_finite_are_not_remembered(make):
    updates = draw(3)
    expected, actual = Server(make()), Server(make())
    for server in (expected, actual):
        server.receive([0, 1, 4], updates, [0, 0, 0])
    expected.receive([4, 1], updates[:2], [1, 2])
    padded = np.concatenate([updates[:2], np.zeros((1, WIDTH)), [[np.nan, 1, 1]]])
    update, _ = actual.receive([4, 1, 1, 4], padded, [1, 2, 0, 1], [True, True, False, True])
    assert np.isfinite(update).all()
    np.testing.assert_allclose(actual.model, expected.model, rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, actual.state, expected.state)


def test_fedstaleweight_equals_numpy():
    server = Server(aggregators.FedStaleWeight(0.5))
    arrived = {client: [] for client in range(NUM_CLIENTS)}
    for index, clients in enumerate(BUFFERS):
        updates = draw(3, index)
        staleness = np.random.default_rng(index).integers(0, 9, size=3)
        responded = np.array([True, index != 3, True])
        updates *= responded[:, None]
        update, aggregation = server.receive(clients, updates, staleness, responded)
        means = np.zeros(3)
        for slot in np.flatnonzero(responded):
            own = arrived[clients[slot]]
            own.append(staleness[slot])
            means[slot] = np.mean(own[-5:])
        weights = means / means.sum()
        np.testing.assert_allclose(aggregation.info["influence"], means, rtol=1e-6)
        np.testing.assert_allclose(aggregation.weights, weights, rtol=1e-5)
        np.testing.assert_allclose(update, scaled(weights @ updates, 0.5), rtol=1e-4, atol=1e-6)
    assert len(arrived[4]) > 5  # Its window has forgotten some.


def test_exact_weights_of_a_client_sum_to_the_round_of_its_last_result():
    server = Server(aggregators.FedStaleWeight(0.5, exact=True))
    total, last = np.zeros(NUM_CLIENTS), np.zeros(NUM_CLIENTS)
    for index, clients in enumerate(BUFFERS):
        responded = np.array([True, index != 3, True])
        updates = draw(3, index) * responded[:, None]
        update, aggregation = server.receive(clients, updates, [0, 1, 4], responded=responded)
        weights = 0.5 / NUM_CLIENTS * aggregation.info["influence"]
        np.testing.assert_allclose(update[:2], (weights @ updates)[:2], rtol=1e-4, atol=1e-6)
        normalized = weights / weights.sum()
        np.testing.assert_allclose(aggregation.weights, normalized, rtol=1e-5)
        np.testing.assert_allclose(update[2], normalized @ updates[:, 2], rtol=1e-4, atol=1e-6)
        np.add.at(total, list(clients), weights)
        last[np.array(clients)[responded]] = index + 1
        np.testing.assert_allclose(total, 0.5 / NUM_CLIENTS * last, rtol=1e-5)
    assert len(set(last)) > 3


@pytest.mark.parametrize("exact", [False, True])
def test_fedstaleweight_of_all_clients_without_staleness_is_fedavg(exact):
    server, clients = Server(aggregators.FedStaleWeight(exact=exact)), np.arange(NUM_CLIENTS)
    for index in range(3):
        updates = draw(NUM_CLIENTS, index)
        update, _ = server.receive(clients, updates, np.zeros(NUM_CLIENTS))
        np.testing.assert_allclose(update, updates.mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [aggregators.FedBuff, aggregators.CA2FL])
def test_a_server_optimizer_steps_with_their_updates(make):
    wrapped = aggregators.WithServerOptimizer(make(), server_optimizers.FedAvgM(0.5, 0.0))
    plain, server = Server(make(0.5)), Server(wrapped)
    for index, clients in enumerate(BUFFERS[:3]):
        expected, _ = plain.receive(clients, draw(3, index), [1, 0, 2])
        update, _ = server.receive(clients, draw(3, index), [1, 0, 2])
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)


KEEPING = {name: getattr(aggregators, name) for name in aggregators.__all__}
KEEPING = {name: make for name, make in KEEPING.items() if getattr(make, "keeps_state", False)}
KEEPING |= {"exact": partial(aggregators.FedStaleWeight, exact=True)}


@pytest.mark.parametrize("name", KEEPING)
def test_aggregators_keep_their_state_without_responses(name):
    server = Server(KEEPING[name]())
    before = server.state
    server.receive((4, 0, 4), draw(3), [2, 0, 1])
    state = server.state
    assert not jax.tree.all(jax.tree.map(np.array_equal, before, state))
    timing = Timing(np.ones(3, np.int32), np.ones(3, np.int32))
    clients, nobody = np.array([1, 4, 2], np.int32), np.zeros(3, bool)
    cohort = Cohort(clients, np.full(3, 1 / 3, np.float32), responded=nobody, timing=timing)
    results = LocalResult(variables(draw(3)), np.ones(3, np.float32), np.ones(3, np.int32))
    model = variables(server.model)
    _, after, _ = step(server.aggregator, jnp.int32(1), state, model, cohort, results)
    jax.tree.map(np.testing.assert_array_equal, after, state)


@pytest.mark.parametrize("make", [aggregators.CA2FL, aggregators.AREA])
def test_rounds_with_lost_results_do_not_copy_the_models_of_all_clients(make):
    data = make_federation(sizes=[1] * 4000)
    schedule = schedules.Asynchronous(ClientTimes(np.ones(4000)), buffer_size=2, max_staleness=1)
    round = Round(
        linear_model(),
        selectors.Uniform(4),
        solvers.SGD(0.1, 1, steps=1),
        make(),
        schedule=schedule,
    )
    start = jax.eval_shape(round.init, jax.random.key(0), data)
    program = jax.jit(partial(run, num_rounds=2), donate_argnums=1).lower(round, start, data)
    memory = program.compile().memory_analysis()
    assert 0 < memory.temp_size_in_bytes < tree_bytes(start.aggregator)


def test_a_server_optimizer_needs_what_its_aggregator_needs():
    for inner in (aggregators.FedBuff(), aggregators.FedAsync(), aggregators.Mean()):
        wrapped = aggregators.WithServerOptimizer(inner, server_optimizers.FedAdam())
        assert wrapped.needs_schedule == inner.needs_schedule
        assert wrapped.uses_local_models == inner.uses_local_models
    with pytest.raises(ValueError, match=r"inner=AREA.*use AREA alone"):
        aggregators.WithServerOptimizer(aggregators.AREA(), server_optimizers.FedAdam())


def test_fedasync_refuses_a_buffer():
    alone = aggregators.FedAsync()
    for aggregator in (alone, aggregators.WithServerOptimizer(alone, server_optimizers.FedAdam())):
        aggregator.check_buffer(1)
        with pytest.raises(ValueError, match=r"buffer_size=3: FedAsync .* expected 1, or use"):
            aggregator.check_buffer(3)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: aggregators.FedAsync(staleness=0.5), "staleness is a float"),
        (lambda: aggregators.FedBuff(staleness=0.5), "staleness is a float"),
    ],
)
def test_bad_settings_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()
