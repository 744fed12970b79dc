"""Laws of the ways to choose clients."""

import jax
import numpy as np
import pytest
from conftest import make_context, make_federation
from scipy.stats import chisquare

from fedjax_fair import selectors

SIZES = (3, 8, 5, 1, 6, 9)


def draw(selector, sizes=SIZES, draws=4000):
    context = make_context(make_federation(sizes=sizes).train)
    state = selector.init(context)
    keys = jax.random.split(jax.random.key(0), draws)
    return np.asarray(jax.vmap(lambda key: selector.select(key, state, context)[0].clients)(keys))


def test_uniform_draws_distinct_clients():
    cohorts = draw(selectors.uniform(4))
    assert all(len(set(cohort)) == 4 for cohort in cohorts.tolist())


def test_uniform_draws_every_client_and_pair_equally_often():
    cohorts = draw(selectors.uniform(2), draws=12_000)
    pairs = np.zeros((6, 6))
    np.add.at(pairs, tuple(cohorts.T), 1)
    assert chisquare(pairs[~np.eye(6, dtype=bool)]).pvalue > 1e-6


def test_uniform_takes_everybody_when_asked():
    assert sorted(draw(selectors.uniform(6), draws=1)[0].tolist()) == list(range(6))


def test_by_size_draws_in_proportion_to_examples():
    slots = draw(selectors.by_size(3)).ravel()
    counts = np.bincount(slots, minlength=6)
    expected = slots.size * np.array(SIZES) / sum(SIZES)
    assert chisquare(counts, expected).pvalue > 1e-6


def test_by_size_draws_slots_independently():
    first, second = draw(selectors.by_size(2), draws=40_000).T
    pairs = np.zeros((6, 6))
    np.add.at(pairs, (first, second), 1)
    shares = np.array(SIZES) / sum(SIZES)
    expected = first.size * np.outer(shares, shares)
    assert chisquare(pairs.ravel(), expected.ravel()).pvalue > 1e-6


def test_by_size_never_draws_a_client_without_examples():
    slots = draw(selectors.by_size(3), sizes=(0, 4, 0, 0, 2, 0))
    assert set(slots.ravel().tolist()) == {1, 4}


@pytest.mark.parametrize("factory", [selectors.uniform, selectors.by_size])
@pytest.mark.parametrize("cohort_size", [0, -3, True])
def test_bad_cohort_sizes_are_named(factory, cohort_size):
    with pytest.raises(ValueError, match=f"cohort_size={cohort_size}"):
        factory(cohort_size)
