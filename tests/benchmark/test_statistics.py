"""Differences by block, and tests of families, against brute force and SciPy."""

import itertools
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from measure_tables import SEEDS, long_table, random_values
from scipy import stats

from fedjax_fair.benchmark import statistics
from fedjax_fair.benchmark.statistics import blocks_needed, differences, estimate, step_down
from fedjax_fair.metrics import paired


def correlated(rng, hypotheses, blocks, correlation=0.5):
    """Draws differences to a common baseline: normal, with equal correlations."""
    common = rng.normal(size=blocks)
    own = rng.normal(size=(hypotheses, blocks))
    return np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own


def step_down_by_definition(gaps, se_pool):
    """Adjusts p values by all flips and all remaining hypotheses, with t tests of SciPy.

    Only the observed t has the error of the test pool.
    """
    flips = [
        np.abs(stats.ttest_1samp(gaps * np.array(signs), 0, axis=1).statistic)
        for signs in itertools.product((1, -1), repeat=gaps.shape[1])
    ]
    observed = np.abs(gaps.mean(axis=1)) / np.hypot(stats.sem(gaps, axis=1), se_pool)
    adjusted, running, left = np.zeros(len(gaps)), 0.0, list(range(len(gaps)))
    for index in np.argsort(-observed):
        reached = [max(flip[left]) >= observed[index] * (1 - 1e-9) for flip in flips]
        running = max(running, np.mean(reached))
        adjusted[index] = running
        left.remove(index)
    return adjusted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("hypotheses", "blocks"), [(1, 3), (3, 6), (6, 8)])
@pytest.mark.parametrize("has_pool", [False, True])
def test_step_down_equals_its_definition(seed, hypotheses, blocks, has_pool):
    rng = np.random.default_rng(seed)
    gaps = correlated(rng, hypotheses, blocks) + np.linspace(2, 0, hypotheses)[:, None]
    pool = rng.uniform(0, 0.3, hypotheses) * has_pool
    expected = step_down_by_definition(gaps, pool)
    np.testing.assert_allclose(step_down(gaps, pool).p, expected)


def test_flips_are_common_to_all_hypotheses():
    """Equal hypotheses are one hypothesis: flips of each method alone would double its p value."""
    gaps = np.random.default_rng(1).normal(0.4, 1.0, (1, 10))
    alone = step_down(gaps)
    assert 0.01 < alone.p[0] < 0.2
    copies = step_down(np.repeat(gaps, 40, axis=0) * np.linspace(1, -3, 40)[:, None])
    np.testing.assert_array_equal(copies.p, np.repeat(alone.p, 40))
    assert copies.threshold == pytest.approx(alone.threshold)


def test_holm_on_t_is_a_bound_for_correlated_hypotheses():
    """The threshold of the first step is below that of Bonferroni, and above that of few tests."""
    rng = np.random.default_rng(1)
    found = step_down(correlated(rng, 80, 12))
    assert stats.norm.isf(0.025 / 8) < found.threshold < stats.norm.isf(0.025 / 80)
    gaps = correlated(rng, 20, 12, 0.9) + np.repeat([1.5, 0], 10)[:, None]
    p = stats.ttest_1samp(gaps, 0, axis=1).pvalue
    # Both test normal differences, so that p values differ by the flips that were drawn.
    assert np.mean(step_down(gaps).p <= paired.holm(p.tolist()) + 0.02) > 0.9
    assert step_down(gaps).p[:10].max() < 0.05


def test_familywise_error_of_correlated_hypotheses():
    """The binomial probability of more than 30 of 300 at 5% is 0.01%."""
    rng = np.random.default_rng(2)
    rejected = [step_down(correlated(rng, 20, 8)).p.min() < 0.05 for _ in range(300)]
    assert 3 <= sum(rejected) <= 30


def test_the_error_of_the_test_pool_is_no_difference():
    """All blocks share it, so that blocks alone would find it in most repetitions."""
    rng = np.random.default_rng(3)
    rejected = {True: 0, False: 0}
    for _ in range(200):
        gaps = rng.normal(size=(10, 12)) + rng.normal(size=(10, 1))
        for has_error in rejected:
            found = step_down(gaps, np.full(10, 1.0) if has_error else None)
            rejected[has_error] += found.p.min() < 0.05
    assert rejected[False] > 150
    assert rejected[True] <= 22  # The binomial probability of more at 5% is 0.01%.


def test_a_planted_difference_is_found_and_no_other():
    gaps = correlated(np.random.default_rng(4), 30, 12)
    gaps[7] += 4
    np.testing.assert_array_equal(np.flatnonzero(step_down(gaps).p < 0.05), [7])


def test_one_block_more_or_less_changes_the_result():
    gaps = np.random.default_rng(5).normal(0.8, 1, (4, 12))
    whole, fewer = step_down(gaps), step_down(gaps[:, :-1])
    assert (whole.p != fewer.p).all()
    assert whole.threshold != fewer.threshold
    assert np.all(whole.p * 2**11 % 1 == 0)
    assert np.any(whole.p * 2**10 % 1 != 0)
    # All signs equal: no other flip is as extreme as the two of the same |t|.
    for blocks, smallest in ((8, 2 / 256), (12, 2 / 4096)):
        assert step_down(np.ones((1, blocks))).p[0] == smallest
    assert np.isinf(step_down(np.ones((1, 5))).threshold)
    assert step_down(np.ones((1, 5))).p[0] > 0.05


def test_large_sums_do_not_cancel():
    """Differences around a common level, against exact fractions."""
    rng = np.random.default_rng(6)
    gaps = (1e6 + rng.integers(0, 999, (3, 7)).astype(float)) * np.array([1, 1, -1, 1, -1, -1, 1])

    def square(values):
        """The share r of t^2 = (n - 1) r / (1 - r), exactly."""
        exact = [Fraction(int(value)) for value in values]
        return sum(exact) ** 2 / (len(exact) * sum(value**2 for value in exact))

    flips = [
        [square(row * np.array(signs)) for row in gaps]
        for signs in itertools.product((1, -1), repeat=7)
    ]
    observed = [square(row) for row in gaps]
    order = sorted(range(3), key=lambda index: -observed[index])
    running = Fraction(0)
    for step, index in enumerate(order):
        reached = sum(max(flip[i] for i in order[step:]) >= observed[index] for flip in flips)
        running = max(running, Fraction(reached, len(flips)))
        assert step_down(gaps).p[index] == running
    assert step_down(np.full((1, 8), 0.1) + 1e-9 * rng.normal(size=(1, 8))).p[0] == 2 / 256


def test_equal_methods_and_missing_blocks():
    gaps = np.random.default_rng(7).normal(2, 1, (4, 12))
    gaps[1], gaps[2, 5:], gaps[3, 1:] = 0, np.nan, np.nan
    found = step_down(gaps)
    assert found.p[1] == 1
    assert found.p[0] < 0.01
    assert found.p[2] > 2 / 2**5 - 1e-12
    assert np.isnan(found.p[3])
    assert np.isnan(step_down(gaps[3:]).p).all()
    few = np.array([[1.0] * 6 + [np.nan] * 6])
    assert step_down(few).threshold == pytest.approx(step_down(few[:, :6]).threshold)
    assert step_down(np.zeros((0, 12))).p.size == 0
    with pytest.raises(ValueError, match="gaps of 21 blocks: expected at most 20"):
        step_down(np.zeros((1, 21)))


def test_intervals_equal_scipy():
    values = random_values(["fedavg", "a", "b"], shift={"b": 1})
    gaps = differences(long_table(values), "accuracy", "mean", "fedavg")
    found = estimate(gaps)
    for (federation, method), row in found.iterrows():
        test = stats.ttest_rel(values[federation][method], values[federation]["fedavg"])
        limits = test.confidence_interval()
        np.testing.assert_allclose([row.low, row.high], [limits.low, limits.high])
        np.testing.assert_allclose(row.difference / row.se_blocks, test.statistic)
        assert (row.low_blocks, row.high_blocks) == (row.low, row.high)
    assert found.blocks.eq(len(SEEDS)).all()
    assert len(found) == 6


def test_the_error_of_the_test_pool_widens_intervals():
    gaps = pd.DataFrame(np.random.default_rng(8).normal(size=(3, 12)))
    pool = np.array([0.0, 0.3, np.nan])
    alone, both = estimate(gaps), estimate(gaps, pool)
    half = (both.high - both.low) / 2
    expected = stats.t.isf(0.025, 11) * np.sqrt(alone.se_blocks**2 + np.nan_to_num(pool) ** 2)
    np.testing.assert_allclose(half, expected)
    np.testing.assert_array_equal(both.high_blocks, alone.high)
    assert (half > (alone.high - alone.low) / 2 + 1e-9).tolist() == [False, True, False]


@pytest.mark.parametrize("pool", [None, 0.001])
def test_equivalence_is_a_90_percent_interval_within_the_margin(pool):
    rng = np.random.default_rng(9)
    gaps = pd.DataFrame(rng.normal(0, 0.006, (60, 12)) + rng.normal(0, 0.003, (60, 1)))
    se_pool = None if pool is None else np.full(60, pool)
    found = estimate(gaps, se_pool)
    error = np.hypot(found.se_blocks, pool or 0)
    half = stats.t.isf(0.05, 11) * error
    is_within = np.maximum(found.difference + half, half - found.difference) < statistics.MARGIN
    assert 10 < is_within.sum() < 50
    np.testing.assert_array_equal(found.p_equivalent < 0.05, is_within)
    same = estimate(pd.DataFrame([[0.0] * 8, [0.1] * 8]))
    assert same.p_equivalent.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("deviation", "difference"), [(1.0, 0.5), (0.3, 0.5), (2.0, 0.4), (0.02, 0.005)]
)
def test_planned_blocks_are_those_of_paired_seeds(deviation, difference):
    """At the threshold of a single test."""
    expected = max(6, paired.seeds_needed(difference, deviation))
    assert blocks_needed(deviation, difference, stats.norm.isf(0.025)) == expected


def test_planned_blocks_have_the_power():
    rng = np.random.default_rng(10)
    threshold = 3.3
    needed = int(blocks_needed(1.0, 0.8, threshold, 0.1))
    limit = stats.t.isf(stats.norm.sf(threshold), needed - 1)
    draws = rng.normal(0.8, 1, (20_000, needed)) + rng.normal(0, 0.1, (20_000, 1))
    error = np.hypot(draws.std(axis=1, ddof=1) / np.sqrt(needed), 0.1)
    power = np.mean(draws.mean(axis=1) / error > limit)
    assert power == pytest.approx(0.81, abs=0.03)
    assert np.isinf(blocks_needed(1.0, 0.5, threshold, se_pool=0.3))
    assert np.isnan(blocks_needed(np.nan, 0.5, threshold))
    assert np.isnan(blocks_needed(1.0, 0.5, np.inf))
    assert blocks_needed(0.0, 0.5, threshold) == 6


def test_differences_need_the_baseline_and_finite_values():
    values = random_values(["fedavg", "a"])
    del values["synthetic"]["fedavg"]
    values["digits"]["a"][2], values["digits"]["a"][3] = np.inf, np.nan
    gaps = differences(long_table(values), "accuracy", "mean", "fedavg")
    assert gaps.index.tolist() == [("digits", "a"), ("groups", "a")]
    assert gaps.loc["digits", "a"].isna().tolist() == [i in (2, 3) for i in range(len(SEEDS))]


def test_diverged_runs_count_as_constant_predictor():
    values = random_values(["fedavg", "a"])
    table = long_table(values)
    is_diverged = (table.federation == "digits") & (table.method == "a") & (table.seed < 1204)
    table["is_diverged"] = is_diverged
    table.loc[is_diverged, "value"] = np.nan
    constants = {("digits", "accuracy"): 0.1, ("digits", "loss"): 7.0, ("groups", "accuracy"): 9.0}
    before = table.copy()
    made = statistics.replace_diverged(table, constants)
    pd.testing.assert_frame_equal(table, before)
    values["digits"]["a"][:4] = 0.1
    found, expected = (
        differences(one, "accuracy", "mean", "fedavg") for one in (made, long_table(values))
    )
    pd.testing.assert_frame_equal(found, expected)


def test_errors():
    table = long_table(random_values(["fedavg", "a"]))
    for bad, message, arguments in (
        (table, "measure='speed': expected one of 'accuracy'", ("speed", "mean")),
        (table, "criterion='best': expected one of 'mean'", ("accuracy", "best")),
        (table[table.seed == 1200], "two or more seeds with 'accuracy', got 1", None),
        (pd.concat([table, table]), "got two of federation=digits, method=fedavg", None),
    ):
        with pytest.raises(ValueError, match=message):
            differences(bad, *(arguments or ("accuracy", "mean")), "fedavg")
