"""Committed results of the protocol, and the sentences about them, recomputed from their runs."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.reproduction import protocol, protocol_pages, protocol_results, verdicts

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"
COMPLETE = [
    name
    for name in protocol_results.FAMILIES
    if not protocol_results.missing(name, PAGES / "protocol")
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda *arguments, **settings: None)
    return tmp_path


def of_endpoint(name, endpoint):
    """The committed rows of a family."""
    table = pd.read_csv(PAGES / f"protocol-{name}.csv")
    metric = "sigma_acc" if name == "C1" else "dissimilarity"
    return table[table["endpoint"] == f"{metric}, {endpoint}"]


def evaluations(group):
    """All evaluations after round 0, from files of runs."""
    files = (PAGES / "protocol" / group).glob("*.csv")
    return pd.concat([pd.read_csv(file) for file in files]).query("round > 0")


def seed_means(group, column, last=None):
    """Means over evaluations after round 0, in %, by seed and method."""
    values = evaluations(group).pivot(index=["seed", "algorithm"], columns="round", values=column)
    return 100 * values.iloc[:, -(last or 0) :].mean(axis=1).unstack()


def equal_rounds(group, method, baseline):
    """Shares of rounds with equal results and with equal sets, and seeds with equal sets alone."""
    runs = evaluations(group).set_index(["algorithm", "seed", "round"])
    one, other = runs.loc[method], runs.loc[baseline].reindex(runs.loc[method].index)
    results = (one["client_dissimilarity"] - other["client_dissimilarity"]).abs() <= 1e-6
    ids = zip(one["cohort"], other["cohort"], strict=True)
    sets = pd.Series([sorted(a.split()) == sorted(b.split()) for a, b in ids], one.index)
    return results.mean(), sets.mean(), sets.groupby("seed").all().sum()


@pytest.mark.parametrize("name", COMPLETE)
def test_committed_results_equal_those_of_their_runs(name, folder):
    part, group, *_ = protocol_results.FAMILIES[name]
    runs = Path("protocol") / part / group
    shutil.copytree(PAGES / runs, folder / runs)
    for page in protocol_pages.PAGES:
        shutil.copy(PAGES / page, folder)
    protocol_results.write(name, folder)
    written = [file.name for file in folder.glob(f"protocol-{name}*.*")]
    assert len(written) == (4 if name in ("A1", "B") else 3)
    for file in (*written, *protocol_pages.PAGES):
        assert (folder / file).read_text("utf8") == (PAGES / file).read_text("utf8"), file


@pytest.mark.parametrize(
    ("endpoint", "last"), [("all rounds", 0), ("last round", 1), ("last five", 5)]
)
def test_committed_results_of_a1_equal_an_independent_computation(endpoint, last):
    """Pandas and SciPy only."""
    values = seed_means("A/mnist", "client_dissimilarity", last)
    committed = of_endpoint("A1", endpoint)
    gaps = [values[row.method] - values[row.baseline] for row in committed.itertuples()]
    raw = np.array([stats.ttest_1samp(gap, 0).pvalue for gap in gaps])
    order = np.argsort(raw)
    steps = np.maximum.accumulate(np.arange(20, 0, -1) * raw[order])[np.argsort(order)]
    np.testing.assert_allclose(committed["difference"], [gap.mean() for gap in gaps], atol=1e-5)
    np.testing.assert_allclose(committed["p"], np.minimum(steps, 1), rtol=1e-4)
    width = stats.t.ppf(1 - 0.05 / 40, 19)
    words = {
        "last round": ("reproduced", "contradicted", "undecided"),
    }.get(endpoint, ("same direction", "opposite direction", "not informative"))
    for row, gap in zip(committed.itertuples(), gaps, strict=True):
        share = equal_rounds("A/mnist", row.method, row.baseline)[0]
        assert row.coinciding == pytest.approx(share, abs=1e-5)
        if max(row.p, row.p_sign_flip) < 0.05:
            expected = words[int(gap.mean() > 0)]
        elif share > 1 / 3:
            expected = words[2]
        else:
            is_small = gap.mean() - width * stats.sem(gap) > row.published / 2
            is_excluded = is_small and endpoint == "last round"
            expected = "size excluded" if is_excluded else "undecided"
        assert row.verdict == expected, (row.method, row.baseline)


@pytest.mark.parametrize("name", COMPLETE)
def test_the_changes_list_old_and_new_verdicts_once(name):
    """Each claim of a family is in one row of the table, with its committed verdicts."""
    page = (PAGES / "protocol.md").read_text("utf8").partition("## Changes")[2]
    listed = []
    for row in re.findall(rf"^\| {name}: (.*) \|$", page, re.MULTILINE):
        text, old, last, average = row.split(" | ")
        listed += [((last, average), old)] * number_of_claims(text)
    found = zip(
        *(of_endpoint(name, rounds)["verdict"] for rounds in ("last round", "all rounds")),
        strict=True,
    )
    assert sorted(new for new, _ in listed) == sorted(found)
    allowed = {"reproduced", "refuted", "undecided"}
    assert {old for _, old in listed} <= allowed


def number_of_claims(text):
    """Number of claims of a row of the changes."""
    words = {"nine variants and DivFL": 10, "windows 2 and 10": 2, "0.1, 0.25, 0.75": 5,
             "SubTrunc, UnionFL and DivFL": 3, "both points": 2}  # fmt: skip
    return next((count for word, count in words.items() if word in text), 1)


def test_sentences_about_equal_rounds_are_those_of_the_runs():
    names = [f"subtrunc:lam={lam}" for lam in (0.1, 0.25, 0.5, 0.75, 0.95)]
    found = [equal_rounds("A/mnist", name, "divfl")
             for name in (*names, "subtrunc:lam=0.95,phi=identity")]  # fmt: skip
    results, sets, _ = zip(*found, strict=True)
    of_results = f"{100 * min(results):.0f} to {100 * max(results):.0f}% of the rounds"
    of_sets = f"{100 * min(sets):.0f} to {100 * max(sets):.0f}% of the rounds"
    selection = " ".join((PAGES / "selection.md").read_text("utf8").split())
    assert f"equal results in {of_results}" in selection
    assert f"DivFL's clients in {of_sets}" in selection
    readme = " ".join((PAGES.parents[1] / "README.md").read_text("utf8").split())
    assert f"the same clients as DivFL in {of_sets}" in readme
    share = equal_rounds("A/cifar10", "subtrunc:lam=0.5", "divfl")[0]
    assert f"equal results in {100 * share:.0f}% of the rounds" in selection
    place = "B/test/classes=3,steps=50,cohort=10,rate="
    _, sets, seeds = equal_rounds(f"{place}0.003", "subtrunc:lam=0.95", "divfl")
    assert f"in {100 * sets:.0f}% of the rounds at one of the two points" in selection
    other = equal_rounds(f"{place}0.01", "subtrunc:lam=0.95", "divfl")[2]
    assert f"all rounds of {seeds} of 20 seeds, with 50 steps of 0.01 of {other}:" in selection


def test_recent_participants_are_as_rare_as_the_pages_say():
    """Clients of a cohort that are in the union of the last five, from round 6."""
    counts = {}
    for name in ("unionfl,window=5", "divfl", "fedavg"):
        found = []
        for file in (PAGES / "protocol" / "A" / "mnist").glob(f"{name}-*.csv"):
            sets = [set(ids.split()) for ids in pd.read_csv(file)["cohort"].dropna()]
            found += [len(sets[i] & set().union(*sets[i - 5 : i])) for i in range(5, 21)]
        assert len(found) == 20 * 16
        counts[name] = f"{np.mean(found):.2f}"
    union, divfl, random = counts.values()
    for page in ("selection.md", "protocol.md"):
        text = " ".join((PAGES / page).read_text("utf8").split())
        assert f"{union} of ten clients were" in text or f"{union} were in the last five" in text
        assert f"in the last five cohorts, against {divfl} with DivFL and {random} with" in text


def test_the_protocol_states_what_was_known_of_all_endpoints():
    runs = pd.read_csv(PAGES / "selection-mnist-runs.csv").query("round > 0")
    values = 100 * runs.pivot_table("client_dissimilarity", ["algorithm", "seed"], "round")
    text = " ".join((PAGES / "protocol.md").read_text("utf8").split()).replace(
        "\N{MINUS SIGN}", "-"
    )
    gaps = {name: values.loc[name] - values.loc["divfl"]
            for name in ("unionfl:window=5", "subtrunc:lam=0.95")}  # fmt: skip
    shown = []
    for gap in gaps.values():
        assert len(gap) == 10
        for last in (21, 5, 1):
            means = gap.iloc[:, -last:].mean(axis=1)
            shown += [means.mean(), means.std()]
    union = re.search(r"average (\S+) \(SD (\S+)\), last five (\S+) \((\S+)\), last round, the "
                      r"paper's endpoint, (\S+) \((\S+)\)", text)  # fmt: skip
    np.testing.assert_allclose([float(one) for one in union.groups()], shown[:6], atol=0.0051)
    other = re.search(r"SubTrunc \(\S+ = 0.95\): (\S+), (\S+), \+(\S+)\. Fresh", text)
    np.testing.assert_allclose([float(one) for one in other.groups()], shown[6::2], atol=0.0051)
    spread = {}
    for method, baseline in (("unionfl:window=5", "divfl"), ("divfl", "fedavg")):
        for last in (0, 1):
            means = seed_means("A/mnist", "client_dissimilarity", last)
            deviation = (means[method] - means[baseline]).std()
            spread[method, last] = f"{verdicts.detectable(deviation, 40, 10):.2f} ({deviation:.2f}"
            needed = f"{verdicts.detectable(round(deviation, 2), 40, 10):.2f}"
            assert re.search(rf"{needed} \((deviation )?{deviation:.2f}", text), spread


def test_committed_results_of_c1_equal_an_independent_computation():
    """Pandas and SciPy only."""
    values = seed_means("C/mnist", "sigma_acc")
    committed = of_endpoint("C1", "all rounds")
    assert len(values) == 10
    raw = []
    for row in committed.itertuples():
        gaps = values[row.method] - values[row.baseline]
        interval = stats.t.interval(0.95, 9, gaps.mean(), stats.sem(gaps))
        np.testing.assert_allclose([row.low, row.high], interval, atol=1e-4)
        raw.append(stats.ttest_1samp(gaps, 0).pvalue)
    first = 2 * min(raw)
    np.testing.assert_allclose(sorted(committed["p"]), [first, max(first, *raw)], rtol=1e-3)


def test_the_page_has_the_accuracies_of_the_grid():
    """Recomputed from the files of runs; the configurations in bold are those of C3."""
    page = (PAGES / "equitable.md").read_text("utf8").partition("## Grid on CIFAR-10")[2]
    lines = [line for line in page.splitlines() if line.startswith("|")][:10]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    methods = [name.strip("`") for name in cells[0][2:]]
    chosen = set()
    for rate, prox, *shown in cells[2:]:
        for method, text in zip(methods, shown, strict=True):
            name = f"{method}:learning_rate={rate},prox={prox}"
            file = PAGES / "protocol" / "C" / "grid" / f"{name.replace(':', ',')}-500.csv"
            accuracy = 100 * pd.read_csv(file)["accuracy_mean_examples"].to_numpy()[-3:].mean()
            assert text.strip("*") == f"{accuracy:.2f}", name
            chosen |= {name} if "*" in text else set()
    assert chosen == set(protocol.chosen(PAGES / "protocol"))


def test_the_page_has_the_scores_of_the_screening():
    """Recomputed from the files of runs, as is the number of equal runs."""
    text = " ".join((PAGES / "selection.md").read_text("utf8").split())
    scores, num_equal, num_points, steps_of_others = {}, 0, 0, set()
    columns = ["client_dissimilarity", "accuracy_mean_clients", "cohort"]
    folders = list((PAGES / "protocol" / "B" / "screen").iterdir())
    for folder in folders:
        gaps, before = [], num_equal
        for seed in (200, 201):
            by_name = {
                name: pd.read_csv(folder / f"{name}-{seed}.csv").query("round > 0")
                for name in ("divfl", "subtrunc,lam=0.95", "unionfl,window=5")
            }
            same = by_name["divfl"][columns].equals(by_name["subtrunc,lam=0.95"][columns])
            num_equal += same
            steps_of_others |= set() if same else {folder.name.split(",")[1]}
            means = {name: run["client_dissimilarity"].mean() for name, run in by_name.items()}
            gaps.append(100 * (means["unionfl,window=5"] - means["divfl"]))
        scores[folder.name] = np.mean(gaps)
        num_points += num_equal - before == 2
    assert f"In {num_equal} of the {2 * len(folders)} runs" in text
    assert f"SubTrunc coincides with DivFL at {num_points} of {len(folders)} points" in text
    assert steps_of_others == {"steps=50"}
    few, many = (scores[f"classes=3,steps={steps},cohort=10,rate=0.01"] for steps in (5, 50))
    shown = f"were {few:.2f} with 5 steps and {many:.2f} with 50".replace("-", "\N{MINUS SIGN}")
    assert shown in text
