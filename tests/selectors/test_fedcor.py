"""FedCor: its greedy choice and likelihood against NumPy, and what it observes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation

from fedjax_fair import selectors
from fedjax_fair.selectors.fedcor import ExpectedDecrease, log_likelihood
from fedjax_fair.submodular import greedy

SIZES = (3, 8, 5, 1, 6, 9)
SHARES = np.array(SIZES) / sum(SIZES)
TRAIN = make_federation(sizes=SIZES).train
RNG = np.random.default_rng(0)
NOISE = 1e-4


@jax.jit
def chosen(embeddings, annealing, shares):
    function = ExpectedDecrease(embeddings, shares, annealing, 4)
    items = greedy(function, 4).items
    memo = function.init()
    for item in items[:2]:
        memo = function.add(memo, item)
    return items, memo


def choose(embeddings, annealing=None, shares=SHARES):
    annealing = np.ones(6) if annealing is None else annealing
    return chosen(*(jnp.asarray(value, jnp.float32) for value in (embeddings, annealing, shares)))


def numpy_choose(embeddings, annealing, count):
    covariance = embeddings.T @ embeddings + NOISE * np.eye(6)
    items, covariances = [], []
    for _ in range(count):
        gains = annealing * (SHARES @ covariance) / np.sqrt(np.diagonal(covariance))
        gains[items] = -np.inf
        k = int(gains.argmax())
        items.append(k)
        column = covariance[:, k]
        covariance = covariance - np.outer(column, column) / column[k]
        np.fill_diagonal(covariance, np.maximum(np.diagonal(covariance), 1e-12))
        covariances.append(covariance)
    return items, covariances


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_equals_numpy(seed):
    rng = np.random.default_rng(seed)
    embeddings, annealing = 0.3 * rng.normal(size=(3, 6)), rng.uniform(0.5, 1, 6)
    items, memo = choose(embeddings, annealing)
    expected, covariances = numpy_choose(embeddings, annealing, 4)
    assert items.tolist() == expected
    np.testing.assert_allclose(memo.covariance, SHARES @ covariances[1], atol=2e-6)


def test_independent_clients_are_chosen_by_their_shares_of_the_data():
    items, _ = choose(np.zeros((15, 6)))
    assert items.tolist() == np.argsort(-SHARES)[:4].tolist()


def test_nothing_remains_of_a_selected_client():
    embeddings = 0.3 * RNG.normal(size=(3, 6))
    items, memo = choose(embeddings)
    remaining = embeddings.T @ embeddings + NOISE * np.eye(6) - memo.rows.T @ memo.rows
    np.testing.assert_allclose(remaining[items[:2]], 0, atol=1e-6)
    np.testing.assert_allclose(memo.covariance[items[:2]], 0, atol=1e-6)
    rest = np.setdiff1d(np.arange(6), items[:2])
    np.testing.assert_allclose(np.diagonal(remaining)[rest], memo.variance[rest], atol=1e-6)


def test_the_second_of_two_perfectly_correlated_clients_comes_last():
    embeddings = np.zeros((3, 6))
    # Clients 5 and 1 are twins of the largest shares; others are independent and as variable.
    embeddings[0, [5, 1]] = embeddings[1, 2] = embeddings[2, 4] = 1.0
    items, _ = choose(embeddings, shares=np.array([0, 0.3, 0.2, 0, 0.1, 0.4]))
    assert items[:3].tolist() == [5, 2, 4]


def test_the_value_of_a_set_is_the_sum_of_its_gains():
    embeddings = 0.3 * RNG.normal(size=(3, 6))

    @jax.jit
    def values(embeddings):
        function = ExpectedDecrease(embeddings, jnp.float32(SHARES), jnp.ones(6), 4)
        memo = function.init()
        first, memo = function.gain(memo, 1), function.add(memo, 1)
        return function.value(jnp.zeros(6, bool).at[jnp.array([1, 4])].set(True)), first, memo

    value, first, memo = values(jnp.float32(embeddings))
    second = memo.covariance[4] / np.sqrt(memo.variance[4])
    np.testing.assert_allclose(value, first + second, rtol=1e-5)


def test_the_likelihood_is_that_of_the_gaussian():
    embeddings, changes = 0.1 * RNG.normal(size=(3, 6)), 0.1 * RNG.normal(size=(4, 6))
    weights = np.array([1.0, 0.5, 0.0, 0.25])
    covariance = embeddings.T @ embeddings + NOISE * np.eye(6)
    squares = np.einsum("hi,ij,hj->h", changes, np.linalg.inv(covariance), changes)
    expected = -0.5 * (np.average(squares, weights=weights) + np.linalg.slogdet(covariance)[1]) / 6
    arguments = (jnp.asarray(value, jnp.float32) for value in (embeddings, changes, weights))
    np.testing.assert_allclose(jax.jit(log_likelihood)(*arguments), expected, rtol=1e-4)


def rounds_of(selector, losses):
    """States and cohorts of rounds whose losses are given."""

    @jax.jit
    def run(selector, losses):
        def step(state, row):
            round, losses = row
            context = make_context(TRAIN, losses=losses)._replace(round=round)
            key = jax.random.fold_in(jax.random.key(3), round)
            cohort, state, info = selector.select(key, state, context)
            return state, (cohort.clients, state, info)

        start = selector.init(make_context(TRAIN))
        rows = jnp.arange(losses.shape[0], dtype=jnp.int32), losses
        return jax.lax.scan(step, start, rows)[1]

    return jax.device_get(run(selector, jnp.asarray(losses, jnp.float32)))


def test_uniform_rounds_are_observed_and_others_are_annealed():
    losses = RNG.normal(size=(9, 6))
    losses[2] = losses[1]  # Nothing happened in round 1.
    selector = selectors.FedCor(2, warmup=3, interval=3, annealing=0.5, history_length=2)
    clients, states, info = rounds_of(selector, losses)
    # Rounds 0 to 2, 5 and 8 are uniform.
    assert info["is_uniform"].tolist() == [1, 1, 1, 0, 0, 1, 0, 0, 1]
    assert states.num_changes.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert states.rounds[-1].tolist() == [6, 3]  # The third one replaced the first one.
    changes = np.stack([losses[6] - losses[5], losses[3] - losses[2]])
    np.testing.assert_allclose(states.changes[-1], changes, atol=1e-6)
    fitted = np.flatnonzero(np.diff(states.embeddings, axis=0).any(axis=(1, 2))) + 1
    assert fitted.tolist() == [3, 6]
    expected = np.ones(6)
    for round in range(9):
        if round in (3, 6):
            expected[:] = 1
        if not info["is_uniform"][round]:
            expected[clients[round]] *= 0.5
            items, _ = numpy_choose(
                states.embeddings[round].astype(np.float64),
                np.ones(6) if round in (3, 6) else states.annealing[round - 1], 2,
            )  # fmt: skip
            assert clients[round].tolist() == items
        np.testing.assert_allclose(states.annealing[round], expected)


def test_a_fit_finds_clients_whose_losses_change_together():
    rng = np.random.default_rng(1)
    common = rng.normal(size=(30, 3))
    changes = 0.2 * common[:, [0, 0, 0, 1, 1, 2]] + 0.01 * rng.normal(size=(30, 6))
    losses = np.cumsum(changes, axis=0)
    selector = selectors.FedCor(2, warmup=29, history_discount=1.0, history_length=29)
    _, states, info = rounds_of(selector, losses)
    embeddings = states.embeddings[-1]
    covariance = embeddings.T @ embeddings
    scale = np.sqrt(np.diagonal(covariance))
    correlation = covariance / np.outer(scale, scale)
    together = np.equal.outer([0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 2])
    assert correlation[together].min() > 0.95
    assert abs(correlation[~together]).max() < 0.6
    drawn = log_likelihood(
        jnp.asarray(states.embeddings[0]), jnp.float32(states.changes[-1]),
        jnp.float32(states.rounds[-1] >= 0),
    )  # fmt: skip
    assert info["log_likelihood"][-1] > drawn + 1


def test_a_fit_weights_observations_by_their_age():
    losses = np.cumsum(0.1 * np.random.default_rng(2).normal(size=(7, 6)), axis=0)
    selector = selectors.FedCor(2, warmup=6, history_discount=0.5, history_length=6)
    _, states, info = rounds_of(selector, losses)
    assert states.rounds[-1].tolist() == [1, 2, 3, 4, 5, 6]
    embeddings, changes = (jnp.asarray(one[-1]) for one in (states.embeddings, states.changes))
    expected, without = (
        log_likelihood(embeddings, changes, jnp.float32(discount ** np.arange(5.0, -1, -1)))
        for discount in (0.5, 1.0)
    )
    np.testing.assert_allclose(info["log_likelihood"][-1], expected, rtol=1e-4)
    assert abs(expected - without) > 0.01 * abs(expected)
