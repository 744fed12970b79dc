"""Verdict of the protocol's part D, on synthetic runs and on the committed ones."""

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.reproduction import theory_results

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"


def theory_runs(below, size=16, responses=(1, 1000, 10_000), bounds=(-1.0, 0.3, 0.5)):
    """Runs of ``len(below)`` kinds; ``below`` has the violations at each number of responses."""
    rows = []
    for k, counts in enumerate(below, 1):
        for count, wanted, bound in zip(counts, responses, bounds, strict=True):
            for i in range(20):
                share = bound - 0.1 if i < count else max(bound, 0) + 0.2
                rows.append({
                    "family": "coverage", "size": size, "k": k, "clients": 20_000,
                    "responses": wanted, "seed": 600 + i, "published_bound": bound, "bound": bound,
                    "share": share,
                })  # fmt: skip
    return pd.DataFrame(rows)


def verdict(*below, **settings):
    return theory_results.judge(theory_results.levels(theory_runs(below, **settings)))


def test_the_verdict_of_part_d_follows_the_protocol():
    assert verdict((0, 0, 0), (0, 0, 0)) == "reproduced"
    assert verdict((20, 0, 0)) == "reproduced"  # Below a bound that guarantees nothing.
    # With 16 items, 3 of 20 are allowed; four have p = .04 (twice, for two bounds), eight < 1e-4.
    assert verdict((0, 3, 3), (0, 0, 0)) == "reproduced"
    assert verdict((0, 4, 0), (0, 0, 0)) == "undecided"
    assert verdict((0, 0, 4), (0, 0, 0)) == "undecided"
    assert verdict((0, 8, 0), (0, 0, 0)) == "refuted"
    assert verdict((0, 0, 0), (0, 0, 8)) == "refuted"
    # With four items, half of the instances are too many, and eight are not.
    assert verdict((0, 8, 8), size=4) == "reproduced"
    assert verdict((0, 14, 0), size=4) == "refuted"


def test_a_bound_at_half_of_the_clients_only_decides_nothing():
    assert verdict((0, 0, 0), bounds=(-1, -0.1, 0.5)) == "undecided"
    assert verdict((0, 0, 20), bounds=(-1, -0.1, 0.5)) == "undecided"
    assert verdict((0, 0, 0), responses=(1, 9999, 10_000)) == "reproduced"


def test_instances_with_a_bound_of_zero_or_less_are_not_counted():
    runs = theory_runs([(0, 2, 0)])
    runs.loc[20:21, "published_bound"] = 0.0
    runs.loc[:21, "share"] = -2.0
    levels = theory_results.levels(runs)
    assert levels["positive"].tolist() == [0, 18, 20]
    assert levels["below"].tolist() == [0, 0, 0]


def test_p_values_of_kinds_are_adjusted():
    """Five of 20 have p = .008: significant for one kind with two bounds, not among four."""
    assert verdict((0, 5, 0)) == "refuted"
    assert verdict((0, 5, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)) == "undecided"


def at_least(count, trials, chance):
    return sum(
        math.comb(trials, i) * chance**i * (1 - chance) ** (trials - i)
        for i in range(count, trials + 1)
    )


@pytest.mark.parametrize("size", [4, 8, 16])
def test_binomial_values_equal_an_independent_computation(size):
    for count in (0, 1, 4, 9):
        levels = theory_results.levels(theory_runs([(0, count, 0)], size=size))
        row = levels[levels["responses"] == 1000].iloc[0]
        assert row["below"] == count
        np.testing.assert_allclose(row["p"], at_least(count, 20, 1 / size))
        # The smallest count whose distribution function is .95.
        allowed = next(i for i in range(21) if 1 - at_least(i + 1, 20, 1 / size) >= 0.95)
        assert row["allowed"] == allowed


def test_committed_counts_equal_an_independent_computation():
    """Without pandas, from the files of the runs."""
    found = defaultdict(list)
    for file in (PAGES / "protocol" / "D").glob("*.csv"):
        with file.open() as opened:
            for row in csv.DictReader(opened):
                kind = row["family"], int(row["size"]), int(row["k"]), int(row["responses"])
                found[kind].append((float(row["published_bound"]), float(row["share"])))
    assert len(found) == 108
    for row in pd.read_csv(PAGES / "protocol-theory.csv").to_dict("records"):
        pairs = found[row["family"], row["size"], row["k"], row["responses"]]
        assert (len(pairs), row["instances"]) == (20, 20)
        assert row["positive"] == sum(bound > 0 for bound, _ in pairs)
        assert row["below"] == sum(share < bound and bound > 0 for bound, share in pairs)
        assert row["margin"] == pytest.approx(min(s - b for b, s in pairs), abs=1e-4)
        assert row["lowest_share"] == pytest.approx(min(s for _, s in pairs), abs=1e-4)
    positive = {kind[:3] for kind, pairs in found.items() if kind[3] < 10_000 and pairs[0][0] > 0}
    assert len(positive) == 18
