"""Verdict of the protocol's part D, on synthetic runs and on the committed ones."""

import csv
from collections import defaultdict
from pathlib import Path

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
