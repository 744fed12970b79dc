"""Verdicts on planted differences of fairness and accuracy, and on their margins."""

import numpy as np
import pandas as pd
import pytest
from measure_tables import SEEDS, long_table
from scipy import stats

from fedjax_fair.benchmark import statistics, verdicts
from fedjax_fair.metrics import paired

FEDERATIONS = ("digits", "synthetic", "groups")
METHODS = ("fedavg", "a", "b", "c", "d")
MEASURES = ("accuracy", "standard_deviation", "worst_10pct", "gini")
CRITERIA = ("mean", "fairest", "stopped")


def make_table(shifts=None, noise=0.004, methods=METHODS, criteria=CRITERIA):
    """Plants differences to ``fedavg`` by (method, federation, measure, criterion); None is all.

    Runs of a block have a part in common.
    """
    rng = np.random.default_rng(0)
    parts = []
    for criterion in criteria:
        for measure in MEASURES:
            values = {}
            for federation in FEDERATIONS:
                common = rng.normal(0.7, 0.02, len(SEEDS))
                values[federation] = {
                    method: common + rng.normal(0, noise, len(SEEDS)) for method in methods
                }
                for where, shift in (shifts or {}).items():
                    method, *rest = where
                    if all(
                        wanted in (None, own)
                        for wanted, own in zip(rest, (federation, measure, criterion), strict=True)
                    ):
                        values[federation][method] = values[federation][method] + shift
            parts.append(long_table(values, measure, criterion))
    return pd.concat(parts, ignore_index=True)


FAIR = {
    ("a", None, "standard_deviation", None): -0.03,
    ("a", None, "worst_10pct", None): 0.03,
    ("a", None, "gini", None): -0.03,
}


def judge(table, **options):
    """Returns the spread row of ``a`` over all federations, and the differences."""
    compared = verdicts.differences(table, "fedavg", **options)
    ranks = verdicts.overall(table, "fedavg", METHODS, compared, **options)
    return ranks, compared


def row_of(ranks, method="a", order="spread"):
    return ranks[(ranks.method == method) & (ranks.order == order)].iloc[0]


def of(compared, federation, method, measure, criterion="mean"):
    keys = ["federation", "method", "measure", "criterion"]
    return compared.set_index(keys).loc[federation, method, measure, criterion]


def test_planted_differences_have_verdicts():
    table = make_table(
        {("a", "digits", "accuracy", "mean"): 0.03,
         ("b", "groups", "accuracy", "mean"): -0.03,
         ("c", "synthetic", "standard_deviation", "fairest"): -0.03}
    )  # fmt: skip
    _, compared = judge(table)
    judged = compared[compared.family == "F2"]
    found = judged[judged.verdict.isin(["better", "worse"])]
    keys = ["federation", "method", "measure", "verdict"]
    assert found[keys].to_numpy().tolist() == [
        ["digits", "a", "accuracy", "better"],
        ["groups", "b", "accuracy", "worse"],
        ["synthetic", "c", "standard_deviation", "better"],
    ]
    assert len(judged) == 2 * 3 * 4
    assert set(compared[compared.family == ""].verdict) == {""}
    assert compared[compared.family == ""].p.isna().all()
    gaps = [
        statistics.differences(table, measure, criterion, "fedavg")
        for measure, criterion in verdicts.FAMILIES["F2"]
    ]
    p = statistics.step_down(np.concatenate(gaps)).p
    np.testing.assert_array_equal(judged.p, p)


@pytest.mark.parametrize("sign", [1, -1])
def test_equivalent_and_not_inferior_by_the_margin(sign):
    shifts = {("a", "digits", "accuracy", "mean"): sign * 0.0035}
    _, compared = judge(make_table(shifts, noise=0.001))
    close = of(compared, "digits", "a", "accuracy")
    assert close.p < 0.05
    assert close.verdict == ("better" if sign > 0 else "worse")
    assert (close.p_equivalent < 0.05, close.is_noninferior) == (True, True)
    others = compared[(compared.family == "F2") & (compared.method != "a")]
    assert set(others.verdict) == {"equivalent"}
    far = {("a", "digits", "accuracy", "mean"): sign * 0.0052}
    _, compared = judge(make_table(far, noise=0.001))
    assert of(compared, "digits", "a", "accuracy").is_noninferior == (sign > 0)


def test_undecided_rows_have_the_blocks_that_they_need():
    _, compared = judge(make_table(noise=0.02))
    rows = compared[(compared.verdict == "undecided") & (compared.family == "F2")]
    assert len(rows) > 20
    assert compared.blocks_needed[compared.verdict != "undecided"].isna().all()
    gaps = [
        statistics.differences(make_table(noise=0.02), measure, criterion, "fedavg")
        for measure, criterion in verdicts.FAMILIES["F2"]
    ]
    threshold = statistics.step_down(np.concatenate(gaps)).threshold
    for row in rows.itertuples():
        expected = statistics.blocks_needed(row.deviation, statistics.MARGIN, threshold)
        assert row.blocks_needed == expected > len(SEEDS)


def test_the_error_of_the_test_pool_withdraws_a_claim():
    table = make_table({("a", "digits", "accuracy", "mean"): 0.01}, noise=0.003)
    error = {"federation": "digits", "method": "a", "criterion": "mean", "measure": "accuracy"}
    large, small = (
        judge(table, pool_errors=pd.DataFrame([error | {"se": se}]))[1] for se in (0.02, 1e-6)
    )
    assert of(judge(table)[1], "digits", "a", "accuracy").verdict == "better"
    assert of(small, "digits", "a", "accuracy").verdict == "better"
    row = of(large, "digits", "a", "accuracy")
    assert row.verdict == "undecided"
    assert row.low < 0 < row.low_blocks
    assert np.isinf(row.blocks_needed)
    assert of(large, "groups", "a", "accuracy").se_pool != row.se_pool


def test_the_worse_side_of_a_claim_is_at_no_limit():
    shifts = {("a", "digits", "accuracy", "mean"): -0.03, ("b", "digits", "accuracy", "mean"): 0.03}
    table = make_table(shifts)
    found = {
        limited: [
            of(judge(table, at_limit={limited})[1], "digits", method, "accuracy").verdict
            for method in "ab"
        ]
        for limited in (("digits", "a"), ("digits", "b"), ("groups", "a"), ("digits", "fedavg"))
    }
    assert found == {
        ("digits", "a"): ["limit", "better"],
        ("digits", "b"): ["worse", "better"],
        ("groups", "a"): ["worse", "better"],
        ("digits", "fedavg"): ["worse", "limit"],
    }
    ranks, _ = judge(table, at_limit={("groups", "a")})
    assert "a" not in set(ranks.method)
    ranks, _ = judge(table, at_limit={("groups", "fedavg")})
    assert set(ranks.verdict) == {""}


def test_spread_of_chance_has_an_interval_and_no_verdict():
    table = make_table(FAIR)
    _, compared = judge(table, without_spread=("groups",))
    row = of(compared, "groups", "a", "standard_deviation", "fairest")
    assert row.verdict == ""
    assert np.isnan(row.p)
    assert row.high < 0
    assert of(compared, "groups", "a", "accuracy").verdict != ""
    assert of(compared, "digits", "a", "standard_deviation", "fairest").verdict == "better"


def test_ranks_and_their_differences_are_those_of_all_federations():
    table = make_table({("a", None, "accuracy", "mean"): 0.03})
    ranks, _ = judge(table)
    row = row_of(ranks, order="accuracy")
    assert (row["rank"], row.beaten, row.verdict) == (1, 1, "better")
    assert ranks[ranks.order == "accuracy"].method.iloc[0] == "a"
    values = table[(table.measure == "accuracy") & (table.criterion == "mean")]
    rank = values.groupby(["federation", "seed"])["value"].rank(ascending=False)
    means = rank.groupby([values["method"], values["seed"]]).mean().unstack("method")
    for name in METHODS[1:]:
        found = row_of(ranks, name, "accuracy")
        test = stats.ttest_1samp(means[name] - means["fedavg"], 0)
        np.testing.assert_allclose(found["rank"], means[name].mean())
        np.testing.assert_allclose(found.beaten, (5 - means[name].mean()) / 4)
        limits = test.confidence_interval()
        np.testing.assert_allclose([found.low, found.high], [limits.low, limits.high])
    assert ranks[ranks.method != "fedavg"].p.notna().all()
    tested = [row_of(ranks, name, order) for order in ("accuracy", "spread") for name in "abcd"]
    both = []
    for measure, criterion, sign in (
        ("accuracy", "mean", -1),
        ("standard_deviation", "fairest", 1),
    ):
        values = table[(table.measure == measure) & (table.criterion == criterion)]
        rank = (sign * values["value"]).groupby([values["federation"], values["seed"]]).rank()
        means = rank.groupby([values["method"], values["seed"]]).mean().unstack("seed")
        both.append(means.loc[list("abcd")] - means.loc["fedavg"])
    family = statistics.step_down(pd.concat(both).to_numpy())
    np.testing.assert_allclose([row.p for row in tested], family.p)
    for row in tested:
        needed = statistics.blocks_needed(row.deviation, 1.0, family.threshold)
        np.testing.assert_equal(row.blocks_needed, needed if row.verdict == "undecided" else np.nan)
    assert {row.verdict for row in tested} == {"better", "undecided"}


def test_fairer_and_robust():
    table = make_table(FAIR)
    ranks, _ = judge(table)
    row = row_of(ranks)
    assert (row.verdict, row.is_fairer, row.is_robust) == ("better", True, True)
    spread = table[(table.measure == "standard_deviation") & (table.criterion == "fairest")]
    means = spread.groupby(["federation", "method"])["value"].mean().unstack("method")
    np.testing.assert_allclose(row.spread_ratio, stats.gmean(means["a"] / means["fedavg"]))
    assert not ranks[ranks.method != "a"].is_fairer.any()
    assert not ranks[ranks.order == "accuracy"].is_fairer.any()


def test_fairer_needs_accuracy():
    """By the limit of the mean over federations, with the settings of the least spread."""
    for shift, criterion, is_fairer in (
        (-0.02, "fairest", False),
        (-0.02, "mean", True),
        (-0.001, "fairest", True),
    ):
        table = make_table(FAIR | {("a", None, "accuracy", criterion): shift})
        row = row_of(judge(table)[0])
        assert (row.verdict, row.is_fairer) == ("better", is_fairer)
        values = table[(table.measure == "accuracy") & (table.criterion == "fairest")]
        wide = values.pivot(index=["federation", "seed"], columns="method", values="value")
        gaps = (wide["a"] - wide["fedavg"]).groupby("seed").mean()
        limit = stats.ttest_1samp(gaps, 0).confidence_interval().low
        np.testing.assert_allclose(row.accuracy_low, limit)
    keys = {"criterion": "fairest", "measure": "accuracy", "method": "a", "se": 0.006}
    errors = pd.DataFrame([keys | {"federation": name} for name in FEDERATIONS])
    row = row_of(judge(table, pool_errors=errors)[0])
    half = stats.t.isf(0.025, 11) * np.hypot(stats.sem(gaps), 0.006 / np.sqrt(3))
    np.testing.assert_allclose(row.accuracy_difference - row.accuracy_low, half)
    assert not row.is_fairer


def test_fairer_needs_no_federation_with_more_spread():
    shifts = FAIR | {("a", "groups", "standard_deviation", "fairest"): 0.05}
    # FedAvg has the last rank in the others, so that the mean rank of `a` is better.
    for name in ("digits", "synthetic"):
        shifts["fedavg", name, "standard_deviation", "fairest"] = 0.05
    ranks, compared = judge(make_table(shifts, noise=0.001))
    assert of(compared, "groups", "a", "standard_deviation", "fairest").verdict == "worse"
    row = row_of(ranks)
    assert row.verdict == "better"
    assert row.accuracy_low > -statistics.MARGIN
    assert (row.is_fairer, row.is_robust) == (False, False)


@pytest.mark.parametrize(
    "where",
    [
        ("a", None, "worst_10pct", "fairest"),
        ("a", None, "gini", "fairest"),
        ("a", None, "standard_deviation", "stopped"),
    ],
    ids=lambda where: "-".join(where[2:]),
)
def test_robust_needs_every_table(where):
    sign = -1 if where[2] == "worst_10pct" else 1
    row = row_of(judge(make_table(FAIR | {where: 0.08 * sign}))[0])
    assert (row.is_fairer, row.is_robust) == (True, False)
    without = make_table(FAIR)
    without = without[(without.measure != where[2]) | (without.criterion != where[3])]
    row = row_of(judge(without)[0])
    assert (row.is_fairer, row.is_robust) == (True, False)


def test_robust_needs_the_sign_without_any_federation():
    """Slightly more spread on two federations, and much less on the third one."""
    shifts = {key: value for key, value in FAIR.items() if key[2] != "standard_deviation"}
    shifts[("a", "digits", "standard_deviation", None)] = -0.03
    others = {("fedavg", "digits", "standard_deviation", None): 0.03}
    table = make_table(shifts | others, noise=0.004)
    ranks, _ = judge(table)
    row = row_of(ranks)
    assert row.is_fairer
    only = table[table.federation != "digits"]
    is_better = row_of(judge(only)[0]).difference < 0
    assert row.is_robust == is_better
    alone = table[table.federation == "digits"]
    row = row_of(judge(alone)[0])
    assert (row.is_fairer, row.is_robust) == (True, False)


def test_group_gaps_are_a_family_of_group_fair_methods():
    gap = "demographic_parity_difference"
    rng = np.random.default_rng(1)
    levels = {"fedavg": 0.2, "a": 0.1, "b": 0.2}
    values = {n: rng.normal(level, 0.01, len(SEEDS)) for n, level in levels.items()}
    parity = {"groups": {name: values[name] for name in "ab"}}
    table = pd.concat(
        [make_table(), long_table({"groups": values}, gap), long_table(parity, gap, "parity")],
        ignore_index=True,
    )
    _, compared = judge(table)
    rows = compared[compared.family == "F3"].set_index("method")
    assert rows.verdict.to_dict() == {"a": "better", "b": "undecided"}
    np.testing.assert_allclose(
        rows.difference[["a", "b"]], [np.mean(values[n] - values["fedavg"]) for n in "ab"]
    )
    worse = {"groups": {"fedavg": values["a"] - 0.05, **parity["groups"]}}
    table = pd.concat([table, long_table(worse, gap, "parity")]).drop_duplicates(
        ["federation", "method", "criterion", "seed", "measure"]
    )
    rows = judge(table)[1].query("family == 'F3'").set_index("method")
    assert rows.verdict.to_dict() == {"a": "worse", "b": "worse"}


def test_claims_on_accuracy_name_whether_they_need_the_last_round():
    shifts = {
        ("a", None, "accuracy", "mean"): 0.03,
        ("b", None, "accuracy", None): 0.02,
        ("c", "digits", "standard_deviation", "fairest"): -0.03,
    }
    table = make_table(shifts)
    known = verdicts.statements(*judge(table))
    needs = known.groupby(["method", "family"])["needs_last_round"].agg(["all", "any"])
    assert needs.loc[("a", "F2")].tolist() == [True, True]
    assert needs.loc[("b", "F2")].tolist() == [False, False]
    assert not needs.loc[("c", "F2"), "any"]
    of_ranks = known[(known.family == "F1") & (known.order == "accuracy")].set_index("method")
    assert of_ranks.needs_last_round["a"]
    assert not of_ranks.needs_last_round["b"]
    without = table[table.criterion != "stopped"]
    assert not verdicts.statements(*judge(without)).needs_last_round.any()
    assert set(known.family) <= {"F1", "F2"}
    assert "stopped" not in set(verdicts.undecided(*judge(table)).order)


def test_statements_and_what_is_undecided():
    table = make_table(FAIR | {("b", "digits", "accuracy", "mean"): 0.03}, noise=0.001)
    ranks, compared = judge(table)
    known, unknown = verdicts.statements(ranks, compared), verdicts.undecided(ranks, compared)
    assert known.scope.iloc[0] == "overall"
    assert set(unknown.verdict) == {"undecided"}
    judged = (compared.verdict != "").sum() + (ranks.verdict != "").sum()
    assert len(known) + len(unknown) <= judged
    equal = known[known.verdict == "equivalent"]
    family = compared[compared.family == "F2"]
    adjusted = pd.Series(paired.holm(family.p_equivalent.tolist()), family.index)
    expected = adjusted[(family.verdict == "equivalent") & (adjusted < 0.05)]
    assert len(expected) > 5
    np.testing.assert_array_equal(equal.p, expected)
    empty = verdicts.differences(table[table.method != "fedavg"], "fedavg")
    assert empty.empty
    ranks = verdicts.overall(table[table.method != "fedavg"], "fedavg", METHODS, empty)
    assert verdicts.statements(ranks, empty).empty
