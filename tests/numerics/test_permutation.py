"""Properties of random permutations."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedjax_fair.numerics import permutation

permutation_at = jax.jit(permutation.permutation_at)


@partial(jax.jit, static_argnums=(1,))
def draw(seed, draws, positions, size):
    """Entries of many permutations, ``[draws, positions]``."""
    keys = jax.random.split(jax.random.key(seed), draws)
    return jax.vmap(lambda key: permutation.permutation_at(key, positions, size))(keys)


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
def test_entries_are_a_permutation(size, seed):
    entries = permutation_at(jax.random.key(seed), np.arange(300), size)[:size]
    assert sorted(entries.tolist()) == list(range(size))


def test_parts_are_of_the_same_permutation():
    key, whole = jax.random.key(3), np.arange(300)
    pieces = [permutation_at(key, whole[start : start + 30], 300) for start in range(0, 300, 30)]
    np.testing.assert_array_equal(np.concatenate(pieces), permutation_at(key, whole, 300))


def test_traced_size_gives_the_same_entries():
    key, positions = jax.random.key(5), np.arange(30)
    traced = permutation_at(key, positions, 37)
    static = jax.jit(permutation.permutation_at, static_argnums=2)(key, positions, 37)
    np.testing.assert_array_equal(traced, static)


def test_sizes_beyond_signed_products_do_not_overflow():
    size = 2**31 - 1
    entries = permutation_at(jax.random.key(0), np.array([0, 1, size - 2, size - 1]), size)
    assert len(set(entries.tolist())) == 4
    assert 0 <= min(entries.tolist()) <= max(entries.tolist()) < size


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_of_small_sets_are_equally_likely(size):
    drawn = np.asarray(draw(1, 24_000, np.arange(5) % size, size))[:, :size]
    weights = size ** np.arange(size)
    codes = {int(np.dot(order, weights)) for order in itertools.permutations(range(size))}
    seen, counts = np.unique(drawn @ weights, return_counts=True)
    assert set(seen.tolist()) == codes
    # One chance in a million to fail a correct program; four rounds instead of 24 give below 1e-40.
    assert chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("positions", [(0, 1), (0, 49), (20, 30)])
def test_all_pairs_of_a_large_set_are_equally_likely(positions):
    first, second = np.asarray(draw(2, 100_000, np.array(positions), 50)).T
    pairs = np.zeros((50, 50))
    np.add.at(pairs, (first, second), 1)
    assert pairs.trace() == 0
    assert chisquare(pairs[~np.eye(50, dtype=bool)]).pvalue > 1e-6


def test_permutations_of_different_keys_are_independent():
    drawn = np.asarray(draw(4, 2000, np.arange(50), 50))
    agreements = (drawn[:-1] == drawn[1:]).sum(axis=1)
    # Two random permutations agree in one place on average, with variance 1.
    assert abs(agreements.mean() - 1) < 5 / np.sqrt(len(agreements))
