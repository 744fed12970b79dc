"""Committed results of the protocol, and the sentences about them, recomputed from their runs."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.reproduction import protocol, protocol_pages, protocol_results

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


def of_primary_endpoint(name):
    """The committed rows of a family, with verdicts."""
    table = pd.read_csv(PAGES / f"protocol-{name}.csv")
    endpoint = "sigma_acc" if name == "C1" else "dissimilarity"
    return table[table["endpoint"] == f"{endpoint}, all rounds"]


def seed_means(group, column):
    """Means over all evaluations after round 0, in %, by seed and method, from files of runs."""
    files = (PAGES / "protocol" / group).glob("*.csv")
    runs = pd.concat([pd.read_csv(file) for file in files]).query("round > 0")
    return 100 * runs.pivot_table(column, "seed", "algorithm")


@pytest.mark.parametrize("name", COMPLETE)
def test_committed_results_equal_those_of_their_runs(name, folder):
    part, group, _ = protocol_results.FAMILIES[name]
    runs = Path("protocol") / part / group
    shutil.copytree(PAGES / runs, folder / runs)
    for page in protocol_pages.pages.PAGES:
        shutil.copy(PAGES / page, folder)
    protocol_results.write(name, folder)
    for file in (f"protocol-{name}.csv", f"protocol-{name}.md", *protocol_pages.pages.PAGES):
        assert (folder / file).read_text("utf8") == (PAGES / file).read_text("utf8"), file


def test_committed_results_of_a1_equal_an_independent_computation():
    """Pandas and SciPy only."""
    values = seed_means("A/mnist", "client_dissimilarity")
    committed = of_primary_endpoint("A1")
    gaps = [values[row.method] - values[row.baseline] for row in committed.itertuples()]
    raw = np.array([stats.ttest_1samp(gap, 0).pvalue for gap in gaps])
    order = np.argsort(raw)
    steps = np.maximum.accumulate(np.arange(20, 0, -1) * raw[order])[np.argsort(order)]
    np.testing.assert_allclose(committed["difference"], [gap.mean() for gap in gaps], atol=1e-5)
    np.testing.assert_allclose(committed["p"], np.minimum(steps, 1), rtol=1e-4)
    width = stats.t.ppf(1 - 0.05 / 40, 19)
    for row, gap in zip(committed.itertuples(), gaps, strict=True):
        if max(row.p, row.p_sign_flip) < 0.05:
            expected = "reproduced" if gap.mean() < 0 else "refuted"
        else:
            is_small = gap.mean() - width * stats.sem(gap) > row.published / 2
            expected = "refuted" if is_small else "undecided"
        assert row.verdict == expected, (row.method, row.baseline)


def test_the_table_of_verdicts_has_those_of_a1():
    """Settings of SubTrunc and windows of UnionFL, compared with DivFL."""
    text = (PAGES / "README.md").read_text("utf8")
    committed = of_primary_endpoint("A1")
    rows = re.findall(r"^\| Table (?:II|III), MNIST: (.*?) \| (\w+) \|", text, re.MULTILINE)
    assert len(rows) == 4
    found = {}
    for claim, verdict_of in rows:
        name = "subtrunc:lam=" if "SubTrunc" in claim else "unionfl:window="
        for number in re.findall(r"\d+(?:\.\d+)?", claim):
            found[f"{name}{number}"] = verdict_of
        if "φ(x) = x" in claim:
            found["subtrunc:lam=0.95,phi=identity"] = verdict_of
    own = committed[committed["baseline"] == "divfl"].set_index("method")["verdict"]
    assert found == own.to_dict()


def test_the_table_of_verdicts_has_those_of_part_b():
    text = (PAGES / "README.md").read_text("utf8")
    rows = re.findall(
        r"^\| Search of 24 .*: (\w+) \(.*\) is fairer .* (\d+) steps of ([\d.]+) \| (\w+) \|",
        text, re.MULTILINE,
    )  # fmt: skip
    names = {"SubTrunc": "subtrunc:lam=0.95", "UnionFL": "unionfl:window=5"}
    found = {
        (names[method], f"test/classes=3,steps={steps},cohort=10,rate={rate}"): verdict_of
        for method, steps, rate, verdict_of in rows
    }
    committed = of_primary_endpoint("B")
    assert found == committed.set_index(["method", "group"])["verdict"].to_dict()


def test_the_table_of_verdicts_has_those_of_c1():
    text = (PAGES / "README.md").read_text("utf8")
    rows = re.findall(
        r"^\| Table 2, MNIST: (\S+).* is (?:fairer|less fair) than FedProx \| (\w+) \| protocol",
        text, re.MULTILINE,
    )  # fmt: skip
    committed = of_primary_endpoint("C1")
    names = {"equitable": "Equitable-FL", "clustered_by_similarity": "Clustered"}
    found = committed["method"].str.partition(":")[0].map(names)
    assert dict(rows) == dict(zip(found, committed["verdict"], strict=True))
    assert all((row.published < 0) == ("equitable" in row.method) for row in committed.itertuples())


def test_committed_results_of_c1_equal_an_independent_computation():
    """Pandas and SciPy only."""
    values = seed_means("C/mnist", "sigma_acc")
    committed = of_primary_endpoint("C1")
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
    scores, num_equal, steps_of_others = {}, 0, set()
    columns = ["client_dissimilarity", "accuracy_mean_clients", "cohort"]
    folders = list((PAGES / "protocol" / "B" / "screen").iterdir())
    for folder in folders:
        gaps = []
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
    assert f"In {num_equal} of the {2 * len(folders)} runs" in text
    assert steps_of_others == {"steps=50"}
    few, many = (scores[f"classes=3,steps={steps},cohort=10,rate=0.01"] for steps in (5, 50))
    shown = f"were {few:.2f} with 5 steps and {many:.2f} with 50".replace("-", "\N{MINUS SIGN}")
    assert shown in text
