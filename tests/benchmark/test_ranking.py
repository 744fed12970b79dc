"""Rankings and groups, against brute force."""

import itertools
import string

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedjax_fair.benchmark.ranking import groups, ranking
from fedjax_fair.benchmark.statistics import replace_diverged

METHODS = ["fedavg", "a", "b", "c"]
LEVELS = {"digits": (0.5, 0.1), "synthetic": (0.7, 0.01), "groups": (0.9, 0.03)}


def draw(shift, seed=0, measure="accuracy", seeds=16):
    """Returns normal values ``{federation: {method: values}}`` and the table of measures."""
    rng = np.random.default_rng(seed)
    values = {
        federation: {
            name: level + spread * (rng.normal(size=seeds) + shift.get(name, 0)) for name in METHODS
        }
        for federation, (level, spread) in LEVELS.items()
    }
    return values, to_table(values, measure)


def to_table(values, measure="accuracy"):
    return pd.DataFrame(
        {
            "federation": federation,
            "method": method,
            "criterion": "mean",
            "seed": 100 + seed,
            "measure": measure,
            "value": value,
            "is_diverged": False,
        }
        for federation, methods in values.items()
        for method, runs in methods.items()
        for seed, value in enumerate(runs)
    )


def separated_by_definition(samples):
    """Tests all pairs of ``{method: values by seed}`` with Holm's procedure."""
    pairs = list(itertools.combinations(samples, 2))
    p_values = [stats.ttest_rel(samples[one], samples[two]).pvalue for one, two in pairs]
    order, found = np.argsort(p_values), set()
    for step, index in enumerate(order):
        if p_values[index] * (len(pairs) - step) >= 0.05:
            break
        found.add(frozenset(pairs[index]))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_ranking_equals_brute_force(seed):
    values, table = draw({"a": 1, "b": -0.8, "c": 2.2}, seed)
    found = ranking(table, "accuracy", "mean")
    assert list(dict.fromkeys(found.scope)) == ["overall", *LEVELS]
    scaled = {
        name: np.mean(
            [
                (runs[name] - runs["fedavg"]) / runs["fedavg"].std(ddof=1)
                for runs in values.values()
            ],
            axis=0,
        )
        for name in METHODS
    }
    for scope, rows in found.groupby("scope"):
        samples = scaled if scope == "overall" else values[scope]
        means = {name: runs.mean() for name, runs in samples.items()}
        assert rows.method.tolist() == sorted(METHODS, key=lambda name: -means[name])
        assert rows["rank"].tolist() == [1, 2, 3, 4]
        separated = separated_by_definition(samples)
        letters = dict(zip(rows.method, rows.letters, strict=True))
        for pair in itertools.combinations(METHODS, 2):
            shares = bool(set(letters[pair[0]]) & set(letters[pair[1]]))
            assert shares == (frozenset(pair) not in separated)


def test_lower_is_better():
    _, table = draw({"a": 1, "b": -1, "c": 3}, measure="gini")
    found = ranking(table, "gini", "mean")
    assert found[found.scope == "overall"].method.tolist() == ["b", "fedavg", "a", "c"]


def test_equal_methods_share_a_group_and_planted_ones_do_not():
    found = ranking(draw({"c": 2})[1], "accuracy", "mean")
    letters = found[found.scope == "overall"].set_index("method").letters.to_dict()
    assert letters == {"c": "a", "a": "b", "b": "b", "fedavg": "b"}


def test_methods_without_all_federations_come_last():
    values, _ = draw({"c": 2})
    del values["digits"]["c"]
    found = ranking(to_table(values), "accuracy", "mean")
    last = found[found.scope == "overall"].iloc[-1]
    assert last.method == "c"
    assert np.isnan(last["rank"])
    assert last.letters == ""
    assert found[found.scope == "digits"].shape[0] == 3
    del values["digits"]["fedavg"]
    found = ranking(to_table(values), "accuracy", "mean")
    overall = found[found.scope == "overall"].set_index("method")
    assert overall["rank"].notna().all()
    assert found[found.scope == "digits"]["rank"].tolist() == [1, 2]


def test_few_seeds_are_not_separated():
    found = ranking(draw({"c": 50}, seeds=4)[1], "accuracy", "mean")
    assert set(found.letters) == {"a"}


def test_constants_replace_diverged_runs():
    _, table = draw({})
    is_diverged = (table.federation == "digits") & (table.method == "a")
    table.loc[is_diverged, ["is_diverged", "value"]] = [True, np.nan]
    without = ranking(table, "accuracy", "mean")
    assert np.isnan(without.set_index(["scope", "method"])["rank"]["digits", "a"])
    constants = {("digits", "accuracy"): 0.0}
    found = ranking(replace_diverged(table, constants), "accuracy", "mean")
    assert found[found.scope == "digits"].method.tolist()[-1] == "a"


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_maximal(seed):
    rng = np.random.default_rng(seed)
    names = list(string.ascii_uppercase[: rng.integers(1, 8)])
    pairs = [frozenset(pair) for pair in itertools.combinations(names, 2)]
    separated = {pair for pair in pairs if rng.random() < rng.random()}
    letters = groups(names, separated)

    def is_group(subset):
        return not any(frozenset(pair) in separated for pair in itertools.combinations(subset, 2))

    subsets = [
        set(subset)
        for size in range(1, len(names) + 1)
        for subset in itertools.combinations(names, size)
        if is_group(subset)
    ]
    maximal = [one for one in subsets if not any(one < other for other in subsets)]
    used = sorted(set("".join(letters.values())))
    found = [{name for name in names if letter in letters[name]} for letter in used]
    assert sorted(map(sorted, found)) == sorted(map(sorted, maximal))
    assert letters[names[0]].startswith("a")


def test_groups_of_nothing_and_of_many():
    assert groups([], set()) == {}
    names = [f"m{index}" for index in range(60)]
    separated = {frozenset(pair) for pair in itertools.combinations(names, 2)}
    letters = groups(names, separated)
    assert len(set(letters.values())) == 60
    assert [letters[f"m{index}"] for index in (25, 26, 51, 52)] == ["z", "A", "Z", "a1"]


def test_errors():
    table = draw({})[1]
    with pytest.raises(ValueError, match="baseline='x': expected one of 'fedavg'"):
        ranking(table, "accuracy", "mean", baseline="x")
    with pytest.raises(ValueError, match="measure='x'"):
        ranking(table, "x", "mean")
    with pytest.raises(ValueError, match="criterion='x'"):
        ranking(table, "accuracy", "x")
    with pytest.raises(ValueError, match="two or more seeds"):
        ranking(table[table.seed == 100], "accuracy", "mean")
