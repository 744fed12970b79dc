"""What selectors know of clients, and how old it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.base import ClientGradients, Cohort, LocalResult, Selector, Variables
from fedjax_fair.client_evaluation import client_gradients
from fedjax_fair.selectors.gradients import Fresh, LastLayer, RefreshEvery, Stale, Updates
from fedjax_fair.simulate import Purpose, Round, derive_key, run


def rounds_with(model, data, selector, rounds=4):
    solver = solvers.SGD(0.5, 2, steps=3)
    round = Round(model, selector, solver, aggregators.Mean())
    return jax.jit(lambda key: run(round, round.init(key, data), data, rounds))(jax.random.key(3))


def remembering(source, watched):
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


def known_by_round(model, data, source, rounds=4):
    state, _ = rounds_with(model, data, remembering(source, data), rounds)
    return jax.tree.map(lambda leaf: np.asarray(leaf[:rounds]), state.selector[1])


@pytest.fixture
def truth(model, federation):
    """Losses and gradients of all clients at the start of every round."""
    return known_by_round(model, federation, Fresh())


def test_fresh_information_is_that_of_the_current_model(model, federation, truth):
    assert not np.allclose(truth.gradient[0], truth.gradient[1])
    start, _ = rounds_with(model, federation, selectors.RoundRobin(2), 1)
    measure = jax.jit(lambda variables: client_gradients(model, variables, federation.train))
    expected = measure(start.variables)
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
def test_remembered_information_is_as_old_as_they_should_be(
    model, federation, truth, source, refresh
):
    known = known_by_round(model, federation, source)
    ages = expected_ages(4, refresh)
    clients = np.arange(6)
    close = {"rtol": 1e-4, "atol": 1e-6}
    for round in range(4):
        np.testing.assert_allclose(known.loss[round], truth.loss[ages[round], clients], **close)
        np.testing.assert_allclose(
            known.gradient[round], truth.gradient[ages[round], clients], **close
        )


def test_updates_stand_for_gradients(model, federation, truth):
    source = Updates(learning_rate=0.5)
    known = known_by_round(model, federation, source, rounds=2)
    np.testing.assert_allclose(known.gradient[0], truth.gradient[0], rtol=1e-4, atol=1e-6)
    start = model.init(derive_key(jax.random.key(3), Purpose.INIT), federation.train.features[:1])
    results = LocalResult(
        Variables(jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), start.params), {}),
        loss=jnp.array([0.25, 0.5]),
        steps=jnp.array([2, 4], jnp.int32),
    )
    memory = ClientGradients(jnp.zeros(6), jnp.zeros((6, 15)))
    cohort = Cohort(jnp.array([4, 1]), jnp.full(2, 0.5))
    context = make_context(federation.train)
    after = source.observe(memory, cohort, results, context)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start.params)])
    np.testing.assert_allclose(after.gradient[4], -flat / (0.5 * 2), rtol=1e-6)
    np.testing.assert_allclose(after.gradient[1], -2 * flat / (0.5 * 4), rtol=1e-6)
    assert after.loss.tolist() == [0, 0.5, 0, 0, 0.25, 0]
    # One full-batch step is the gradient itself.
    whole = make_federation(sizes=(4, 4, 4, 4, 4, 4))
    full_batch = Round(
        model,
        remembering(source, whole),
        solvers.SGD(0.5, 4, steps=1),
        aggregators.Mean(),
    )
    start = full_batch.init(jax.random.key(3), whole)
    state, _ = jax.jit(lambda start: run(full_batch, start, whole, 2))(start)
    exact = known_by_round(model, whole, Fresh(), rounds=1)
    log = state.selector[1]
    np.testing.assert_allclose(log.gradient[1][:2], exact.gradient[0][:2], rtol=1e-3, atol=1e-5)


def test_only_the_last_layer_is_kept(model, federation):
    keep = Fresh(project=LastLayer("bias"))
    known = known_by_round(model, federation, keep, rounds=1)
    whole_gradients = known_by_round(model, federation, Fresh(), rounds=1)
    assert known.gradient.shape == (1, 6, 3)
    np.testing.assert_allclose(known.gradient, whole_gradients.gradient[..., :3], rtol=1e-5)
    with pytest.raises(ValueError, match="name='head': expected a layer of the model, bias, ker"):
        known_by_round(model, federation, Fresh(project=LastLayer()), rounds=1)
