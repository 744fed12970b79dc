"""The runs that the protocol plans, and the rules of its verdicts."""

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.reproduction import protocol, runs, verdicts


def test_the_plan_has_the_runs_of_the_protocol(tmp_path):
    counts = {part: len(protocol.missing(part, tmp_path)) for part in "AB"}
    assert counts == {"A": 12 * 20 + 5 * 10, "B": 24 * 3 * 2}
    used = {cell.seed for part in "ABC" for cell in protocol.cells(part, tmp_path)}
    # Seeds of earlier tables and of their tuning.
    assert not used & {*range(10), *range(100, 110), protocol.MEASURED_SEED}
    files = [cell.file(tmp_path) for part in "ABC" for cell in protocol.cells(part, tmp_path)]
    assert len(set(files)) == len(files)


PAGE = Path(__file__).parents[2] / "docs" / "reproduction" / "README.md"


def test_the_page_counts_the_committed_runs():
    text, folder = PAGE.read_text("utf8"), PAGE.parent / "protocol"
    counted = dict(re.findall(r"^\| (A1|A2|B|C1|C2|C3)\b.*\| (\w.*) \|$", text, re.MULTILINE))
    groups = {
        "A1": "A/mnist", "A2": "A/cifar10", "B": "B", "C1": "C/mnist", "C2": "C/grid",
        "C3": "C/cifar10",
    }  # fmt: skip
    assert counted.keys() == groups.keys()
    for name, group in groups.items():
        found = len(list((folder / group).rglob("*.csv")))
        planned = sum(
            cell.file(Path()).is_relative_to(group)
            for cell in (*protocol.cells(name[0], folder), *protocol.not_yet_known(name[0], folder))
        )
        expected = "complete" if found == planned else f"{found} of {planned}"
        assert counted[name] == expected, name


@pytest.fixture
def trained(monkeypatch):
    """Replaces training; SubTrunc is best at the points 3 and 7, UnionFL at 7 and 20."""
    groups = []

    def train(config, seeds, *settings):
        groups.append((config.methods, seeds))
        point = (
            config.data.classes_per_client,
            config.solver.steps,
            config.selector.cohort_size,
            config.solver.learning_rate,
        )
        i = protocol.POINTS.index(point) if point in protocol.POINTS else 0
        (method,) = config.methods
        best = {"subtrunc:lam=0.95": (3, 7), "unionfl:window=5": (7, 20)}.get(method, ())
        for seed in seeds:
            level = [5.0, 0.3 - 0.1 * (i in best) + 0.01 * seed]
            yield method, seed, pd.DataFrame({
                "algorithm": method, "seed": seed, "round": [0, 1], "client_dissimilarity": level,
                "accuracy_mean_examples": 0.5,
            })  # fmt: skip

    monkeypatch.setattr(runs, "train", train)
    monkeypatch.setattr(protocol.os, "sched_getaffinity", lambda process: {0, 1})
    return groups


def test_an_interrupted_part_continues(trained, tmp_path):
    protocol.train_missing("A", tmp_path, None)
    assert len(trained) == (12 * 20 + 5 * 10) / 2
    assert all(len(seeds) == 2 for _, seeds in trained)
    assert not protocol.missing("A", tmp_path)
    (tmp_path / "A" / "mnist" / "divfl-11.csv").unlink()
    trained.clear()
    protocol.train_missing("A", tmp_path, None)
    assert trained == [(("divfl",), (11,))]


def test_the_sign_flip_test_enumerates_all_signs():
    values = np.random.default_rng(0).normal(0.5, 1, 8)
    sums = [np.dot(signs, values) for signs in itertools.product((-1, 1), repeat=8)]
    expected = np.mean([abs(total) >= abs(values.sum()) - 1e-9 for total in sums])
    assert verdicts.sign_flip(values) == expected
    assert verdicts.sign_flip(np.ones(5)) == 2 / 32
    with pytest.raises(ValueError, match="23"):
        verdicts.sign_flip(np.ones(23))


def test_verdicts_follow_their_definition():
    noise = np.random.default_rng(0).normal(size=20)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    family = {
        "as published": -2 + noise, "opposite": 2 + noise, "noisy": -0.2 + noise,
        "excluded": -0.2 + 0.1 * noise, "zero": np.zeros(20), "not enough": 0.3 + noise,
    }  # fmt: skip
    published = dict.fromkeys(family, -1.0)
    published["noisy"], published["excluded"] = -1.0, 1.0
    found = verdicts.judge(family, published)
    assert {claim: result.verdict for claim, result in found.items()} == {
        "as published": "reproduced", "opposite": "refuted", "noisy": "undecided",
        "excluded": "refuted", "zero": "refuted", "not enough": "refuted",
    }  # fmt: skip
    raw = stats.ttest_1samp(family["noisy"], 0).pvalue
    # The three smaller p values are tested first; equal runs are the sixth claim.
    assert found["noisy"].p == pytest.approx(min(1, max(2 * raw, found["not enough"].p)))
    with pytest.raises(ValueError, match="sign"):
        verdicts.judge({"a": noise}, {"a": 0.0})
    with pytest.raises(ValueError, match="published:"):
        verdicts.judge({"a": noise}, {"b": 1.0})


def test_more_than_half_of_the_published_difference_is_not_refuted():
    noise = np.tile([-0.1, 0.1], 5)
    limit = 0.5 - stats.t.ppf(0.975, 9) * noise.std(ddof=1) / np.sqrt(10)
    # Significant differences are judged by their sign, whatever their size.
    assert verdicts.judge({"a": noise + limit - 0.01}, {"a": 1.0})["a"].verdict == "reproduced"
    flat = noise * 100
    wide = stats.t.ppf(0.975, 9) * flat.std(ddof=1) / np.sqrt(10)
    for published, verdict in ((2 * wide - 0.01, "undecided"), (2 * wide + 0.01, "refuted")):
        assert verdicts.judge({"a": flat}, {"a": published})["a"].verdict == verdict


def test_a_claim_needs_both_tests():
    """With five seeds the sign-flip test cannot be significant, its smallest p value is 1 / 16."""
    differences = np.array([-1.0, -1.01, -0.99, -1.02, -0.98])
    found = verdicts.judge({"a": differences}, {"a": -1.0})["a"]
    assert found.p < 1e-6
    assert (found.p_sign_flip, found.verdict) == (1 / 16, "undecided")
