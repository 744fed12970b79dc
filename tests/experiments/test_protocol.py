"""The runs that the protocol plans, and the rules of its verdicts."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.reproduction import protocol, runs, verdicts
from fedjax_fair import selectors
from fedjax_fair.app import build
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.usage import drop_unused_settings


def test_the_plan_has_the_runs_of_the_protocol(tmp_path):
    counts = {part: len(protocol.missing(part, tmp_path)) for part in "AB"}
    assert counts == {"A": 12 * 20 + 5 * 10, "B": 24 * 3 * 2}
    used = {cell.seed for part in "ABCE" for cell in protocol.cells(part, tmp_path)}
    # Seeds of earlier tables and of their tuning.
    assert not used & {*range(10), *range(100, 110), protocol.MEASURED_SEED}
    files = [cell.file(tmp_path) for part in "ABCE" for cell in protocol.cells(part, tmp_path)]
    assert len(set(files)) == len(files)


def test_part_e_has_its_methods_in_the_setting_of_a1_and_new_seeds(tmp_path):
    cells = list(protocol.cells("E", tmp_path))
    of_a1 = next(protocol.cells("A", tmp_path)).config
    assert all(cell.config == of_a1 for cell in cells)
    assert [cell.method for cell in cells[:5]] == [
        "fedavg", "rotation", "divfl", "unionfl:window=5", "unionfl:window=5,scale=sum",
    ]  # fmt: skip
    assert {cell.seed for cell in cells} == {*range(1000, 1040)}
    others = {cell.seed for part in "ABC" for cell in protocol.cells(part, tmp_path)}
    assert not others & {cell.seed for cell in cells}
    made = {}
    for name in ("rotation", protocol.LITERAL):
        config = drop_unused_settings(presets.resolve(replace(of_a1, methods=(name,))))
        made[name] = build.method_round(config, name, 10, num_clients=100).selector
    literal = made[protocol.LITERAL]
    assert made["rotation"] == selectors.Rotation(10)
    assert (literal.scale, literal.window, literal.mu) == ("sum", 5, 1.0)


def test_c3_has_60_rounds_of_the_configurations_of_the_grid():
    folder = PAGE.parent / "protocol"
    cells = [cell for cell in protocol.cells("C", folder) if cell.group == "cifar10"]
    assert {cell.config.training.rounds for cell in cells} == {60}
    assert {cell.seed for cell in cells} == {*range(400, 407)}
    assert {cell.method for cell in cells} == {
        "fedprox:learning_rate=0.03,prox=0.01", "equitable:learning_rate=0.03,prox=0.01",
        "clustered_by_similarity:learning_rate=0.1,prox=0.1",
    }  # fmt: skip


def test_costs_on_the_page_are_those_of_the_estimate(tmp_path):
    """Of all runs; part C needs the committed grid, and only C3 is missing there."""
    page = (PAGE.parent / "protocol.md").read_text("utf8")
    folder = PAGE.parent / "protocol"
    costs = pd.read_csv(folder / "costs.csv")
    estimated = protocol.estimate("E", tmp_path, costs) + protocol.estimate("C", folder, costs)
    for name, part, group, runs_of in (
        ("E, MNIST", "E", "mnist", 200), ("C3\N{PRIME}, CIFAR-10", "C", "cifar10", 21)
    ):  # fmt: skip
        hours = re.search(rf"\| {part} \| {group} \| {runs_of} \| ([\d.]+) \|", estimated)[1]
        assert f"| {name} | {runs_of} | {hours} |" in page


PAGE = Path(__file__).parents[2] / "docs" / "reproduction" / "README.md"


def test_the_page_counts_the_committed_runs():
    text, folder = PAGE.read_text("utf8"), PAGE.parent / "protocol"
    counted = dict(re.findall(r"^\| (A1|A2|B|C1|C2|C3|E)\b.*\| (\w.*) \|$", text, re.MULTILINE))
    groups = {
        "A1": "A/mnist", "A2": "A/cifar10", "B": "B", "C1": "C/mnist", "C2": "C/grid",
        "C3": "C/cifar10", "E": "E",
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
    (tmp_path / "E" / "mnist").mkdir(parents=True)
    (tmp_path / "E" / "mnist" / "rotation-1001.csv").touch()
    trained.clear()
    protocol.train_missing("E", tmp_path, None)
    assert (len(trained), trained[1]) == (100, (("rotation",), (1000,)))
    assert not protocol.missing("E", tmp_path)


def test_the_sign_flip_test_enumerates_all_signs():
    values = np.random.default_rng(0).normal(0.5, 1, 8)
    sums = [np.dot(signs, values) for signs in itertools.product((-1, 1), repeat=8)]
    expected = np.mean([abs(total) >= abs(values.sum()) - 1e-9 for total in sums])
    assert verdicts.sign_flip(values) == expected
    assert verdicts.sign_flip(np.ones(5)) == 2 / 32
    with pytest.raises(ValueError, match="none"):
        verdicts.sign_flip(np.ones(0))


def test_many_seeds_have_random_signs():
    """Close to the normal limit, never zero, and the same in each call."""
    values = np.random.default_rng(1).normal(0.3, 1, 40)
    normal = 2 * stats.norm.sf(abs(values.sum()) / np.sqrt(np.sum(values**2)))
    assert verdicts.sign_flip(values) == pytest.approx(normal, abs=0.005)
    assert verdicts.sign_flip(values) == verdicts.sign_flip(values)
    assert verdicts.sign_flip(np.ones(40)) == pytest.approx(1 / 100_001)


NOISE = np.random.default_rng(0).normal(size=20)
NOISE = (NOISE - NOISE.mean()) / NOISE.std(ddof=1)
FAMILY = {
    "claimed": -2 + NOISE, "opposite": 2 + NOISE, "noisy": -0.2 + NOISE,
    "small": -0.2 + 0.1 * NOISE, "zero": np.zeros(20), "not enough": 0.3 + NOISE,
}  # fmt: skip


def judge(differences, endpoint="last round", coinciding=0.0, published=-1.0, sign=-1):
    """Judges a family with one endpoint and share."""
    return verdicts.judge({
        claim: verdicts.Comparison(values, sign, published, endpoint, coinciding)
        for claim, values in differences.items()
    })  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "coinciding", "expected"),
    [
        ("last round", 0, ("reproduced", "contradicted", "undecided", "size excluded")),
        ("last round", 0.34, ("reproduced", "contradicted", "undecided", "undecided")),
        ("all rounds", 0.33, ("same direction", "opposite direction", "undecided", "undecided")),
        (
            "last five", 0.34,
            ("same direction", "opposite direction", "not informative", "not informative"),
        ),
    ],
)  # fmt: skip
def test_verdicts_follow_their_definition(endpoint, coinciding, expected):
    found = judge(FAMILY, endpoint, coinciding)
    verdict = {claim: result.verdict for claim, result in found.items()}
    assert tuple(verdict[claim] for claim in ("claimed", "opposite", "noisy", "zero")) == expected
    assert verdict["not enough"] == expected[3]
    assert verdict["small"] == expected[0]  # Significant, whatever its size.
    raw = stats.ttest_1samp(FAMILY["noisy"], 0).pvalue
    # The three smaller p values are tested first; equal runs are the sixth claim.
    assert found["noisy"].p == pytest.approx(min(1, max(2 * raw, found["not enough"].p)))


def test_a_claim_is_not_judged_without_an_endpoint_and_a_share_of_equal_rounds():
    with pytest.raises(TypeError, match="endpoint"):
        verdicts.Comparison(NOISE, -1, -1.0, coinciding=0.0)
    with pytest.raises(TypeError, match="coinciding"):
        verdicts.Comparison(NOISE, -1, -1.0, "last round")
    with pytest.raises(AttributeError):
        verdicts.judge({"a": NOISE})
    for share in (np.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match="coinciding="):
            judge({"a": NOISE}, coinciding=share)
    with pytest.raises(ValueError, match="sign=0"):
        judge({"a": NOISE}, sign=0)


def test_the_size_is_excluded_by_the_simultaneous_interval():
    noise = 100 * np.tile([-0.1, 0.1], 5)
    wide = stats.t.ppf(0.975, 9) * noise.std(ddof=1) / np.sqrt(10)
    for published, verdict in (
        (-2 * wide + 0.01, "undecided"), (-2 * wide - 0.01, "size excluded"), (np.nan, "undecided")
    ):  # fmt: skip
        assert judge({"a": noise}, published=published)["a"].verdict == verdict
    # Two claims have a wider one.
    both = judge({"a": noise, "b": noise}, published=-2 * wide - 0.01)
    assert both["a"].verdict == "undecided"


def test_a_claim_needs_both_tests():
    """With five seeds the sign-flip test cannot be significant, its smallest p value is 1 / 16."""
    differences = np.array([-1.0, -1.01, -0.99, -1.02, -0.98])
    found = judge({"a": differences})["a"]
    assert found.p < 1e-6
    assert (found.p_sign_flip, found.verdict) == (1 / 16, "undecided")


@pytest.mark.parametrize(("seeds", "claims"), [(20, 1), (20, 20), (40, 10)])
def test_detectable_differences_have_their_power(seeds, claims):
    """Simulated; the three standard errors of 20,000 repetitions are 0.0085."""
    true = verdicts.detectable(0.5, seeds, claims)
    draws = np.random.default_rng(2).normal(true, 0.5, (20_000, seeds))
    p = stats.ttest_1samp(draws, 0, axis=1).pvalue
    assert np.mean(p < 0.05 / claims) == pytest.approx(0.8, abs=0.0085)


def test_equivalence_is_two_one_sided_tests():
    values = 0.05 + 0.2 * NOISE
    limit = max(-stats.t.interval(0.9, 19, 0.05, stats.sem(values))[0],
                stats.t.interval(0.9, 19, 0.05, stats.sem(values))[1])  # fmt: skip
    for sign in (1, -1):
        assert verdicts.equivalent(sign * values, limit + 1e-9)
        assert not verdicts.equivalent(sign * values, limit - 1e-9)
