"""Paired comparisons per federation and overall, against NumPy and SciPy."""

import numpy as np
import pandas as pd
import pytest
from measure_tables import SEEDS, long_table, random_values
from scipy import stats

from fedjax_fair.benchmark import statistics


def holm_by_definition(p_values):
    """Adjusts p values as Holm's step-down procedure, in plain Python."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [0.0] * len(p_values), 0.0
    for step, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[i]))
        adjusted[i] = running
    return adjusted


def test_compare_equals_scipy():
    values = random_values(["fedavg", "a", "b", "c"], shift={"b": 1})
    table = statistics.compare(long_table(values), "accuracy", "fedavg", "mean")
    for federation, methods in values.items():
        rows = table[table.federation == federation].set_index("method")
        names = ["a", "b", "c"]
        tests = [stats.ttest_rel(methods[name], methods["fedavg"]) for name in names]
        np.testing.assert_allclose(rows.p[names], [test.pvalue for test in tests])
        np.testing.assert_allclose(
            rows.p_holm[names], holm_by_definition([test.pvalue for test in tests])
        )
        limits = np.array([test.confidence_interval() for test in tests])
        np.testing.assert_allclose(rows.loc[names, ["low", "high"]], limits)
        for name in names:
            np.testing.assert_allclose(rows["mean"][name], methods[name].mean())
            np.testing.assert_allclose(
                rows.difference[name], methods[name].mean() - methods["fedavg"].mean()
            )
        assert np.isnan(rows.difference["fedavg"])
        assert rows.pairs.to_dict() == {"fedavg": 0, "a": 16, "b": 16, "c": 16}


def test_holm_family_is_per_federation():
    """Methods equal to the baseline count; methods of other federations do not."""
    values = random_values(["fedavg", "a", "b"], shift={"a": 0.3})
    values["digits"]["same"] = values["digits"]["fedavg"]
    table = statistics.compare(long_table(values), "accuracy", "fedavg", "mean")
    table = table.set_index(["federation", "method"])
    for federation, family in {"digits": 3, "synthetic": 2, "groups": 2}.items():
        smallest = table.loc[federation].p.min()
        np.testing.assert_allclose(table.loc[federation].p_holm.min(), min(1, family * smallest))
    assert np.isnan(table.p.loc["digits", "same"])
    assert not table.is_significant.loc["digits", "same"]
    assert table.difference.loc["digits", "same"] == 0


def overall_by_definition(values, method, baseline):
    """Computes the overall difference, interval and p in plain NumPy."""
    scaled = []
    for methods in values.values():
        if method in methods and baseline in methods:
            scale = np.nanstd(methods[baseline], ddof=1)
            scaled.append((np.asarray(methods[method]) - methods[baseline]) / scale)
    scaled = np.array(scaled)
    scaled = scaled[:, ~np.isnan(scaled).any(axis=0)]
    test = stats.ttest_1samp(scaled.mean(axis=0), 0)
    return (
        scaled.mean(),
        *test.confidence_interval(),
        test.pvalue,
    )


def test_overall_equals_numpy():
    values = random_values(["fedavg", "a", "b"], shift={"b": 1})
    values["digits"]["a"][3] = np.nan
    table = statistics.overall(long_table(values), "accuracy", "fedavg", "mean")
    rows = table.set_index("method")
    for name in "ab":
        numbers = overall_by_definition(values, name, "fedavg")
        columns = ["difference", "low", "high", "p"]
        np.testing.assert_allclose(rows.loc[name, columns].astype(float), numbers)
    np.testing.assert_allclose(rows.p_holm, holm_by_definition(list(rows.p)))
    assert rows.pairs.to_dict() == {"a": 15, "b": 16}
    assert rows.is_separated.to_dict() == {"a": False, "b": True}
    assert rows.same_sign["b"] == 3


def test_overall_does_not_depend_on_units():
    values = random_values(["fedavg", "a"], seed=1, shift={"a": 0.5})
    first = statistics.overall(long_table(values), "accuracy", "fedavg", "mean")
    values["digits"] = {name: 1000 * runs + 3 for name, runs in values["digits"].items()}
    second = statistics.overall(long_table(values), "accuracy", "fedavg", "mean")
    pd.testing.assert_frame_equal(first, second)
    unscaled = statistics.overall(long_table(values), "accuracy", "fedavg", "mean", is_scaled=False)
    gaps = [one["a"] - one["fedavg"] for one in values.values()]
    np.testing.assert_allclose(unscaled.difference[0], np.mean(gaps))


def test_overall_uses_federations_of_both_methods():
    values = random_values(["fedavg", "fedfb"])
    del values["digits"]["fedfb"]
    row = statistics.overall(long_table(values), "accuracy", "fedavg", "mean").iloc[0]
    assert row.federations == "synthetic, groups"
    assert row.num_federations == 2
    np.testing.assert_allclose(row.difference, overall_by_definition(values, "fedfb", "fedavg")[0])
    del values["synthetic"]["fedavg"]
    row = statistics.overall(long_table(values), "accuracy", "fedavg", "mean").iloc[0]
    assert row.federations == "groups"
    by_federation = statistics.compare(long_table(values), "accuracy", "fedavg", "mean")
    lost = by_federation[by_federation.federation == "synthetic"]
    assert lost.difference.isna().all()
    assert lost["mean"].notna().all()


def test_single_federation_equals_paired_test():
    values = random_values(["fedavg", "a"], ("digits",), shift={"a": 2})
    row = statistics.overall(long_table(values), "accuracy", "fedavg", "mean").iloc[0]
    test = stats.ttest_rel(values["digits"]["a"], values["digits"]["fedavg"])
    np.testing.assert_allclose(row.p, test.pvalue)
    assert row.is_separated


def test_opposed_federation_prevents_separation():
    values = random_values(["fedavg", "a"], shift={"a": 6})
    runs = values["digits"]
    runs["a"] = runs["fedavg"] - 0.05 - 0.001 * np.arange(len(SEEDS))
    row = statistics.overall(long_table(values), "accuracy", "fedavg", "mean").iloc[0]
    assert row.is_significant
    assert row.is_opposed
    assert row.same_sign == 2
    assert not row.is_separated


@pytest.mark.parametrize(("shift", "is_opposed"), [(-0.1, False), (-3, True)])
def test_one_of_six_signs_may_differ_if_not_significantly(shift, is_opposed):
    rng = np.random.default_rng(5)
    values = {}
    for index in range(6):
        noise = rng.normal(size=(2, len(SEEDS)))
        noise = (noise - noise.mean(axis=1, keepdims=True)) / noise.std(axis=1, keepdims=True)
        values[f"f{index}"] = {"fedavg": noise[0], "a": noise[1] + (6 if index else shift)}
    row = statistics.overall(long_table(values), "accuracy", "fedavg", "mean").iloc[0]
    assert (row.same_sign, row.is_stable, row.is_significant) == (5, True, True)
    assert row.is_opposed == is_opposed
    assert row.is_separated == (not is_opposed)


def test_result_that_rests_on_one_federation_is_not_stable():
    rng = np.random.default_rng(3)
    values = random_values(["fedavg"])
    for federation, shift in {"digits": 0.9, "synthetic": 0.0, "groups": 0.0}.items():
        runs = values[federation]
        noise = rng.normal(size=len(SEEDS))
        noise = (noise - noise.mean()) / noise.std(ddof=1) + 1e-3
        runs["a"] = runs["fedavg"] + runs["fedavg"].std(ddof=1) * (10 * shift + noise)
    row = statistics.overall(long_table(values), "accuracy", "fedavg", "mean").iloc[0]
    assert row.is_significant
    assert row.same_sign == 3
    assert not row.is_opposed
    assert not row.is_stable
    assert not row.is_separated


def test_baseline_under_another_name_is_rarely_significant_in_a_federation():
    """At most 5 % of repetitions, up to the 99.9 % binomial bound; repetitions are federations."""
    rng, repetitions = np.random.default_rng(11), 250
    values = {
        f"f{index}": {name: 0.5 + 0.1 * rng.normal(size=10) for name in ("fedavg", "other")}
        for index in range(repetitions)
    }
    compared = statistics.compare(long_table(values, seeds=range(10)), "accuracy", "fedavg", "mean")
    count = compared.is_significant.sum()
    low, high = stats.binom.ppf([0.001, 0.999], repetitions, 0.05)
    assert low <= count <= high


def test_baseline_under_another_name_is_rarely_separated_overall():
    """The same for the mean over three federations, and for six methods with Holm's procedure."""
    repetitions, pair, family = 40, 0, 0
    methods = ["fedavg", *"abcdef"]
    for repetition in range(repetitions):
        values = random_values(methods, seed=1000 + repetition)
        found = statistics.overall(long_table(values), "accuracy", "fedavg", "mean")
        pair += found.p[0] < 0.05
        family += found.is_significant.any()
        assert (found.is_significant | ~found.is_separated).all()
    limit = stats.binom.ppf(0.999, repetitions, 0.05)
    assert max(pair, family) <= limit


def test_planted_difference_is_found():
    """2 SD with 16 seeds: power 0.9998 for an unadjusted test of independent runs."""
    values = random_values(["fedavg", "a", "b", "worse"], shift={"b": 2, "worse": -2})
    table = statistics.overall(long_table(values), "accuracy", "fedavg", "mean")
    rows = table.set_index("method")
    assert rows.is_separated.to_dict() == {"a": False, "b": True, "worse": True}
    assert rows.difference["b"] > 1
    assert rows.difference["worse"] < -1


def test_few_seeds_are_never_significant():
    values = {"digits": {"fedavg": [0.1, 0.2, 0.3, 0.2], "a": [0.9, 1.0, 1.1, 1.01]}}
    table = long_table(values, seeds=range(4))
    compared = statistics.compare(table, "accuracy", "fedavg", "mean")
    assert compared.p_holm.min() < 0.001
    assert not compared.is_significant.any()


def test_missing_and_infinite_values():
    values = random_values(["fedavg", "a", "b"])
    values["digits"]["a"][:15] = np.nan
    values["digits"]["b"][2] = np.inf
    values["groups"]["b"][5] = -np.inf
    table = long_table(values)
    compared = statistics.compare(table, "accuracy", "fedavg", "mean")
    compared = compared.set_index(["federation", "method"])
    assert compared.pairs["digits", "a"] == 1
    assert np.isnan(compared.p["digits", "a"])
    assert np.isnan(compared.difference["digits", "b"])
    rows = statistics.overall(table, "accuracy", "fedavg", "mean").set_index("method")
    assert rows.federations["a"] == "synthetic, groups"
    assert not rows.is_separated["b"]


def test_constant_baseline_has_no_scale():
    values = {"digits": {"fedavg": [1.0] * 16, "a": np.arange(16.0)}}
    row = statistics.overall(long_table(values), "accuracy", "fedavg", "mean").iloc[0]
    assert (row.federations, row.num_federations, row.pairs) == ("", 0, 0)
    assert np.isnan(row.difference)
    assert not row.is_separated


def test_diverged_runs_count_as_constant_predictor():
    values = random_values(["fedavg", "a"])
    table = long_table(values)
    is_diverged = (table.federation == "digits") & (table.method == "a") & (table.seed < 104)
    table["is_diverged"] = is_diverged
    table.loc[is_diverged, "value"] = np.nan
    constants = {("digits", "accuracy"): 0.1, ("digits", "loss"): 7.0, ("groups", "accuracy"): 9.0}
    before = table.copy()
    kept = statistics.compare(table, "accuracy", "fedavg", "mean")
    made = statistics.replace_diverged(table, constants)
    replaced = statistics.compare(made, "accuracy", "fedavg", "mean")
    pd.testing.assert_frame_equal(table, before)
    values["digits"]["a"][:4] = 0.1
    expected = statistics.compare(long_table(values), "accuracy", "fedavg", "mean")
    pd.testing.assert_frame_equal(replaced, expected)
    assert kept.pairs.tolist() == [0, 12, 0, 16, 0, 16]
    whole = statistics.overall(made, "accuracy", "fedavg", "mean")
    np.testing.assert_allclose(whole.difference, [overall_by_definition(values, "a", "fedavg")[0]])


def test_errors():
    table = long_table(random_values(["fedavg", "a"]))
    for function in (statistics.compare, statistics.overall):
        with pytest.raises(ValueError, match="measure='speed': expected one of 'accuracy'"):
            function(table, "speed", "fedavg", "mean")
        with pytest.raises(ValueError, match="baseline='fedprox': expected one of 'fedavg', 'a'"):
            function(table, "accuracy", "fedprox", "mean")
        with pytest.raises(ValueError, match="criterion='best': expected one of 'mean'"):
            function(table, "accuracy", "fedavg", "best")
        with pytest.raises(ValueError, match="expected two or more seeds with 'accuracy', got 1"):
            function(table[table.seed == 100], "accuracy", "fedavg", "mean")
        with pytest.raises(ValueError, match="got two of federation=digits, method=fedavg"):
            function(pd.concat([table, table]), "accuracy", "fedavg", "mean")
        with pytest.raises(ValueError, match="seed missing"):
            function(table.drop(columns="seed"), "accuracy", "fedavg", "mean")
    with pytest.raises(ValueError, match="another method than the baseline 'fedavg'"):
        statistics.overall(table[table.method == "fedavg"], "accuracy", "fedavg", "mean")
