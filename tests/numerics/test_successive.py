"""Successive sampling in proportion to size, without replacement."""

from functools import partial
from itertools import permutations

import jax
import numpy as np
import pytest
from scipy.stats import chisquare

from fedjax_fair.numerics.successive import sample_successively

SIZES = {
    "similar": (3, 3, 2, 4, 3, 0, 0, 0),
    "one has nearly all": (1, 5000, 2, 1, 2, 0, 0, 0),  # Most passes find no other than it.
    "some have none": (0, 3, 1, 0, 7, 2, 0, 5),
}


OTHERS = (0, 500)
"""Additional items of size zero, with which the number of items is large."""


@partial(jax.jit, static_argnums=(1, 2))
def compiled(cumulative_sizes, count, draws):
    keys = jax.random.split(jax.random.key(3), draws)
    return jax.vmap(lambda key: sample_successively(key, cumulative_sizes, count))(keys)


def draw(sizes, count, draws, others=0):
    cumulative_sizes = np.cumsum([*sizes, *[0] * others]).astype(np.int32)
    return np.asarray(compiled(cumulative_sizes, count, draws))


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("name", SIZES)
def test_ordered_triples_follow_their_distribution(name, others):
    sizes = np.array(SIZES[name])
    found = draw(sizes, 3, 40_000, others)
    law = {}
    for triple in permutations(np.flatnonzero(sizes).tolist(), 3):
        left = sizes.sum() - np.cumsum([0, *sizes[list(triple[:2])]])
        law[triple] = np.prod(sizes[list(triple)] / left)
    assert sum(law.values()) == pytest.approx(1)
    counts = dict.fromkeys(law, 0)
    for triple in found.tolist():
        counts[tuple(triple)] += 1  # A triple that cannot be is a KeyError.
    counts, expected = np.array(list(counts.values())), len(found) * np.array(list(law.values()))
    often = expected > 5
    merged = [
        np.append(of[often], of[~often].sum()) if (~often).any() else of
        for of in (counts, expected)
    ]
    assert chisquare(*merged).pvalue > 1e-6


@pytest.mark.parametrize("others", OTHERS)
def test_all_items_are_drawn_for_any_sizes(others):
    sizes = 2 ** np.arange(30)
    found = draw(sizes, 30, 20, others)
    assert (np.sort(found) == np.arange(30)).all()
    assert len({tuple(row) for row in found.tolist()}) > 1


@pytest.mark.parametrize("others", OTHERS)
def test_items_of_size_zero_follow_by_id(others):
    found = draw((0, 4, 0, 0, 2, 0), 4, 50, others)
    assert {tuple(row) for row in found.tolist()} == {(1, 4, 0, 2), (4, 1, 0, 2)}
    assert draw((0, 0, 0), 2, 1, others).tolist() == [[0, 1]]


def test_vmap_draws_the_same_items():
    """Under vmap, passes continue until all samples are complete."""
    sizes = (1, 5000, 2, 1, 2)
    together = draw(sizes, 3, 20, others=500)
    cumulative_sizes = np.cumsum([*sizes, *[0] * 500]).astype(np.int32)

    @jax.jit
    def one_at_a_time(cumulative_sizes):
        keys = jax.random.split(jax.random.key(3), 20)
        return jax.lax.map(lambda key: sample_successively(key, cumulative_sizes, 3), keys)

    np.testing.assert_array_equal(one_at_a_time(cumulative_sizes), together)
