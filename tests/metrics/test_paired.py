"""Comparisons of runs on the same seeds."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from fedjax_fair import results
from fedjax_fair.app.console import difference_table
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


def test_p_values_of_many_comparisons_are_adjusted():
    adjusted = paired.holm([0.01, np.nan, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, np.nan, 0.06, 0.06, 0.02])
    assert paired.holm([0.9, 0.8]).tolist() == [1.0, 1.0]


def test_equal_runs_are_no_evidence():
    same = paired.compare(np.ones(5), np.ones(5))
    assert same[:3] == (0, 0, 0)
    assert np.isnan(same.p)
    assert np.isnan(paired.compare(np.ones(1), np.zeros(1)).low)


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


def made_up(**metrics):
    """Three methods, four seeds, two evaluations."""
    dims = ("algorithm", "seed", "round")
    rng = np.random.default_rng(0)
    columns = {name: (dims, rng.uniform(0.4, 0.6, (3, 4, 2))) for name in metrics}
    runs = xr.Dataset(
        {"accuracy_mean_clients": (dims, rng.uniform(0.4, 0.6, (3, 4, 2)))} | columns,
        {"algorithm": ["one", "two", "three"], "seed": range(4), "round": [0, 9]},
        {"data": "made up"},
    )
    for name, shift in metrics.items():
        runs[name][1, :, 1] = runs[name][0, :, 1] + shift + [-0.01, 0.01, 0.0, 0.01]
    return runs


def test_results_are_compared_at_their_last_evaluation():
    runs = made_up(client_dissimilarity=-0.2)
    found = results.compare(runs, "client_dissimilarity")
    assert found.algorithm.values.tolist() == ["two", "three"]
    alone = stats.ttest_rel(*(runs.client_dissimilarity.values[i, :, 1] for i in (1, 0)))
    other = stats.ttest_rel(*(runs.client_dissimilarity.values[i, :, 1] for i in (2, 0)))
    np.testing.assert_allclose(found.difference[0], -0.1975)
    np.testing.assert_allclose(found.p, [2 * alone.pvalue, max(other.pvalue, 2 * alone.pvalue)])
    turned = results.compare(runs, "client_dissimilarity", baseline="two")
    assert turned.algorithm.values.tolist() == ["one", "three"]
    np.testing.assert_allclose(turned.high[0], -found.low[0])


def test_what_cannot_be_compared_is_named():
    runs = made_up(client_dissimilarity=0.0)
    with pytest.raises(ValueError, match="metric='gini'"):
        results.compare(runs, "gini")
    with pytest.raises(ValueError, match="baseline='four'"):
        results.compare(runs, "client_dissimilarity", baseline="four")
    with pytest.raises(ValueError, match="two or more methods and seeds, got 3 and 1"):
        results.compare(runs.isel(seed=[0]), "client_dissimilarity")
    with pytest.raises(ValueError, match="got 1 and 4"):
        results.compare(runs.isel(algorithm=[0]), "client_dissimilarity")


def test_a_person_sees_what_is_beyond_chance():
    table = difference_table(made_up(accuracy_worst_tenth=0.3, client_dissimilarity=0.0))
    (two, _, worst, dissimilarity), (three, *_) = zip(
        *(column.cells for column in table.columns), strict=True
    )
    assert (str(two), str(three)) == ("two", "three")
    assert worst.startswith("+30.2 (")
    assert worst.endswith("*")
    assert not dissimilarity.endswith("*")
