"""The study of slow devices: its clients, speeds, settings and comparisons."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.reproduction import slow_devices as study
from experiments.reproduction import slow_devices_results as results

SEEDS = range(4)
SHIFTS = np.array([0.03, 0.01, 0.05, 0.02])


@pytest.mark.parametrize("is_final", [False, True])
def test_clients_have_their_digits_and_no_example_twice(is_final):
    data = study.partition(3, is_final)
    parts = [data.train, data.test, *([] if is_final else [data.validation])]
    everyone = np.concatenate([part.order[: sum(part.sizes)] for part in parts])
    assert len(np.unique(everyone)) == len(everyone)
    for client in range(study.CLIENTS):
        for part in parts:
            labels = data.train.labels[part.client_indices[client]]
            is_low = np.isin(labels, study.LOW_DIGITS)
            assert is_low.all() if client < study.NUM_LOW else not is_low.any()
    tuned = study.partition(3, False)
    np.testing.assert_array_equal(data.train.sizes, tuned.train.sizes)


def test_independent_speeds_have_the_share_of_slow_devices_in_both_kinds():
    shares = {}
    for speeds in study.SLOW:
        times = study.times_of(speeds)
        is_slow = np.asarray(times.seconds_per_example) == 0.05
        names = np.asarray(times.class_names)[np.asarray(times.device_class)]
        np.testing.assert_array_equal(is_slow, names == "slow")
        shares[speeds] = [
            is_slow[: study.NUM_LOW].mean(), is_slow[study.NUM_LOW :].mean()
        ]  # fmt: skip
    assert shares["correlated"] == [1, 0]
    np.testing.assert_allclose(shares["independent"], 0.4, atol=0.03)
    assert len(study.SLOW["correlated"]) == len(study.SLOW["independent"])


def test_all_methods_try_as_many_settings():
    assert {len(set(method.settings)) for method in study.METHODS.values()} == {12}
    assert not set(study.TUNING_SEEDS) & set(study.SEEDS)


def test_the_setting_has_the_best_mean_validation_accuracy():
    columns = ["speeds", "algorithm", "learning_rate", "own", "validation"]
    rows = [
        ("correlated", "area", 0.1, np.nan, 0.9),
        ("correlated", "area", 0.1, np.nan, 0.5),
        ("correlated", "area", 0.2, np.nan, 0.8),
        ("independent", "area", 0.3, np.nan, 0.99),
        ("correlated", "ca2fl", 0.4, 1.0, 0.99),
        ("correlated", "ca2fl", 0.4, 2.0, 0.98),
    ]
    tuning = pd.DataFrame(rows, columns=pd.Index(columns))
    rate, own = study.best_setting(tuning, "correlated", "area")
    assert rate == 0.2
    assert np.isnan(own)
    assert study.best_setting(tuning, "correlated", "ca2fl") == (0.4, 1.0)


def table_of(shift):
    """Runs of the reference, and of two methods whose slow devices differ by ``shift``."""
    rows = []
    for speeds in study.SLOW:
        for method in (results.REFERENCE, "fedbuff", "area"):
            for seed in SEEDS:
                row = dict.fromkeys(results.MEASURES, 0.8 + 0.01 * seed)
                row |= {"speeds": speeds, "algorithm": method, "seed": seed}
                if method != results.REFERENCE:
                    row["accuracy_slow"] += shift[seed]
                rows.append(row)
    return pd.DataFrame(rows)


def test_differences_are_paired_and_adjusted_for_all_claims():
    table = results.summarize(table_of(SHIFTS))
    claims = table[table["p"].notna()]
    assert set(claims["measure"]) == {"accuracy_slow"}
    assert len(claims) == 4
    half = 100 * stats.sem(SHIFTS) * stats.t.ppf(0.975, 3)
    mean = 100 * SHIFTS.mean()
    for _, row in claims.iterrows():
        np.testing.assert_allclose(
            row[["low", "difference", "high"]].astype(float), [mean - half, mean, mean + half]
        )
    p = 2 * stats.t.sf(SHIFTS.mean() / stats.sem(SHIFTS), 3)
    np.testing.assert_allclose(claims["p"], p)
    np.testing.assert_allclose(claims["p_holm"], 4 * p)
    others = table[table["p"].isna()]
    np.testing.assert_allclose(others["difference"], 0, atol=1e-9)


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.2, "better"), (-0.2, "worse"), (-0.025, "undecided")]
)
def test_verdicts_are_those_of_adjusted_p_values(shift, verdict):
    table = results.summarize(table_of(SHIFTS + shift))
    assert set(table.loc[table["p"].notna(), "verdict"]) == {verdict}


def test_a_run_ends_after_the_time_and_is_measured_before_it(monkeypatch):
    monkeypatch.setattr(study, "SEEDS", (0,))
    runs = pd.DataFrame({"learning_rate": [0.1], "own": [1.0], "seed": [0]})
    row = study.train("correlated", "fedbuff", runs, seconds=40.0).iloc[0]
    assert 20 < row["seconds"] <= 40
    assert row["results"] % study.BUFFER == 0
    assert 0 < row["share_slow"] < 0.4
    assert row["share_slow"] + row["share_fast"] == pytest.approx(1)
    assert row["staleness_slow"] > row["staleness_fast"]
