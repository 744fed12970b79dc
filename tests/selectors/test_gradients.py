"""What selectors know of clients, and how old it is."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_context, make_federation

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.roles import ClientGradients, Cohort, LocalResult, Selector, Variables
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.selectors.gradients import Fresh, LastLayer, RefreshEvery, Stale, Updates

KEY, SOLVER = jax.random.key(3), solvers.SGD(0.5, 2, steps=3)
DATA, WHOLE = make_federation(), make_federation(sizes=(4, 4, 4, 4, 4, 4))
"""Clients of many sizes, and clients whose examples are one batch."""


def remembering(source):
    """Reads a source in every round and logs what was read; takes clients in turn."""

    def init(context):
        known, _ = source.read(source.init(context), context)
        log = jax.tree.map(lambda leaf: jnp.zeros((8, *leaf.shape)), known)
        return source.init(context), log

    def select(key, state, context):
        memory, log = state
        known, memory = source.read(memory, context)
        log = jax.tree.map(lambda kept, leaf: kept.at[context.round].set(leaf), log, known)
        clients = (2 * context.round + jnp.arange(2, dtype=jnp.int32)) % context.num_clients
        cohort = Cohort(clients, jnp.full(2, 0.5))
        return cohort, (memory, log), {}

    def observe(state, cohort, results, context):
        return source.observe(state[0], cohort, results, context), state[1]

    return Selector.from_functions(select, init, observe)


@cache
def known_by_round(source, whole=False):
    """Losses and gradients that a source returned in each of four rounds."""
    data, solver = (WHOLE, solvers.SGD(0.5, 4, steps=1)) if whole else (DATA, SOLVER)
    round = Round(linear_model(), remembering(source), solver, aggregators.Mean())
    rounds = jax.jit(lambda key: run(round, round.init(key, data), data, 4)[0].selector[1])
    return jax.tree.map(lambda leaf: np.asarray(leaf[:4]), rounds(KEY))


@pytest.fixture
def truth():
    """Losses and gradients of all clients at the start of every round."""
    return known_by_round(Fresh())


def test_fresh_information_is_that_of_the_current_model(truth):
    assert not np.allclose(truth.gradient[0], truth.gradient[1])
    round = Round(linear_model(), selectors.RoundRobin(2), SOLVER, aggregators.Mean())

    @jax.jit
    def gradients_after_a_round(key):
        state, _ = run(round, round.init(key, DATA), DATA, 1)
        return client_gradients(linear_model(), state.variables, DATA.train)

    expected = gradients_after_a_round(KEY)
    np.testing.assert_allclose(truth.loss[1], expected.loss, rtol=1e-5)
    np.testing.assert_allclose(truth.gradient[1], expected.gradient, rtol=1e-4, atol=1e-6)


def expected_ages(rounds, refresh=lambda round: False):
    """In which round each client was last refreshed, as of each round."""
    ages, current = [], np.zeros(6, int)
    for round in range(rounds):
        if refresh(round):
            current[:] = round
        ages.append(current.copy())
        current[[(2 * round) % 6, (2 * round + 1) % 6]] = round
    return np.array(ages)


@pytest.mark.parametrize(
    ("source", "refresh"),
    [(Stale(), lambda round: False), (RefreshEvery(2), lambda round: round % 2 == 0)],
)
def test_remembered_information_is_as_old_as_they_should_be(truth, source, refresh):
    known = known_by_round(source)
    ages = expected_ages(4, refresh)
    clients = np.arange(6)
    close = {"rtol": 1e-4, "atol": 1e-6}
    for round in range(4):
        np.testing.assert_allclose(known.loss[round], truth.loss[ages[round], clients], **close)
        np.testing.assert_allclose(
            known.gradient[round], truth.gradient[ages[round], clients], **close
        )


def test_updates_that_are_not_finite_are_masked():
    params = {"bias": np.float32([[1, 1, 1], [1, np.inf, 1]]), "kernel": np.ones((2, 4, 3))}
    results = LocalResult(Variables(params, {}), np.ones(2, np.float32), np.ones(2, np.int32))
    memory = ClientGradients(np.zeros(6, np.float32), np.ones((6, 15), np.float32))
    cohort = Cohort(np.array([4, 1]), np.full(2, 0.5, np.float32))
    context = make_context(DATA.train)
    observe = jax.jit(lambda *known: Updates(0.5).observe(*known, context))
    after = observe(memory, cohort, results)
    assert np.flatnonzero(np.isnan(after.loss)).tolist() == [1]
    assert not after.gradient[1].any()
    np.testing.assert_array_equal(after.gradient[4], np.full(15, -2.0))


def test_updates_stand_for_gradients():
    source = Updates(learning_rate=0.5)
    rng = np.random.default_rng(0)
    params = {"bias": rng.normal(size=3), "kernel": rng.normal(size=(4, 3))}
    results = LocalResult(
        Variables(jax.tree.map(lambda leaf: np.float32([leaf, 2 * leaf]), params), {}),
        loss=np.float32([0.25, 0.5]),
        steps=np.array([2, 4], np.int32),
    )
    memory = ClientGradients(np.zeros(6, np.float32), np.zeros((6, 15), np.float32))
    cohort = Cohort(np.array([4, 1]), np.full(2, 0.5, np.float32))
    context = make_context(DATA.train)
    after = jax.jit(lambda *known: source.observe(*known, context))(memory, cohort, results)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    np.testing.assert_allclose(after.gradient[4], -flat / (0.5 * 2), rtol=1e-6)
    np.testing.assert_allclose(after.gradient[1], -2 * flat / (0.5 * 4), rtol=1e-6)
    assert after.loss.tolist() == [0, 0.5, 0, 0, 0.25, 0]
    # At first these are the gradients. One full-batch step is the gradient itself.
    exact, known = known_by_round(Fresh(), whole=True), known_by_round(source, whole=True)
    np.testing.assert_allclose(known.gradient[0], exact.gradient[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(known.gradient[1][:2], exact.gradient[0][:2], rtol=1e-3, atol=1e-5)


def test_only_the_last_layer_is_kept():
    variables = jax.jit(linear_model().init)(KEY, DATA.train.features[:1])

    def gradients(variables, clients, project):
        return client_gradients(linear_model(), variables, DATA.train, clients, project=project)

    @jax.jit
    def read(variables):
        context = make_context(DATA.train, variables)._replace(gradients=gradients)
        sources = Fresh(project=LastLayer("bias")), Fresh()
        return [source.read((), context)[0].gradient for source in sources]

    biases, complete = read(variables)
    assert biases.shape == (6, 3)
    np.testing.assert_allclose(biases, complete[:, :3], rtol=1e-5)
    with pytest.raises(ValueError, match="name='head'"):
        LastLayer()(variables.params)
