"""Laws of the ways to choose clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation
from scipy.stats import chisquare

from fedjax_fair import selectors
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.roles import LocalResult
from fedjax_fair.submodular import Modular

SIZES = (3, 8, 5, 1, 6, 9)
KEY = jax.random.key(0)


def draw(selector, sizes=SIZES, draws=4000, context=None):
    context = context or make_context(make_federation(sizes=sizes).train)

    @jax.jit
    def select(key):
        state, keys = selector.init(context), jax.random.split(key, draws)
        return jax.vmap(lambda key: selector.select(key, state, context)[0].clients)(keys)

    return np.asarray(select(KEY))


def test_uniform_draws_distinct_clients():
    cohorts = draw(selectors.Uniform(4))
    assert all(len(set(cohort)) == 4 for cohort in cohorts.tolist())


@pytest.mark.parametrize("busy", [[], [0], [5], [0, 1, 4], [1, 2, 3, 4, 5], [*range(6)]], ids=str)
def test_ids_of_unavailable_clients_stand_for_the_mask(busy):
    context = make_context(make_federation(sizes=SIZES).train)
    mask = jnp.ones(6, bool).at[jnp.array(busy, jnp.int32)].set(False)
    ids = jnp.array(busy + [6] * (7 - len(busy)), jnp.int32)
    by_mask = context._replace(available=mask)
    for size in (2, 6):
        cohorts = [
            draw(selectors.Uniform(size), draws=50, context=each)
            for each in (by_mask, by_mask._replace(unavailable=ids))
        ]
        np.testing.assert_array_equal(*cohorts)


def test_uniform_draws_every_client_and_pair_equally_often():
    cohorts = draw(selectors.Uniform(2), draws=12_000)
    pairs = np.zeros((6, 6))
    np.add.at(pairs, tuple(cohorts.T), 1)
    assert chisquare(pairs[~np.eye(6, dtype=bool)]).pvalue > 1e-6


def test_uniform_takes_all_clients_if_the_cohort_is_as_large():
    assert sorted(draw(selectors.Uniform(6), draws=1)[0].tolist()) == list(range(6))


@pytest.mark.parametrize("available", [(0, 2, 3, 5), (4,)])
def test_uniform_draws_of_the_available_and_then_of_the_others_equally_often(available):
    """Law of ordered pairs: of available clients, or the one that is and any of the others."""
    mask = np.isin(np.arange(6), available)
    context = make_context(make_federation(sizes=SIZES).train)._replace(available=jnp.asarray(mask))
    cohorts = draw(selectors.Uniform(2), draws=6000, context=context)
    pairs = np.zeros((6, 6))
    np.add.at(pairs, tuple(cohorts.T), 1)
    both = np.outer(mask, mask) & ~np.eye(6, dtype=bool)
    possible = both if len(available) > 1 else np.outer(mask, ~mask)
    assert pairs[~possible].sum() == 0
    assert chisquare(pairs[possible]).pvalue > 1e-6


def test_uniform_draws_as_ever_if_all_are_available():
    context = make_context(make_federation(sizes=SIZES).train)
    cohorts = (
        draw(selectors.Uniform(4), draws=20, context=at)
        for at in (context, context._replace(available=jnp.ones(6, bool)))
    )
    np.testing.assert_array_equal(*cohorts)


def test_by_size_draws_in_proportion_to_examples():
    slots = draw(selectors.BySize(3)).ravel()
    counts = np.bincount(slots, minlength=6)
    expected = slots.size * np.array(SIZES) / sum(SIZES)
    assert chisquare(counts, expected).pvalue > 1e-6


def test_by_size_draws_slots_independently():
    first, second = draw(selectors.BySize(2), draws=40_000).T
    pairs = np.zeros((6, 6))
    np.add.at(pairs, (first, second), 1)
    shares = np.array(SIZES) / sum(SIZES)
    expected = first.size * np.outer(shares, shares)
    assert chisquare(pairs.ravel(), expected.ravel()).pvalue > 1e-6


def test_by_size_never_draws_a_client_without_examples():
    slots = draw(selectors.BySize(3), sizes=(0, 4, 0, 0, 2, 0))
    assert set(slots.ravel().tolist()) == {1, 4}


def losses_context(losses, round=1):
    examples = make_federation(sizes=(2,) * len(losses)).train
    return make_context(examples, losses=jnp.asarray(losses, jnp.float32), round=round)


def choose(selector, context, seeds=(0,)):
    """Cohorts and info of the first selection with each seed."""
    keys = jax.vmap(jax.random.key)(np.array(seeds))

    @jax.jit
    @jax.vmap
    def select(key):
        cohort, _, info = selector.select(key, selector.init(context), context)
        return cohort.clients, info

    clients, info = select(keys)
    return clients.tolist(), info


def test_power_of_choice_takes_the_highest_losses_of_all_clients():
    chosen, info = choose(selectors.PowerOfChoice(3, 6), losses_context([3, 9, 1, 7, 8, 2]))
    assert chosen == [[1, 4, 3]]
    assert info["pool_loss"] == 5


def test_power_of_choice_ranks_a_pool_drawn_by_size_without_replacement():
    """With ``m = 1`` and losses in order of id, the choice is the largest id of the pool."""
    sizes = np.array([1, 2, 3, 6])
    losses = jnp.arange(4.0)
    context = make_context(make_federation(sizes=tuple(sizes)).train, losses=losses, round=5)
    selector = selectors.PowerOfChoice(1, 2)
    chosen = draw(selector, draws=20_000, context=context)
    shares = sizes / sizes.sum()
    expected = np.zeros(4)
    for i in range(4):
        for j in set(range(4)) - {i}:
            expected[max(i, j)] += shares[i] * shares[j] / (1 - shares[i])
    counts = np.bincount(chosen.ravel(), minlength=4)
    assert counts[0] == 0
    assert chisquare(counts[1:], 20_000 * expected[1:]).pvalue > 1e-6


def test_power_of_choice_of_a_pool_as_large_as_the_cohort_draws_by_size_alone():
    sizes, losses = np.array([1, 2, 3, 6]), jnp.array([9.0, 0.1, 5.0, 0.2])
    context = make_context(make_federation(sizes=tuple(sizes)).train, losses=losses, round=5)
    cohorts = np.sort(draw(selectors.PowerOfChoice(2, 2), draws=20_000, context=context), axis=1)
    shares = sizes / sizes.sum()
    pairs = np.zeros((4, 4))
    np.add.at(pairs, tuple(cohorts.T), 1)
    ordered = np.outer(shares, shares) / (1 - shares[:, None])
    upper = np.triu_indices(4, 1)
    assert pairs.sum() == pairs[upper].sum()
    assert chisquare(pairs[upper], 20_000 * (ordered + ordered.T)[upper]).pvalue > 1e-6


def test_power_of_choice_keeps_the_order_of_the_draw_among_equals():
    context = losses_context([1.0] * 6)
    pairs, alone = (
        draw(selectors.PowerOfChoice(count, 6), draws=40, context=context) for count in (2, 1)
    )
    np.testing.assert_array_equal(pairs[:, :1], alone)
    assert len(set(alone.ravel().tolist())) == 6  # Otherwise the smallest id or slot would win.


def test_power_of_choice_starts_uniformly():
    context = losses_context([9, 0, 0, 0, 0, 0], round=0)
    cohorts = draw(selectors.PowerOfChoice(2, 6), draws=60, context=context)
    counts = np.bincount(cohorts.ravel(), minlength=6)
    assert counts[0] < 60
    assert (counts > 0).all()


def test_power_of_choice_never_takes_a_loss_that_is_not_a_number():
    context = losses_context([np.nan, 1, 2, 3, np.nan, 0])
    cohorts, info = choose(selectors.PowerOfChoice(4, 6), context, range(5))
    assert all(sorted(chosen) == [1, 2, 3, 5] for chosen in cohorts)
    assert (info["pool_loss"] == 1.5).all()


def test_rpow_ranks_reported_losses_and_new_clients_first(model, federation):
    selector = selectors.PowerOfChoice(3, 6, variant="rpow")
    reported = jnp.array([0.5, jnp.inf, 0.9, 0.1, jnp.inf, 0.7])
    context = make_context(federation.train, round=2)
    state = jnp.cumsum(context.sizes), reported
    cohort, _, info = jax.jit(lambda *args: selector.select(*args, context))(KEY, state)
    assert set(cohort.clients[:2].tolist()) == {1, 4}
    assert cohort.clients[2] == 2
    np.testing.assert_allclose(info["pool_loss"], 0.55, rtol=1e-6)
    results = LocalResult(None, jnp.array([1.0, 2.0, 3.0]), jnp.ones(3, jnp.int32))
    _, after = selector.observe(state, cohort._replace(clients=jnp.array([1, 4, 2])), results, None)
    np.testing.assert_allclose(after, [0.5, 1, 3, 0.1, 2, 0.7])


def test_cpow_estimates_the_loss_that_pow_measures(model, federation):
    """With a batch as large as the largest client, the estimate is the loss itself."""

    @jax.jit
    def start(key):
        variables = model.init(key, federation.train.features[:1])
        return variables, client_performance(model, variables, federation.train).loss

    variables, losses = start(jax.random.key(1))
    context = make_context(federation.train, variables, model, round=1, losses=losses)
    exact, info = choose(selectors.PowerOfChoice(4, 6), context)
    for examples in (9, 10**9):
        selector = selectors.PowerOfChoice(4, 6, variant="cpow", loss_examples=examples)
        estimated, estimate = choose(selector, context)
        assert estimated == exact
        np.testing.assert_allclose(estimate["pool_loss"], info["pool_loss"], rtol=1e-5)
    one = selectors.PowerOfChoice(4, 6, variant="cpow", loss_examples=1)
    assert np.ptp(choose(one, context, range(5))[1]["pool_loss"]) > 0


def test_full_takes_all_clients_and_round_robin_goes_round():
    context = make_context(make_federation().train)
    full, selector = selectors.Full(), selectors.RoundRobin(4)

    @jax.jit
    def three_rounds():
        state, cohorts = selector.init(context), []
        for _ in range(3):
            cohort, state, _ = selector.select(KEY, state, context)
            cohorts.append(cohort.clients)
        return full.select(KEY, (), context)[0].clients, jnp.concatenate(cohorts)

    every, seen = three_rounds()
    assert every.tolist() == list(range(6))
    assert seen.tolist() == 2 * list(range(6))


def rotate(selector, rounds, available=None):
    """Returns the cohorts of many repetitions, ``[repetitions, rounds, cohort_size]``."""
    context = make_context(make_federation(sizes=SIZES).train)
    if available is not None:
        context = context._replace(available=jnp.isin(jnp.arange(6), jnp.array(available)))

    @jax.jit
    @jax.vmap
    def run(key):
        state, cohorts = selector.init(context), []
        for round, one in enumerate(jax.random.split(key, rounds)):
            at = context._replace(round=jnp.int32(round))
            cohort, state, _ = selector.select(one, state, at)
            cohorts.append(cohort.clients)
        return jnp.stack(cohorts)

    return np.asarray(run(jax.random.split(KEY, 3000)))


@pytest.mark.parametrize("window", [0, jnp.int32(0)])
def test_rotation_without_a_window_draws_uniformly(window):
    """All ordered pairs are equally frequent, whatever the first cohort was."""
    first, second = rotate(selectors.Rotation(2, window), 2).swapaxes(0, 1)
    for cohorts in (first, second, second[(first == 0).any(axis=1)]):
        pairs = np.zeros((6, 6))
        np.add.at(pairs, tuple(cohorts.T), 1)
        assert chisquare(pairs[~np.eye(6, dtype=bool)]).pvalue > 1e-6


@pytest.mark.parametrize(("size", "window"), [(2, 1), (2, 2), (1, 5), (3, 1)])
def test_rotation_excludes_the_last_cohorts_and_draws_the_others_equally_often(size, window):
    cohorts = rotate(selectors.Rotation(size, window), window + 2)
    recent = cohorts[:, :, None, :, None] == cohorts[:, None, :, None, :]
    for round in range(window + 2):
        for earlier in range(max(0, round - window), round):
            assert not recent[:, round, earlier].any()
        assert chisquare(np.bincount(cohorts[:, round].ravel(), minlength=6)).pvalue > 1e-6
    if size * (window + 1) < 6:
        # Clients return after the window.
        assert recent[:, window + 1, 0].any()


def test_rotation_fills_a_cohort_with_recent_and_then_with_absent_clients():
    for cohorts in rotate(selectors.Rotation(4, 3), 2)[:100]:
        assert set(range(6)) - {*cohorts[0].tolist()} < {*cohorts[1].tolist()}
    for cohorts in rotate(selectors.Rotation(3, 3), 2, available=(0, 2, 3, 5))[:100]:
        assert {*cohorts.ravel().tolist()} == {0, 2, 3, 5}
        assert len({*cohorts[1].tolist()}) == 3
    for cohorts in rotate(selectors.Rotation(3, 3), 1, available=(4, 5))[:100]:
        assert {4, 5} < {*cohorts[0].tolist()}


@pytest.mark.parametrize("candidates", ["all", 6])
def test_any_set_function_selects(candidates):
    def utility(context):
        return Modular(context.losses(context.variables))

    selector = selectors.Submodular(utility, 2, candidates=candidates)
    chosen, info = choose(selector, losses_context([3, 9, 1, 7, 8, 2]))
    assert chosen == [[1, 4]]
    assert info["objective"] == 17


def test_a_cohort_larger_than_the_pool_is_named():
    with pytest.raises(ValueError, match="cohort_size=7"):
        selectors.PowerOfChoice(7, 5)


def test_sizes_above_the_number_of_clients_raise():
    context = make_context(make_federation().train)
    for selector in (
        selectors.PowerOfChoice(2, 7),
        selectors.RoundRobin(7),
        selectors.Uniform(7),
        selectors.Submodular(lambda context: Modular(context.sizes), 7),
        selectors.Submodular(lambda context: Modular(context.sizes), 2, candidates=7),
    ):
        with pytest.raises(ValueError, match="=7:"):
            selector.init(context)
