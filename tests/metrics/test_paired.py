"""Comparisons of runs on the same seeds."""

import numpy as np
import pytest
from scipy import stats

from fedjax_fair.metrics import paired


@pytest.mark.parametrize("seed", range(3))
def test_interval_of_differences_is_the_paired_t_test(seed):
    first, second = np.random.default_rng(seed).normal(size=(2, 7))
    difference = paired.interval(first - second)
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval(0.95)
    np.testing.assert_allclose(
        [difference.low, difference.mean, difference.high, difference.p],
        [interval.low, (first - second).mean(), interval.high, expected.pvalue],
    )
    np.testing.assert_allclose(difference.deviation, (first - second).std(ddof=1))


@pytest.mark.parametrize("sizes", [(7, 4), (2, 9)])
def test_welch_is_scipys_test(sizes):
    rng = np.random.default_rng(0)
    first, second = (rng.normal(place, 1 + place, size) for place, size in enumerate(sizes))
    difference = paired.welch(first, second)
    expected = stats.ttest_ind(first, second, equal_var=False)
    ends = expected.confidence_interval(0.95)
    np.testing.assert_allclose(
        [difference.low, difference.high, difference.p], [*ends, expected.pvalue]
    )
    np.testing.assert_allclose(difference.mean, first.mean() - second.mean())
    pooled = np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2)
    np.testing.assert_allclose(paired.effect_size(difference), difference.mean / pooled)


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
def test_bootstrap_is_efrons_interval(sizes):
    rng = np.random.default_rng(1)
    samples = [rng.exponential(size=size) for size in sizes]
    low, high = paired.bootstrap(*samples)
    # Ends of 9,999 and 20,000 draws: the density there is at least 0.1 of a standard error.
    np.testing.assert_allclose([low, high], bca(samples), atol=0.04)
    assert (low, high) == paired.bootstrap(*samples)


def test_bootstrap_of_equal_or_single_runs():
    assert paired.bootstrap(np.full(4, 2.0)) == (2.0, 2.0)
    assert paired.bootstrap(np.full(4, 2.0), np.full(3, 0.5)) == (1.5, 1.5)
    assert np.isnan(paired.bootstrap(np.ones(1))).all()
    assert np.isnan(paired.bootstrap(np.arange(5.0), np.ones(1))).all()


def test_effect_size_is_t_over_the_root_of_the_number_of_pairs():
    first, second = np.random.default_rng(2).normal(size=(2, 6))
    expected = stats.ttest_rel(first, second).statistic / np.sqrt(6)
    np.testing.assert_allclose(paired.effect_size(paired.interval(first - second)), expected)
    assert np.isnan(paired.effect_size(paired.interval(first - first)))


def test_holm_adjusts_p_values():
    adjusted = paired.holm([0.01, np.nan, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, np.nan, 0.06, 0.06, 0.02])
    assert paired.holm([0.9, 0.8]).tolist() == [1.0, 1.0]
    counted = paired.holm([0.01, np.nan, 0.04, 0.03, 0.005], num_comparisons=5)
    np.testing.assert_allclose(counted, [0.04, np.nan, 0.09, 0.09, 0.025])
    with pytest.raises(ValueError, match="num_comparisons=1: expected at least the 2 p values"):
        paired.holm([0.1, 0.2], num_comparisons=1)


def test_runs_without_variance_have_no_p_value():
    same = paired.interval(np.zeros(5))
    assert same[:3] == (0, 0, 0)
    assert np.isnan(same.p)
    assert np.isnan(paired.interval(np.ones(1)).low)
    assert np.isnan(paired.welch(np.ones(5), np.zeros(1)).low)
    assert paired.welch(np.full(5, 2.0), np.ones(3))[:3] == (1, 1, 1)


@pytest.mark.parametrize("value", [0.1, -3.3, 1e-7, 2**0.5])
def test_equal_runs_have_no_variance_although_their_mean_is_rounded(value):
    """The deviation of three times 0.1 is 1.7e-17, by which the difference would be significant."""
    for count in (2, 3, 7):
        same = np.full(count, value)
        rounded = same * (1 + 1e-7 * np.arange(count) / count)  # As differences of float32.
        for sample in (same, rounded):
            for difference in (paired.interval(sample), paired.welch(sample, np.zeros(3))):
                assert difference.low == difference.high == difference.mean
                assert (difference.deviation, np.isnan(difference.p)) == (0, True)
                assert np.isnan(paired.effect_size(difference))
            assert paired.bootstrap(sample)[0] == paired.bootstrap(sample)[1]


BAD_SAMPLES = [[], [1.0, np.nan, 3.0], [np.nan] * 2, [np.inf, 1.0], [np.inf] * 2, [1e308, -1e308]]


@pytest.mark.parametrize("sample", BAD_SAMPLES, ids=str)
def test_runs_that_cannot_be_compared_give_nan_without_warnings(sample):
    sample, valid = np.array(sample, np.float64), np.array([1.0, 2.0, 4.0])
    differences = [
        paired.interval(sample),
        paired.welch(sample, valid),
        paired.welch(valid, sample),
        paired.welch(sample, sample),
    ]
    assert all(np.isnan(difference).all() for difference in differences)
    assert np.isnan([paired.effect_size(difference) for difference in differences]).all()
    assert np.isnan([paired.bootstrap(sample), paired.bootstrap(valid, sample)]).all()


@pytest.mark.parametrize("power", [1.0, np.nan, -0.1, 2])
def test_power_is_below_one(power):
    with pytest.raises(ValueError, match=r"power=\S+: expected a number in \[0, 1\)"):
        paired.seeds_needed(0.5, 1.0, power)


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("difference", [0.8, -1.5])
def test_seeds_needed_give_the_power(difference, pairs):
    seeds = int(paired.seeds_needed(difference, deviation=1.0, paired=pairs))
    rng = np.random.default_rng(0)

    def power(count):
        if pairs:
            test = stats.ttest_1samp(rng.normal(difference, 1.0, (20_000, count)), 0, axis=1)
        else:
            shift = np.array([difference, 0.0])[:, None, None]
            test = stats.ttest_ind(*(rng.normal(size=(2, 20_000, count)) + shift), axis=1)
        return (test.pvalue < 0.05).mean()

    assert power(seeds) > 0.79  # The Monte Carlo error is 0.3 %.
    assert power(seeds - 1) < 0.81
    assert paired.seeds_needed(0.0, 1.0) == np.inf
