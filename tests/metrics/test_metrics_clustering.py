"""Agreement of groupings against scikit-learn."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from fedjax_fair.metrics import adjusted_rand_index, normalized_mutual_information

PAIRS = [
    (normalized_mutual_information, normalized_mutual_info_score),
    (adjusted_rand_index, adjusted_rand_score),
]
COMPILED = [jax.jit(metric) for metric, _ in PAIRS]
METRICS = pytest.mark.parametrize(
    ("metric", "reference"),
    [(metric, reference) for metric, (_, reference) in zip(COMPILED, PAIRS, strict=True)],
    ids=[metric.__name__ for metric, _ in PAIRS],
)


def grouping(rng, count):
    """Random labels of one of several kinds; some names are far beyond the count."""
    kind = rng.integers(5)
    if kind == 0:
        return np.full(count, 7)
    if kind == 1:
        return rng.permutation(count)
    if kind == 2:  # All but one together, where most digits could be lost.
        return np.where(np.arange(count) == rng.integers(count), 3, 1000)
    return 17 * rng.integers(0, rng.integers(1, count + 1), count)


def related(rng, count):
    first, second = grouping(rng, count), grouping(rng, count)
    if rng.integers(2):
        second = np.where(rng.random(count) < rng.choice([0.0, 0.01, 0.2]), second, first)
    return first.astype(np.int32), second.astype(np.int32)


@METRICS
@pytest.mark.parametrize("count", [1, 2, 18, 1000])
def test_each_metric_is_sklearns(metric, reference, count):
    for seed in range(40):
        found, planted = related(np.random.default_rng(seed), count)
        # Their logarithms leave 1e-15 instead of 0; ours differ from theirs by rounding.
        assert abs(metric(found, planted) - reference(planted, found)) < 1e-6


@METRICS
def test_degenerate_groupings(metric, reference):
    together, apart = np.zeros(18, np.int32), np.arange(18, dtype=np.int32)
    assert metric(together, together) == 1
    assert metric(apart, apart) == 1
    assert metric(together, apart) == metric(apart, together) == 0
    assert metric(together[:1], apart[17:]) == 1


@METRICS
@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=18, max_size=18))
def test_entries_without_a_label_are_ignored(metric, reference, pairs):
    labels = np.array(pairs, np.int32)
    kept = labels[(labels >= 0).all(axis=1)]
    got = metric(labels[:, 0], labels[:, 1])
    if len(kept):
        np.testing.assert_allclose(got, reference(kept[:, 1], kept[:, 0]), atol=1e-6)
    else:
        assert np.isnan(got)


@METRICS
def test_names_and_order_do_not_matter(metric, reference):
    rng = np.random.default_rng(0)
    found, planted = rng.integers(0, 4, 18, np.int32), rng.integers(0, 3, 18, np.int32)
    order = rng.permutation(18)
    once = metric(found, planted)
    again = metric((9 - found)[order], planted[order] * 100)
    np.testing.assert_allclose(again, once, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metric(planted, found), once, atol=1e-6)


@METRICS
def test_vmap_is_a_loop(metric, reference):
    labels = np.random.default_rng(0).integers(-1, 3, (2, 4, 18), np.int32)
    mapped = jax.vmap(metric)(*labels)
    np.testing.assert_allclose(mapped, [metric(*pair) for pair in zip(*labels, strict=True)], 1e-5)


def test_a_merged_pair_of_groups():
    # By hand: four pairs are together in one or both, eleven apart; 1/ln-ratios for the entropies.
    found, planted = np.full((2, 18), -1, np.int32)
    found[:6], planted[:6] = [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]
    fine, coarse = np.log(3), np.log(3) - 2 / 3 * np.log(2)
    expected = 2 * coarse / (fine + coarse)
    np.testing.assert_allclose(COMPILED[0](found, planted), expected, rtol=1e-6)
    expected = (3 - 7 * 3 / 15) / ((7 + 3) / 2 - 7 * 3 / 15)
    np.testing.assert_allclose(COMPILED[1](found, planted), expected, rtol=1e-6)
