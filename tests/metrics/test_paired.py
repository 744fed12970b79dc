"""Comparisons of runs on the same seeds."""

import numpy as np
import pytest
from scipy import stats

from fedjax_fair.metrics import paired


@pytest.mark.parametrize("seed", range(3))
def test_a_comparison_is_the_paired_t_test(seed):
    own, other = np.random.default_rng(seed).normal(size=(2, 7))
    found = paired.compare(own, other)
    expected = stats.ttest_rel(own, other)
    interval = expected.confidence_interval(0.95)
    np.testing.assert_allclose(
        [found.low, found.mean, found.high, found.p],
        [interval.low, (own - other).mean(), interval.high, expected.pvalue],
    )
    np.testing.assert_allclose(found.deviation, (own - other).std(ddof=1))


def test_a_mean_alone_has_students_interval():
    values = np.random.default_rng(3).normal(size=9)
    found, expected = paired.interval(values), stats.ttest_1samp(values, 0)
    ends = expected.confidence_interval(0.95)
    np.testing.assert_allclose([found.low, found.high, found.p], [*ends, expected.pvalue])


@pytest.mark.parametrize("sizes", [(7, 4), (2, 9)])
def test_runs_without_pairs_are_compared_by_welchs_test(sizes):
    rng = np.random.default_rng(0)
    own, other = (rng.normal(place, 1 + place, size) for place, size in enumerate(sizes))
    found = paired.welch(own, other)
    expected = stats.ttest_ind(own, other, equal_var=False)
    ends = expected.confidence_interval(0.95)
    np.testing.assert_allclose([found.low, found.high, found.p], [*ends, expected.pvalue])
    np.testing.assert_allclose(found.mean, own.mean() - other.mean())
    pooled = np.sqrt((own.var(ddof=1) + other.var(ddof=1)) / 2)
    np.testing.assert_allclose(paired.effect_size(found), found.mean / pooled)


def bca(samples, resamples=20_000):
    """Efron's interval of a difference of means, in plain NumPy."""
    rng = np.random.default_rng(7)
    signs = [1, -1][: len(samples)]

    def mean(groups):
        return sum(sign * group.mean(axis=-1) for sign, group in zip(signs, groups, strict=True))

    drawn = mean([rng.choice(group, (resamples, group.size)) for group in samples])
    shift = stats.norm.ppf((drawn < mean(samples)).mean() / 2 + (drawn <= mean(samples)).mean() / 2)
    cubes = squares = 0.0
    for place, group in enumerate(samples):
        left = [np.delete(group, i) for i in range(group.size)]
        without = np.array([mean([*samples[:place], one, *samples[place + 1 :]]) for one in left])
        slope = (without.mean() - without) * (group.size - 1)
        cubes += (slope**3).sum() / group.size**3
        squares += (slope**2).sum() / group.size**2
    z = shift + stats.norm.ppf([0.025, 0.975])
    levels = stats.norm.cdf(shift + z / (1 - cubes / (6 * squares**1.5) * z))
    return np.quantile(drawn, levels)


@pytest.mark.parametrize("sizes", [(15,), (15, 30)])
def test_the_bootstrap_interval_is_efrons(sizes):
    rng = np.random.default_rng(1)
    samples = [rng.exponential(size=size) for size in sizes]
    low, high = paired.bootstrap(*samples)
    # Ends of 9,999 and 20,000 draws: the density there is at least 0.1 of a standard error.
    np.testing.assert_allclose([low, high], bca(samples), atol=0.04)
    assert (low, high) == paired.bootstrap(*samples)


def test_a_bootstrap_of_nothing_or_of_equal_runs_is_none():
    assert paired.bootstrap(np.full(4, 2.0)) == (2.0, 2.0)
    assert paired.bootstrap(np.full(4, 2.0), np.full(3, 0.5)) == (1.5, 1.5)
    assert np.isnan(paired.bootstrap(np.ones(1))).all()
    assert np.isnan(paired.bootstrap(np.arange(5.0), np.ones(1))).all()


def test_an_effect_is_the_t_value_without_the_number_of_runs():
    own, other = np.random.default_rng(2).normal(size=(2, 6))
    expected = stats.ttest_rel(own, other).statistic / np.sqrt(6)
    np.testing.assert_allclose(paired.effect_size(paired.compare(own, other)), expected)
    assert np.isnan(paired.effect_size(paired.compare(own, own)))


def test_p_values_of_many_comparisons_are_adjusted():
    adjusted = paired.holm([0.01, np.nan, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, np.nan, 0.06, 0.06, 0.02])
    assert paired.holm([0.9, 0.8]).tolist() == [1.0, 1.0]


def test_equal_runs_are_no_evidence():
    same = paired.compare(np.ones(5), np.ones(5))
    assert same[:3] == (0, 0, 0)
    assert np.isnan(same.p)
    assert np.isnan(paired.compare(np.ones(1), np.zeros(1)).low)
    assert np.isnan(paired.welch(np.ones(5), np.zeros(1)).low)
    assert paired.welch(np.full(5, 2.0), np.ones(3))[:3] == (1, 1, 1)


@pytest.mark.parametrize("difference", [0.4, -1.5])
def test_as_many_seeds_as_needed_find_a_difference(difference):
    seeds = int(paired.seeds_needed(difference, deviation=1.0))
    rng = np.random.default_rng(0)

    def found(count):
        gaps = rng.normal(difference, 1.0, (20_000, count))
        return (stats.ttest_1samp(gaps, 0, axis=1).pvalue < 0.05).mean()

    assert found(seeds) > 0.79  # A share of 20,000 is known to 0.3 %.
    assert found(seeds - 1) < 0.81
    assert paired.seeds_needed(0.0, 1.0) == np.inf


@pytest.mark.parametrize("difference", [1.2, 2.5])
def test_runs_without_pairs_take_as_many_as_two_samples_need(difference):
    seeds = int(paired.seeds_needed(difference, deviation=1.0, paired=False))
    rng = np.random.default_rng(0)

    def found(count):
        own, other = (
            rng.normal(size=(2, 20_000, count)) + np.array([difference, 0.0])[:, None, None]
        )
        return (stats.ttest_ind(own, other, axis=1).pvalue < 0.05).mean()

    assert found(seeds) > 0.79
    assert found(seeds - 1) < 0.81
