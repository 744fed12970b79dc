"""The checks with known answers find differences that are there."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from measure_tables import long_table

from experiments import planted

FEDERATIONS = {"digits": (0.9, 0.02), "synthetic": (0.6, 0.1), "groups": (0.8, 0.01)}
REPETITIONS = 8
SEEDS = range(planted.FIRST_SEED, planted.FIRST_SEED + 2 * REPETITIONS * planted.SEEDS)


@pytest.fixture(autouse=True)
def _fewer_repetitions(monkeypatch):
    monkeypatch.setattr(planted, "REPETITIONS", REPETITIONS)
    monkeypatch.setattr(planted.measures, "constants", lambda runs: {})


def repeated(shift):
    """Runs of all seeds; in each repetition, those of the alias differ by ``shift`` SDs."""
    rng = np.random.default_rng(0)
    is_alias = np.arange(len(SEEDS)) // planted.SEEDS % 2
    tables = []
    signs = {"accuracy": 1, "standard_deviation": -1, "worst_10pct": 1, "gini": -1}
    for measure, sign in signs.items():
        values = {
            name: {
                "fedavg": level + spread * (rng.normal(size=len(SEEDS)) + sign * shift * is_alias)
            }
            for name, (level, spread) in FEDERATIONS.items()
        }
        tables.append(long_table(values, measure, seeds=SEEDS))
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_aliases_are_separated_if_they_differ(monkeypatch, shift):
    monkeypatch.setattr(planted.measures, "table", lambda runs: repeated(shift))
    table = planted.aliases([SimpleNamespace(criterion="mean")])
    assert table.repetition.tolist() == list(range(REPETITIONS))
    separated = table[["is_separated", "accuracy_is_separated"]].sum()
    if shift:
        assert (separated == REPETITIONS).all()
        # More accurate and less spread.
        assert (np.sign(table.accuracy_difference) == np.sign(shift)).all()
        assert (np.sign(table.difference) == -np.sign(shift)).all()
        assert ((table.low < table.difference) & (table.difference < table.high)).all()
    else:
        # The binomial probability of more than two false separations in eight is 0.6%.
        assert (separated <= 2).all()


def test_repetitions_have_seeds_of_their_own(monkeypatch):
    """A difference in one repetition is found in that one only."""
    table = repeated(0.0)
    chosen = planted.FIRST_SEED + 2 * 5 * planted.SEEDS
    is_alias = table["seed"].between(chosen + planted.SEEDS, chosen + 2 * planted.SEEDS - 1)
    table.loc[is_alias & (table["measure"] == "accuracy"), "value"] += 1.0
    monkeypatch.setattr(planted.measures, "table", lambda runs: table)
    found = planted.aliases([SimpleNamespace(criterion="mean")])
    assert found.loc[5, "accuracy_is_separated"]
    assert found["accuracy_difference"].abs().idxmax() == 5


def test_iid_accuracies_are_compared_in_points(monkeypatch):
    seeds = range(planted.FIRST_SEED, planted.FIRST_SEED + planted.SEEDS)
    noise = np.random.default_rng(0).normal(0.9, 0.01, (2, len(seeds)))
    values = {"digits_iid": {"centralized": noise[0] + 0.05, "fedavg": noise[1]}}
    monkeypatch.setattr(
        planted.measures, "table", lambda runs: long_table(values, "accuracy", seeds=seeds)
    )
    (row,) = planted.iid([]).to_dict("records")
    difference = values["digits_iid"]["fedavg"] - values["digits_iid"]["centralized"]
    assert row["difference"] == pytest.approx(100 * difference.mean())
    assert row["is_separated"]
