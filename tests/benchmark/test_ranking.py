"""Orders of methods, against SciPy and by construction."""

import numpy as np
import pandas as pd
import pytest
from measure_tables import SEEDS, long_table, random_values
from scipy import stats

from fedjax_fair.benchmark.ranking import ORDERS, chance_shares, mean_ranks, order, ranks

METHODS = ["fedavg", "a", "b", "c"]


@pytest.mark.parametrize(("measure", "sign"), [("accuracy", -1), ("gini", 1)])
def test_ranks_equal_scipy(measure, sign):
    rng = np.random.default_rng(0)
    values = {
        name: {method: rng.integers(0, 4, len(SEEDS)) / 4 for method in METHODS}
        for name in ("digits", "groups")
    }
    found = ranks(long_table(values, measure), measure, "mean", METHODS)
    for name, methods in values.items():
        expected = stats.rankdata(sign * np.array(list(methods.values())), axis=0)
        np.testing.assert_array_equal(found.loc[name].loc[METHODS], expected)
    expected = (found.loc["digits"] + found.loc["groups"]) / 2
    pd.testing.assert_frame_equal(mean_ranks(found).loc[METHODS], expected.loc[METHODS])


def test_an_entry_changes_no_published_rank():
    values = random_values(METHODS)
    reference = ["fedavg", "b", "c"]
    whole = ranks(long_table(values), "accuracy", "mean", reference)
    for name in values:
        without = {method: values[name][method] for method in reference}
        alone = ranks(long_table({name: without}), "accuracy", "mean", reference)
        pd.testing.assert_frame_equal(whole.loc[[name]].loc[alone.index], alone)
        # As in the table of the reference set and the entry.
        expected = stats.rankdata(-np.array([values[name][m] for m in METHODS]), axis=0)
        np.testing.assert_array_equal(whole.loc[name].loc["a"], expected[1])


def test_diverged_and_missing_runs_are_last():
    values = random_values(METHODS)
    values["digits"]["a"][3] = np.nan
    table = long_table(values)
    is_diverged = (table.federation == "digits") & (table.seed == 1203) & (table.method == "b")
    # Its loss may be finite, and its accuracy that of a constant predictor.
    table.loc[is_diverged, ["is_diverged", "value"]] = [True, 1.0]
    found = ranks(table, "accuracy", "mean", METHODS).loc["digits"]
    assert found.loc[["a", "b"], 1203].tolist() == [3.5, 3.5]
    assert (found.loc[["fedavg", "c"], 1203] <= 2).all()


def test_methods_without_a_model_at_equal_compute_are_last():
    values = random_values(METHODS)
    equal = {name: {m: runs[m] for m in METHODS[:3]} for name, runs in values.items()}
    table = pd.concat([long_table(values), long_table(equal, criterion="compute")])
    found = order(table, METHODS)
    assert set(found) == {"accuracy", "compute"}
    assert (found["compute"].xs("c", level="method") == 4).all(axis=None)


def spreads_and_accuracies(methods=METHODS, shift=None):
    parts = [
        long_table(random_values(methods, seed=i, shift=shift), *ORDERS[name])
        for i, name in enumerate(("accuracy", "spread"))
    ]
    return pd.concat(parts, ignore_index=True)


def test_without_a_model_of_any_method_there_is_no_order():
    known, unknown = (
        long_table(random_values(METHODS), "accuracy", c) for c in ("mean", "compute")
    )
    for lost in (unknown.assign(value=np.nan), unknown.assign(is_diverged=True)):
        assert set(order(pd.concat([known, lost]), METHODS)) == {"accuracy"}


def test_only_methods_of_all_federations_at_no_limit_are_ranked_and_counted():
    table = spreads_and_accuracies([*METHODS, "d"])
    table = table[~((table.method == "c") & (table.federation == "digits"))]
    found = order(table, [*METHODS, "d"], at_limit={("groups", "b")})
    kept = table[table.method.isin(["fedavg", "a", "d"])]
    assert set(found) == {"accuracy", "spread"}
    for name, ranked in found.items():
        expected = ranks(kept, *ORDERS[name], [*METHODS, "d"])
        pd.testing.assert_frame_equal(ranked, expected)
    assert order(table, METHODS, at_limit={("digits", name) for name in [*METHODS, "d"]}) == {}


def test_spread_that_is_mostly_chance_has_no_rank():
    table = spreads_and_accuracies()
    found = order(table, METHODS, without_spread=("groups",))
    assert set(found["accuracy"].index.get_level_values(0)) == {"digits", "synthetic", "groups"}
    assert set(found["spread"].index.get_level_values(0)) == {"digits", "synthetic"}


def test_blocks_that_a_federation_lacks_are_left_out():
    values = random_values(METHODS)
    table = long_table(values)
    table = table[(table.federation != "digits") | (table.seed < 1208)]
    found = ranks(table, "accuracy", "mean", METHODS)
    assert found.loc["digits"].isna().sum().tolist() == [0] * 8 + [4] * 4
    assert mean_ranks(found).columns.tolist() == list(SEEDS[:8])


def test_chance_is_the_ratio_of_mean_squares():
    rng = np.random.default_rng(0)
    spread, floor = rng.uniform(0.1, 0.2, (2, len(SEEDS)))
    parts = [
        long_table({"digits": {"fedavg": values, "a": values / 9}}, measure)
        for measure, values in (("standard_deviation", spread), ("noise_floor", floor))
    ]
    parts.append(long_table({"ages": {"fedavg": spread}}, "standard_deviation"))
    shares = chance_shares(pd.concat(parts), "fedavg")
    assert shares == pytest.approx({"digits": np.mean(floor**2) / np.mean(spread**2)})
    assert chance_shares(parts[0], "fedavg") == {}
