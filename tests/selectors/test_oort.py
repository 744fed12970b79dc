"""Oort: scores and draws against NumPy, the pacer, and the number of clients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation

from fedjax_fair import selectors
from fedjax_fair.roles import Cohort, LocalResult, Timing

SIZES = (3, 8, 5, 1, 6, 9)
TRAIN = make_federation(sizes=SIZES).train
KEY = jax.random.key(0)
DRAWS = 4000


def context_of(round):
    return make_context(TRAIN, round=round)


def state_of(selector, **fields):
    state = selector.init(context_of(0))
    return state._replace(**{
        name: jnp.asarray(value, getattr(state, name).dtype) for name, value in fields.items()
    })  # fmt: skip


@partial(jax.jit, static_argnames="draws")
def selected(selector, state, round, available, draws):
    keys = jax.random.split(KEY, draws)
    context = make_context(TRAIN)._replace(round=round, available=available)
    return jax.vmap(lambda key: selector.select(key, state, context))(keys)


def draw(selector, state, round=4, draws=DRAWS, available=None):
    cohort, after, info = selected(selector, state, jnp.int32(round), available, draws)
    return np.asarray(cohort.clients), after, info


def assert_probabilities(counts, draws, probabilities):
    """Counts are within five standard errors."""
    probabilities = np.asarray(probabilities)
    errors = np.sqrt(probabilities * (1 - probabilities) / draws)
    assert (abs(counts / draws - probabilities) <= 5 * errors + 1e-12).all()


def numpy_scores(utility, duration, last_round, round, quantile, alpha):
    clipped = np.minimum(utility, np.quantile(utility, 0.95))
    scores = (clipped - clipped.min()) / np.ptp(clipped)
    scores = scores + np.sqrt(0.1 * np.log(round + 1) / last_round)
    preferred = np.quantile(duration, quantile)
    return scores * np.where(duration > preferred, (preferred / duration) ** alpha, 1)


UTILITY = np.array([5.0, 1.0, 9.0, 3.0, 90.0, 2.0])
DURATION = np.array([4.0, 1.0, 2.0, 8.0, 3.0, 2.0])
LAST_ROUND = np.array([1, 4, 2, 3, 4, 1])


def test_exploited_clients_are_drawn_by_score_among_those_above_the_cutoff():
    selector = selectors.Oort(
        2, exploration=0.0, min_exploration=0.0, duration_quantile=0.5, duration_penalty=0.5
    )
    state = state_of(selector, utility=UTILITY, duration=DURATION, last_round=LAST_ROUND)
    scores = numpy_scores(UTILITY, DURATION, LAST_ROUND, 4, 0.5, 0.5)
    cohorts, _, info = draw(selector, state)
    np.testing.assert_allclose(info["preferred_duration"], np.median(DURATION), rtol=1e-6)
    assert not info["explored"].any()
    assert set(cohorts.ravel()) == set(np.flatnonzero(scores >= 0.95 * np.sort(scores)[-2]))
    # All scores from 95% of the second highest one on are drawn, not only the two highest.
    close = np.array([5.0, 4.99, 5.0, 4.98, 5.0, 1.0])
    close_state = state._replace(
        utility=jnp.asarray(close, jnp.float32),
        duration=jnp.ones(6),
        last_round=jnp.ones(6, jnp.int32),
    )
    scores = numpy_scores(close, np.ones(6), np.ones(6), 4, 0.5, 0.5)
    order = np.flatnonzero(scores >= 0.95 * np.sort(scores)[-2])
    assert len(order) == 5
    cohorts, _, _ = draw(selector, close_state)
    share = scores[order] / scores[order].sum()
    pairs = share[:, None] * share[None, :] / (1 - share[:, None])
    np.fill_diagonal(pairs, 0)
    included = pairs.sum(axis=1) + pairs.sum(axis=0)
    counts = np.bincount(cohorts.ravel(), minlength=6)
    assert_probabilities(counts[order], DRAWS, included)


def test_equal_clients_are_drawn_uniformly():
    selector = selectors.Oort(2, exploration=0.0, min_exploration=0.0)
    same = {"utility": np.full(6, 7.0), "duration": np.full(6, 3), "last_round": np.full(6, 2)}
    cohorts, _, _ = draw(selector, state_of(selector, **same))
    pairs = np.zeros((6, 6))
    np.add.at(pairs, tuple(np.sort(cohorts, axis=1).T), 1)
    possible = np.triu(np.ones((6, 6), bool), 1)
    assert pairs[~possible].sum() == 0
    assert_probabilities(pairs[possible], DRAWS, np.full(15, 1 / 15))


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_slow_clients_have_a_score_reduced_by_a_power(alpha):
    selector = selectors.Oort(2, duration_quantile=0.5, duration_penalty=alpha)
    state = state_of(selector, utility=UTILITY, duration=DURATION, last_round=LAST_ROUND)
    everyone = jnp.ones(6, bool)

    def scores(selector, state):
        return selector._scores(state, everyone, everyone, context_of(4))[0]

    compiled = jax.jit(scores)
    slowed = compiled(selector, state)
    full = compiled(selector, state._replace(quantile=jnp.ones(())))
    np.testing.assert_allclose(
        full, numpy_scores(UTILITY, DURATION, LAST_ROUND, 4, 1.0, alpha), rtol=2e-6
    )
    ratio = np.where(DURATION > 2.5, (2.5 / DURATION) ** alpha, 1)
    np.testing.assert_allclose(slowed / full, ratio, rtol=1e-6)


def test_new_clients_take_their_share_of_the_slots_in_proportion_to_size():
    selector = selectors.Oort(4, exploration=0.55, exploration_decay=1.0)
    state = state_of(
        selector, utility=[1.0, 0, 1.0, 0, 0, 1.0], duration=[1] * 6, last_round=[1, 0, 1, 0, 0, 1]
    )
    cohorts, after, info = draw(selector, state)
    np.testing.assert_array_equal(info["explored"], 2)
    is_new = np.isin(cohorts, [1, 3, 4])
    np.testing.assert_array_equal(is_new.sum(axis=1), 2)
    np.testing.assert_array_equal(np.sum(after.num_selected, axis=1), 4)
    share = np.array([8, 1, 6]) / 15
    pairs = share[:, None] * share[None, :] / (1 - share[:, None])
    np.fill_diagonal(pairs, 0)
    counts = np.bincount(cohorts[is_new], minlength=6)[[1, 3, 4]]
    assert_probabilities(counts, DRAWS, pairs.sum(axis=1) + pairs.sum(axis=0))


def test_exploration_decays_to_its_minimum():
    selector = selectors.Oort(5, exploration=0.8, exploration_decay=0.5, min_exploration=0.2)
    known = state_of(selector, last_round=[1, 1, 1, 1, 1, 0])
    none = state_of(selector)
    for round, expected in ((0, 2), (1, 1), (9, 1)):
        # With one new client, the others fill its slots, and the reverse.
        *_, info = draw(selector, known, round, draws=1)
        assert info["explored"] == min(1, expected)
        *_, info = draw(selector, none, round, draws=1)
        assert info["explored"] == 5
    half = state_of(selector, last_round=[1, 0, 1, 1, 0, 1])
    explored = [int(draw(selector, half, at, draws=1)[2]["explored"][0]) for at in (0, 1, 9)]
    assert explored == [2, 1, 1]


def test_cohorts_have_distinct_clients_whatever_is_known():
    rng = np.random.default_rng(0)
    selector = selectors.Oort(4, max_selections=2)
    for _ in range(12):
        available = rng.random(6) < 0.6
        state = state_of(
            selector,
            utility=rng.choice([0.0, 1.0, 5.0], 6),
            duration=rng.integers(0, 3, 6),
            last_round=rng.integers(0, 3, 6),
            num_selected=rng.integers(0, 5, 6),
        )
        cohorts, _, _ = draw(selector, state, draws=30, available=available)
        excluded = np.asarray(state.num_selected) > 2
        # First those that are available and not excluded, then others that are available.
        first = available & ~excluded
        for cohort in cohorts:
            assert len(set(cohort)) == 4
            assert available[cohort].sum() == min(4, available.sum())
            assert first[cohort].sum() == min(4, first.sum())


@pytest.mark.parametrize("window", [1, 2])
def test_responders_are_stored_and_the_pacer_waits_for_slower_clients(window):
    selector = selectors.Oort(2, pacer_window=window, pacer_step=0.4)
    losses = np.array([[1.0, 2.0], [4.0, 3.0], [0.5, 0.1], [0.4, 0.3], [0.1, 0.2], [np.nan, 0.1]])
    responded = np.array([[1, 1], [1, 0], [1, 1], [0, 1], [1, 1], [1, 1]], bool)
    clients, steps = np.array([[0, 1], [2, 3], [1, 4], [5, 0], [2, 1], [3, 4]]), np.arange(1, 13)
    steps = steps.reshape(6, 2)

    @jax.jit
    def observe(selector, losses, responded, clients, steps):
        def step(state, row):
            round, loss, responded, clients, steps = row
            cohort = Cohort(clients, jnp.full(2, 0.5), responded=responded)
            context = context_of(0)._replace(round=round)
            state = selector.observe(state, cohort, LocalResult((), loss, steps), context)
            return state, state

        rows = jnp.arange(6, dtype=jnp.int32), losses, responded, clients, steps
        return jax.lax.scan(step, selector.init(context_of(0)), rows)[1]

    states = observe(selector, jnp.float32(losses), responded, jnp.int32(clients), jnp.int32(steps))
    utility, duration, last = np.zeros(6), np.zeros(6), np.zeros(6)
    quantile, sums = 0.3, []
    for round in range(6):
        total = 0.0
        for client, loss, step, arrived in zip(
            clients[round], losses[round], steps[round], responded[round], strict=True
        ):
            if arrived:
                utility[client] = SIZES[client] * np.nan_to_num(loss)
                duration[client], last[client] = step, round + 1
                total += utility[client]
        sums.append(total)
        if (round + 1) % window == 0 and round + 1 > window:
            recent = sum(sums[-window:])
            quantile = min(1, quantile + 0.4 * (recent < sum(sums[-2 * window : -window])))
        np.testing.assert_allclose(states.utility[round], utility, rtol=1e-6)
        np.testing.assert_allclose(states.quantile[round], quantile, rtol=1e-6)
        np.testing.assert_array_equal(states.duration[round], duration)
        np.testing.assert_array_equal(states.last_round[round], last)
    assert quantile > 0.3


def test_with_a_schedule_a_duration_is_the_time_of_the_task():
    selector = selectors.Oort(2, duration_quantile=0.0, duration_penalty=1.0)
    milliseconds = jnp.array([500, 250], jnp.int32)
    timing = Timing(jnp.zeros(2, jnp.int32), milliseconds)
    cohort = Cohort(jnp.array([4, 1]), jnp.full(2, 0.5), timing=timing)
    result = LocalResult((), jnp.ones(2), jnp.array([3, 70], jnp.int32))
    state = selector.observe(selector.init(context_of(0)), cohort, result, context_of(0))
    assert state.duration.tolist() == [0, 0.25, 0, 0, 0.5, 0]
    equal = state._replace(utility=jnp.ones(6))
    reported = state.last_round > 0
    scores, preferred = selector._scores(equal, reported, reported, context_of(3))
    assert preferred == 0.25
    np.testing.assert_allclose(scores[4], scores[1] / 2)
    assert scores[1] > 0
