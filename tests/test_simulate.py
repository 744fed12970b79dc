"""Laws of a round, and of rounds in a row."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import linear_model
from jaxtyping import Array, Int
from test_conformance import Scaling

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.numerics import target
from fedjax_fair.roles import Client, Cohort, Model, Selector, Variables
from fedjax_fair.rounds.local_training import default_clients_per_batch
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.rounds.round_context import make_context
from fedjax_fair.rounds.round_state import Purpose, derive_key
from fedjax_fair.utils.tree import Tree

LARGE = 100


class Fixed(Selector):
    """Selects the same slots in every round; other clients do not compile again."""

    clients: Int[Array, " cohort"]

    def select(self, key, state, context):
        size = len(self.clients)
        return Cohort(self.clients, jnp.full(size, 1 / size)), state, {}


def fixed(*clients):
    return Fixed(np.array(clients, np.int32))


def make(model, selector=None, solver=None, aggregator=None, **settings):
    return Round(
        model,
        selector or selectors.Uniform(3),
        solver or solvers.SGD(0.1, 2, epochs=1),
        aggregator or aggregators.Mean(),
        **settings,
    )


# Rounds are arguments, so that rounds of equal structure share a compiled function.
def init(round, data):
    return round.init(jax.random.key(0), data)


@jax.jit
def step(round, state, data):
    return round.step(state, data)


@partial(jax.jit, static_argnames="num_rounds")
def run_from_key(round, key, data, num_rounds):
    return run(round, round.init(key, data), data, num_rounds)


def rounds_of(round, data, num_rounds=3, seed=0):
    return run_from_key(round, jax.random.key(seed), data, num_rounds)


def assert_close(actual, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), actual, expected)


def test_one_client_and_one_step_is_a_centralized_step(model, federation):
    round = make(model, fixed(4), solvers.SGD(0.5, LARGE, steps=1))
    state = init(round, federation)
    after, info = step(round, state, federation)

    train = federation.train
    rows = train.order[train.offsets[4] :][: train.sizes[4]]

    def loss_fn(params):
        logits, _ = model.apply(params, {}, train.features[rows], train=True, key=None)
        labels = jnp.asarray(train.labels[rows])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, slope = jax.jit(jax.value_and_grad(loss_fn))(state.variables.params)
    expected = jax.tree.map(lambda value, s: value - 0.5 * s, state.variables.params, slope)
    assert_close(after.variables.params, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(info.loss, [loss], rtol=1e-6)


SHARES = np.array([0.1, 0.4, 0.2, 0.0, 0.3], np.float32)


class Weighted(Selector):
    """Selects a repeated client, with unequal weights."""

    def select(self, key, state, context):
        return Cohort(jnp.array([1, 2, 1, 4, 5]), jnp.asarray(SHARES)), state, {}


class Stored(aggregators.Mean):
    """The mean, with the results that it aggregates as state."""

    def init(self, context):
        zeros = jax.tree.map(lambda leaf: jnp.zeros((5, *leaf.shape)), context.variables)
        return zeros, context.variables

    def aggregate(self, state, cohort, results, context):
        update, _, aggregation = super().aggregate((), cohort, results, context)
        return update, (results.update, results.weighted_sum), aggregation


def test_streamed_sums_equal_sums_of_stored_updates_for_all_clients_per_batch(model, federation):
    expected = None
    for clients_per_batch in (None, 2, 3, 5):  # None is 1 here, and 4 makes batches of 3.
        settings = {"aggregator": Stored("selector"), "clients_per_batch": clients_per_batch}
        round = make(model, Weighted(), **settings)
        start = init(round, federation)
        after, info = step(round, start, federation)
        updates, weighted_sum = after.aggregator
        if expected is None:
            expected = updates
            assert any(np.any(np.abs(leaf) > 1e-3) for leaf in jax.tree.leaves(expected))
        assert_close(updates, expected, rtol=1e-5, atol=1e-6)
        mean = jax.tree.map(lambda leaf: np.tensordot(SHARES, leaf, 1), expected)
        assert_close(weighted_sum, mean, rtol=1e-5, atol=1e-6)
        moved = jax.tree.map(np.subtract, after.variables, start.variables)
        assert_close(moved, mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(info.weights, SHARES)
        assert after.participation.tolist() == [0, 2, 1, 0, 1, 1]


def test_streamed_updates_are_not_stored(federation):
    model = linear_model(3000)
    sizes = jax.tree.map(lambda leaf: leaf.nbytes, model.init(jax.random.key(0), jnp.ones((1, 2))))
    model_bytes = sum(jax.tree.leaves(sizes))

    def temporary_bytes(aggregator, cohort_size):
        clients = [slot % federation.num_clients for slot in range(cohort_size)]
        round = make(model, fixed(*clients), aggregator=aggregator, clients_per_batch=1)
        start = jax.eval_shape(round.init, jax.random.key(0), federation)
        compiled = jax.jit(round.step).lower(start, federation).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def models_per_client(aggregator):
        return (temporary_bytes(aggregator, 60) - temporary_bytes(aggregator, 10)) / model_bytes

    assert models_per_client(aggregators.Mean()) < 1
    assert models_per_client(aggregators.QFedAvg(0.0, learning_rate=0.1)) > 49


def test_permuting_client_ids_permutes_outputs(model, federation):
    new_to_old = np.array([4, 2, 0, 5, 1, 3])
    train, test = (
        examples._replace(offsets=examples.offsets[new_to_old], sizes=examples.sizes[new_to_old])
        for examples in (federation.train, federation.test)
    )
    permuted = federation._replace(train=train, test=test)
    # With full-batch steps no random number depends on a client's id.
    round = make(model, selectors.Uniform(6), solvers.SGD(0.3, LARGE, steps=3))
    before, info = rounds_of(round, federation)
    after, info_permuted = rounds_of(round, permuted)
    assert_close(after.variables, before.variables, rtol=1e-5, atol=1e-6)
    by_client = np.asarray(info.loss)[0][np.argsort(info.clients[0])]
    by_client_permuted = np.asarray(info_permuted.loss)[0][np.argsort(info_permuted.clients[0])]
    np.testing.assert_allclose(by_client_permuted, by_client[new_to_old], rtol=1e-5)


def test_equal_seeds_give_equal_results(model, federation):
    first, second = (rounds_of(make(model), federation, seed=5) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first[1], second[1])
    jax.tree.map(np.testing.assert_array_equal, first[0].variables, second[0].variables)


def test_cohorts_depend_on_the_seed(model, federation):
    _, first = rounds_of(make(model), federation, seed=0)
    _, second = rounds_of(make(model), federation, seed=1)
    assert not np.array_equal(first.clients, second.clients)


def test_minibatches_depend_on_the_seed(model, federation):
    """Compares one client at one initial model, so that only minibatches differ."""
    round = make(model, fixed(5), solvers.SGD(0.1, 2, steps=2))
    state = init(round, federation)
    _, first = step(round, state, federation)
    _, second = step(round, state._replace(key=jax.random.key(1)), federation)
    assert float(first.loss[0]) != float(second.loss[0])


def test_minibatches_depend_on_client_and_round(federation, model):
    """Gives all clients equal data, so that losses differ only through keys."""
    train = federation.train
    same = federation._replace(
        train=train._replace(
            offsets=np.zeros_like(train.offsets), sizes=np.full_like(train.sizes, 30)
        )
    )
    round = make(model, selectors.Uniform(6), solvers.SGD(0.0, 2, steps=1))
    _, info = rounds_of(round, same, num_rounds=4)
    assert len(np.unique(info.loss)) > 12  # of 24; a few coincide by drawing the same pair


def test_a_repeated_client_trains_independently(model, federation):
    round = make(model, fixed(5, 5, 5), solvers.SGD(0.1, 2, steps=2))
    _, info = rounds_of(round, federation, num_rounds=4)
    assert len(set(info.loss[0].tolist())) == 3


def test_a_client_does_not_depend_on_the_rest_of_the_cohort(model, federation):
    _, alone = rounds_of(make(model, fixed(2)), federation, num_rounds=1)
    _, among = rounds_of(make(model, fixed(4, 2, 5, 4)), federation, num_rounds=1)
    np.testing.assert_allclose(among.loss[0][1], alone.loss[0][0], rtol=1e-6)


def test_cohorts_do_not_depend_on_the_solver(model, federation):
    _, random = rounds_of(make(model), federation)
    _, deterministic = rounds_of(make(model, solver=Scaling()), federation)
    np.testing.assert_array_equal(random.clients, deterministic.clients)


def test_rounds_in_two_runs_equal_rounds_in_one(model, federation):
    round = make(model)
    half, first = rounds_of(round, federation)
    resumed, second = jax.jit(run, static_argnums=3)(round, half, federation, 3)
    uninterrupted, info = rounds_of(round, federation, num_rounds=6)
    jax.tree.map(np.testing.assert_array_equal, resumed.variables, uninterrupted.variables)
    np.testing.assert_array_equal(jnp.concatenate([first.clients, second.clients]), info.clients)
    assert int(resumed.round) == 6


class Normalized(Tree):
    """A linear classifier of inputs minus their mean, of which it keeps a running average."""

    linear: Model

    def init(self, key, x):
        params, _ = self.linear.init(key, x)
        return Variables(params, {"mean": jnp.zeros(x.shape[1:])})

    def apply(self, params, state, x, *, train, key, example_mask=None):
        where = None if example_mask is None else example_mask[:, None]
        mean = jnp.mean(x, axis=0, where=where) if train else state["mean"]
        outputs, _ = self.linear.apply(params, {}, x - mean[None], train=train, key=key)
        return outputs, {"mean": (state["mean"] + mean) / 2}


def test_statistics_are_averaged_with_the_parameters(model, federation):
    normalized = Normalized(model)
    model = Model.from_functions(normalized.init, normalized.apply, model.features)
    solver = solvers.SGD(0.1, 4, steps=3)
    round = make(model, fixed(1, 2), solver, aggregators.Mean("num_examples"))
    state = init(round, federation)
    after, _ = step(round, state, federation)

    train = jax.tree.map(jnp.asarray, federation.train)
    key = derive_key(state.key, Purpose.SOLVE)

    def trained(client):
        participant = Client(
            model, train, train.offsets[client], train.sizes[client], jnp.int32(0), {}, client
        )
        key_client = jax.random.fold_in(jax.random.fold_in(key, client), 0)
        result = solver.solve(key_client, state.variables, participant)
        return jax.tree.map(jnp.add, state.variables, result.update)

    share = train.sizes[1] / (train.sizes[1] + train.sizes[2])
    first, second = map(jax.jit(trained), jnp.arange(1, 3))
    expected = jax.tree.map(lambda one, two: share * one + (1 - share) * two, first, second)
    assert jax.tree.leaves(after.variables.state)
    assert_close(after.variables, expected, rtol=1e-5, atol=1e-6)


def test_dropout_differs_between_clients_steps_and_rounds(model, federation):
    """Uses equal examples and a step size of zero, so that losses differ only by dropout."""

    def apply(params, state, x, *, train, key):
        if train:
            x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)
        return model.apply(params, state, x, train=train, key=key)

    round = make(
        Model.from_functions(model.init, apply, model.features),
        selectors.Uniform(6),
        solvers.SGD(0.0, 16, epochs=1),
    )
    train = federation.train
    same = train._replace(
        features=np.ones_like(train.features),
        labels=np.zeros_like(train.labels),
        offsets=np.zeros_like(train.offsets),
    )

    def losses(steps):
        data = same._replace(sizes=np.full_like(train.sizes, 16 * steps))
        _, info = rounds_of(round, federation._replace(train=data), num_rounds=2)
        assert (info.steps == steps).all()
        return np.asarray(info.loss)

    one = losses(1)
    assert len(np.unique(one)) == 12
    assert not np.any(np.isclose(one, losses(2), rtol=1e-6))  # the second step is not the first


def test_participation_counts_slots(model, federation):
    round = make(model, fixed(1, 1, 3), solvers.SGD(0.1, 2, steps=2))
    state, _ = rounds_of(round, federation, num_rounds=4)
    assert state.participation.tolist() == [0, 8, 0, 4, 0, 0]


def test_an_update_that_is_not_finite_is_not_applied(model, federation):
    round = make(model, solver=solvers.SGD(1e30, 2, steps=4, weight_decay=1e20))
    state = init(round, federation)
    after, info = step(round, state, federation)
    assert not bool(info.finite)
    jax.tree.map(np.testing.assert_array_equal, after.variables, state.variables)


def test_context_measures_the_current_model(model, federation):
    measuring = Selector.from_functions(
        init=lambda context: (jnp.zeros(6), jnp.zeros(6)),
        select=lambda key, state, context: (
            Cohort(jnp.arange(2), jnp.full(2, 0.5)),
            (context.losses(context.variables), context.accuracies(context.variables)),
            {},
        ),
        observe=lambda state, cohort, results, context: state,
    )
    round = make(model, measuring)
    before, _ = rounds_of(round, federation, num_rounds=2)
    after, _ = step(round, before, federation)
    expected = client_performance(model, before.variables, federation.train)
    assert_close(after.selector, (expected.loss, expected.accuracy), rtol=1e-6)


@pytest.mark.parametrize(
    ("platform", "devices", "steps", "model_bytes", "expected"),
    [
        ("cpu", 1, {"steps": 1}, 2**20, 8),
        ("cpu", 1, {"steps": 1}, 2**10, 16),
        ("cpu", 1, {"steps": 1}, 2**25, 1),
        ("cpu", 1, {"epochs": 1}, 2**10, 1),
        ("cpu", 2, {"steps": 1}, 2**17, 2),
        ("gpu", 1, {"steps": 1}, 2**24, 100),
        ("gpu", 1, {"steps": 1}, 2**25, 1),
        ("tpu", 1, {"steps": 1}, 2**20, 8),
        ("tpu", 1, {"epochs": 1}, 2**20, 8),
        ("tpu", 1, {"steps": 1}, 2**10, 100),
        ("tpu", 1, {"steps": 1}, 2**26, 1),
    ],
)
def test_default_clients_per_batch(platform, devices, steps, model_bytes, expected):
    solver = solvers.SGD(0.1, 2, **steps)
    with target.tracing_for(platform, devices):
        chosen = default_clients_per_batch(solver, model_bytes, 100)
    assert min(chosen, 100) == expected


@pytest.mark.parametrize("clients_per_batch", [0, -1])
def test_bad_clients_per_batch_is_named(model, clients_per_batch):
    with pytest.raises(ValueError, match="clients_per_batch"):
        make(model, clients_per_batch=clients_per_batch)


def test_client_means_at_trained_models_equal_a_loop(model, federation):
    start = model.init(jax.random.key(3), federation.train.features[:1])
    context = make_context(model, jnp.int32(0), start, jax.tree.map(jnp.asarray, federation))
    clients = jnp.array([4, 1, 4])
    draws = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), (3, *leaf.shape)), start)

    def metric_fn(variables, features, labels):
        logits, _ = model.apply(*variables, features, train=False, key=None)
        return {"logits": logits, "hits": (logits.argmax(-1) == labels).astype(jnp.float32)}

    trained = context.client_means(metric_fn, clients, draws)
    shared = context.client_means(metric_fn, clients)
    train = federation.train
    for slot, client in enumerate(clients.tolist()):
        rows = train.order[train.offsets[client] :][: train.sizes[client]]
        features, labels = jnp.asarray(train.features[rows]), jnp.asarray(train.labels[rows])
        moved = jax.tree.map(lambda leaf, change, slot=slot: leaf + change[slot], start, draws)
        for variables, means in ((moved, trained), (start, shared)):
            expected = jax.tree.map(
                lambda leaf: leaf.mean(axis=0), metric_fn(variables, features, labels)
            )
            actual = jax.tree.map(lambda leaf, slot=slot: leaf[slot], means)
            chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_instructions_of_the_aggregator_reach_the_solver(model, federation):
    class Preparing(aggregators.Mean):
        def prepare(self, state, cohort, context):
            instructions = {"loss_weight": jnp.array([0.0, 1.0]), "snapshot_step": jnp.ones(2, int)}
            return cohort._replace(instructions=instructions)

        def init(self, context):
            zeros = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), context.variables)
            return {"update": zeros, "snapshot": zeros}

        def aggregate(self, state, cohort, results, context):
            update, _, aggregation = super().aggregate((), cohort, results, context)
            seen = {"update": results.update, "snapshot": results.sends["snapshot"]}
            return update, seen, aggregation

    round = make(model, fixed(1, 2), solvers.SGD(0.1, LARGE, steps=2), Preparing())
    start = init(round, federation)
    seen = step(round, start, federation)[0].aggregator
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], seen["update"].params) for i in (0, 1))
    chex.assert_trees_all_equal(first, jax.tree.map(jnp.zeros_like, first))
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(second))
    assert all(
        jnp.any(leaf[1] != other[1])
        for leaf, other in zip(
            jax.tree.leaves(seen["snapshot"].params),
            jax.tree.leaves(seen["update"].params),
            strict=True,
        )
    )
