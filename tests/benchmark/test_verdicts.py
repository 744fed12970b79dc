"""Verdicts on planted differences of fairness and accuracy."""

import numpy as np
import pandas as pd
import pytest
from measure_tables import long_table, random_values
from scipy import stats

from fedjax_fair.benchmark import statistics, verdicts
from fedjax_fair.benchmark.protocol import CRITERIA


def judge(table, *methods, **options):
    return verdicts.primary(verdicts.evidence(table, list(methods), "fedavg", **options))


def fairness_table(spread=0.0, accuracy=0.0, criteria=CRITERIA, seed=0):
    """Plants shifts of ``a`` in standard deviations, positive is fairer or more accurate."""
    tables = []
    for index, criterion in enumerate(criteria):
        for place, measure in enumerate(("accuracy", *verdicts.FAIRNESS_MEASURES)):
            shift = accuracy if measure == "accuracy" else spread
            shift *= statistics.direction(measure)
            values = random_values(
                ["fedavg", "a", "b"], seed=seed + 10 * index + place, shift={"a": shift}
            )
            tables.append(long_table(values, measure, criterion))
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize(
    ("spread", "accuracy", "verdict"),
    [
        (3, 3, "fairer"),
        (3, -3, "fairer, trade-off"),
        (-3, 3, "less fair"),
        (0, 3, "no verdict"),
    ],
)
def test_verdicts(spread, accuracy, verdict):
    table = judge(fairness_table(spread, accuracy), "a")
    assert table.scope.tolist() == ["overall", "digits", "synthetic", "groups"]
    first = table.iloc[0]
    assert (first.method, first.verdict) == ("a", verdict)
    assert (first.measure, first.criterion) == ("standard_deviation", "mean")
    if spread:
        assert first.is_robust
        assert first.agreeing == 9
        assert first.fairer_in == (9 if spread > 0 else 0)
        assert np.sign(first.low) == np.sign(first.gain) == np.sign(first.high) == np.sign(spread)
        assert first.low < first.gain < first.high


def test_verdicts_of_several_methods():
    table = fairness_table(3, -3)
    one = [judge(table, name) for name in "ba"]
    pd.testing.assert_frame_equal(judge(table, "b", "a"), pd.concat(one, ignore_index=True))


def test_robust_needs_all_criteria_and_measures():
    table = fairness_table(3, 3)
    assert not judge(table[table.criterion != "worst"], "a").is_robust.any()
    is_gini = (table.measure == "gini") & (table.method == "a") & (table.criterion == "worst")
    other = fairness_table(0, 3, seed=77)
    table.loc[is_gini, "value"] = other.loc[is_gini, "value"]
    first = judge(table, "a").iloc[0]
    assert (first.verdict, first.agreeing, first.is_robust) == ("fairer", 8, False)
    assert first.fairer_in == 8


def test_accuracy_margin():
    """Accuracy is kept if the lower limit of the unscaled mean difference is above -margin."""
    table = fairness_table(3, -0.2)
    rows = verdicts.evidence(table, ["a"], "fedavg")
    values = table[(table.measure == "accuracy") & (table.criterion == "mean")]
    wide = values.pivot(index=["federation", "seed"], columns="method", values="value")
    gaps = (wide["a"] - wide["fedavg"]).unstack("federation")
    limit = stats.ttest_1samp(gaps.mean(axis=1), 0).confidence_interval().low
    first = rows.iloc[0]
    np.testing.assert_allclose(first.accuracy_low, limit)
    for margin, verdict in ((-limit * 0.99, "fairer, trade-off"), (-limit * 1.01, "fairer")):
        one = judge(table, "a", margin=margin).iloc[0]
        assert one.verdict == verdict
    digits = stats.ttest_1samp(gaps["digits"], 0).confidence_interval().low
    found = rows[(rows.scope == "digits") & (rows.criterion == "mean")].accuracy_low
    np.testing.assert_allclose(found, digits)


def test_errors_of_verdicts():
    table = fairness_table()
    with pytest.raises(ValueError, match="methods='c': expected one of 'fedavg', 'a', 'b'"):
        judge(table, "c")
    with pytest.raises(ValueError, match="expected other methods than the baseline"):
        judge(table, "fedavg")
    with pytest.raises(ValueError, match="margin=-1: expected a number >= 0"):
        judge(table, "a", margin=-1)
    with pytest.raises(ValueError, match="criterion='mean'"):
        judge(table[table.criterion != "mean"], "a")
    with pytest.raises(ValueError, match="measure='gini'"):
        judge(table[table.measure != "gini"], "a")
