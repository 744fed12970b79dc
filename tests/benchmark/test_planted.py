"""The checks with known answers find differences that are there, and no others."""

import numpy as np
import pandas as pd
import pytest
from measure_tables import long_table

from experiments import planted
from fedjax_fair.benchmark.ranking import ORDERS

SEEDS = range(12 * (1 + planted.ALIASES) * planted.BLOCKS)


def make_table(rng, noise):
    """Runs of FedAvg; ``noise`` is the deviation of a block."""
    levels = {"digits": 0.9, "synthetic": 0.6}
    return pd.concat(
        long_table(
            {name: {"fedavg": rng.normal(level, noise, len(SEEDS))}
             for name, level in levels.items()},
            *order, SEEDS,
        )
        for order in (ORDERS["accuracy"], ORDERS["spread"])
    )  # fmt: skip


@pytest.mark.parametrize(("noise", "is_found"), [(0.003, True), (0.2, False)])
def test_a_planted_difference_is_found_and_equal_methods_are_not(noise, is_found, monkeypatch):
    monkeypatch.setattr(planted, "REPETITIONS", 12)
    found = planted.aliases(make_table(np.random.default_rng(0), noise))
    counts = found.groupby("federation")["repetition"].nunique()
    assert counts.to_dict() == {"digits": 12, "synthetic": 12}
    of_name = found.set_index("federation")
    assert set(of_name["hypotheses"]["digits"]) == {20}
    assert set(of_name["hypotheses"]["synthetic"]) == {19}
    # The binomial probability of more than four of 24 at 5% is 0.6%.
    assert (found["rejected"] > 0).sum() <= 4
    assert of_name["found"]["digits"].isna().all()
    assert of_name["found"]["synthetic"].eq(is_found).mean() > 0.9


def test_iid_accuracies_are_compared_in_points():
    seeds = range(16)
    noise = np.random.default_rng(0).normal(0.9, 0.01, (2, len(seeds)))
    values = {"digits_iid": {"centralized": noise[0] + 0.05, "fedavg": noise[1]}}
    (row,) = planted.iid(long_table(values, seeds=seeds)).to_dict("records")
    difference = values["digits_iid"]["fedavg"] - values["digits_iid"]["centralized"]
    assert row["difference"] == pytest.approx(100 * difference.mean())
    assert row["low"] < row["difference"] < row["high"] < -3
