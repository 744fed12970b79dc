"""Tables and figures of the protocol's results, on synthetic runs."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.reproduction import protocol, protocol_results, theory_results, verdicts
from experiments.reproduction.pages import blocks

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda *arguments, **settings: None)
    shutil.copytree(PAGES / "protocol" / "D", tmp_path / "protocol" / "D")
    return tmp_path


def run(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["protocol_results", "--output", str(folder)])
    protocol_results.main()
    return capsys.readouterr().out.splitlines()


def test_files_and_page_of_part_d_equal_those_of_their_runs(folder, monkeypatch, capsys):
    page = (PAGES / theory_results.PAGE).read_text("utf8")
    (folder / theory_results.PAGE).write_text(page.replace("| 0 of 20 |", "| 9 of 20 |"), "utf8")
    assert run(folder, monkeypatch, capsys)[0] == "D: reproduced"
    for name in ("protocol-theory.csv", "protocol-theory.md", theory_results.PAGE):
        assert (folder / name).read_text("utf8") == (PAGES / name).read_text("utf8"), name
    table = blocks(page)["protocol-theory"]
    assert table == (PAGES / "protocol-theory.md").read_text("utf8")


SHIFTS = {
    "unionfl:window=5": -0.02, "subtrunc:lam=0.95": 0.02, "equitable": 0.01,
    "clustered_by_similarity": 0.03,
}  # fmt: skip
"""Of dissimilarity or sigma_acc. Other methods differ by 0.003 of noise only."""


def make_runs(part, folder):
    """Writes all runs of a part that are missing, with noise of 0.003 per seed."""
    rng = np.random.default_rng(0)
    endpoints = protocol_results.FAMILIES["C1" if part == "C" else "A1"].endpoints
    for cell in protocol.missing(part, folder / "protocol"):
        rounds, every = cell.config.training.rounds, cell.config.training.eval_every
        own = (cell.method, cell.method.partition(":")[0])
        level = 0.3 + next((SHIFTS[name] for name in own if name in SHIFTS), 0.0)
        level += 0.003 * rng.normal() + 0.01 * (cell.seed % 7) + 0.1 * ("rate=0.01" in cell.group)
        evaluations = range(0, rounds + 1, every)
        values = level + 0.001 * rng.normal(size=len(evaluations))
        values[0] = 9  # The untrained model, which no endpoint has.
        rows = {"algorithm": cell.method, "seed": cell.seed, "round": evaluations}
        for i, column in enumerate(dict(endpoints.values())):
            rows[column] = (1 + i) * values
        rows["accuracy_mean_examples"] = 0.5 + 0.1 * ("learning_rate=0.03," in cell.method)
        file = cell.file(folder / "protocol")
        file.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(file, index=False)


PAGE = """<!-- claim protocol-A1-divfl-unionfl -->
<!-- end -->
<!-- claim mnist-windows -->
kept
<!-- end -->
<!-- claim protocol-A2-fedavg -->
kept
<!-- end -->
"""


@pytest.fixture(scope="module")
def part_a(tmp_path_factory):
    """Results of a complete family A1 in which one value is missing, and its runs."""
    folder = tmp_path_factory.mktemp("part_a")
    make_runs("A", folder)
    (folder / "selection.md").write_text(PAGE)
    (folder / "README.md").write_text("<!-- claim protocol-A1-verdicts -->\n<!-- end -->\n")
    spoiled = folder / "protocol" / "A" / "mnist" / "unionfl,window=2-12.csv"
    table = pd.read_csv(spoiled)
    table.loc[4, "client_dissimilarity"] = np.nan
    table.to_csv(spoiled, index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *arguments, **settings: None)
        protocol_results.write("A1", folder)
        page = (folder / "selection.md").read_text()
        protocol_results.write("A2", folder)
    runs = {
        file.stem: pd.read_csv(file).query("round > 0")
        for file in (folder / "protocol" / "A" / "mnist").glob("*.csv")
    }
    return folder, runs, page


def differences(runs, method, baseline, column="client_dissimilarity", last=0):
    """Differences in points of the seeds that have all values, from files by their names."""
    means = [
        [100 * np.mean(runs[f"{name.replace(':', ',')}-{seed}"][column].to_numpy()[-last:])
         for seed in range(10, 30)]
        for name in (method, baseline)
    ]  # fmt: skip
    gaps = np.subtract(*means)
    return gaps[~np.isnan(gaps)]


def of_endpoint(folder, family, endpoint):
    table = pd.read_csv(folder / f"protocol-{family}.csv")
    return table[table["endpoint"] == endpoint].set_index(["method", "baseline"])


def test_a_complete_part_a_has_tables_of_both_families(part_a):
    folder, runs, _ = part_a
    for family, count in (("A1", 20), ("A2", 6)):
        table = pd.read_csv(folder / f"protocol-{family}.csv")
        assert table["endpoint"].value_counts().unique().tolist() == [count]
        assert len(table) == count * 9
        is_metric = table["endpoint"].str.startswith("dissimilarity")
        assert (table["verdict"].notna() == is_metric).all()
        shown = (folder / f"protocol-{family}.md").read_text()
        assert f"{count} claims of the family" in shown
        assert shown.count("| verdict |") == 3
        assert shown.count("(primary)") == 1
    assert set(table["seeds"]) == {10}
    row = of_endpoint(folder, "A1", "class-based dissimilarity, last five").loc["divfl", "fedavg"]
    gaps = differences(runs, "divfl", "fedavg", "client_dissimilarity_class_based", 5)
    assert row["difference"] == pytest.approx(gaps.mean(), abs=6e-5)
    whole = pd.read_csv(folder / "protocol-A1.csv")
    is_metric = whole["endpoint"].str.startswith("dissimilarity")
    assert (whole["published"].notna() == is_metric).all()
    is_published = whole["endpoint"] == "dissimilarity, last round"
    assert (whole["published_value"].notna() == is_published).all()


def test_verdicts_of_part_a_name_their_endpoint(part_a):
    folder, runs, _ = part_a
    primary = of_endpoint(folder, "A1", "dissimilarity, all rounds")
    row = primary.loc["unionfl:window=5", "divfl"]
    gaps = differences(runs, "unionfl:window=5", "divfl")
    interval = stats.t.interval(0.95, 19, gaps.mean(), stats.sem(gaps))
    np.testing.assert_allclose(row[["difference", "low", "high"]].astype(float),
                               [gaps.mean(), *interval], atol=6e-5)  # fmt: skip
    assert row["published"] == pytest.approx(8.59 - 8.89)
    assert row["verdict"] == "same direction"
    other = primary.loc["subtrunc:lam=0.95", "divfl"]
    assert (other["verdict"], other["difference"] > 1) == ("opposite direction", True)
    assert primary["published"].lt(0).all()
    of_paper = of_endpoint(folder, "A1", "dissimilarity, last round")
    assert of_paper["verdict"]["unionfl:window=5", "divfl"] == "reproduced"
    assert of_paper["verdict"]["subtrunc:lam=0.95", "divfl"] == "contradicted"


def test_the_row_of_a_claim_has_both_endpoints_the_setting_and_equal_rounds(part_a):
    folder, *_ = part_a
    lines = blocks((folder / "README.md").read_text())["protocol-A1-verdicts"].splitlines()
    assert len(lines) == 2 + 20
    (line,) = (line for line in lines if line.startswith("| `unionfl:window=5` < `divfl` (-0.30)"))
    _, setting, *cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert setting.startswith("MNIST, LeNet, 20 seeds, 21 rounds")
    for place, endpoint in ((0, "last round"), (2, "all rounds")):
        row = of_endpoint(folder, "A1", f"dissimilarity, {endpoint}").loc[
            "unionfl:window=5", "divfl"
        ]
        assert cells[place].startswith(
            f"{row['difference']:+.2f}, {row['low']:+.2f} to {row['high']:+.2f}; "
        )
        assert cells[place + 1] == row["verdict"]
    assert cells[4:] == ["0%", "[A1](protocol-A1.md), [selection.md](selection.md)"]


def test_the_family_of_part_e_has_ten_hypotheses(tmp_path):
    """Last round and average are adjusted together; the others are families of five."""
    make_runs("E", tmp_path)
    table = protocol_results.compared("E", tmp_path / "protocol").set_index("endpoint")
    names = ["dissimilarity, all rounds", "dissimilarity, last round"]
    raw = []
    for name in names:
        for row in table.loc[name].itertuples():
            half = (row.high - row.low) / 2 / stats.t.ppf(0.975, 39)
            raw.append(2 * stats.t.sf(abs(row.difference) / half, 39))
    order = np.argsort(raw)
    steps = np.maximum.accumulate(np.arange(10, 0, -1) * np.array(raw)[order])[np.argsort(order)]
    np.testing.assert_allclose(table.loc[names, "p"], np.minimum(steps, 1), rtol=1e-6)
    row = table.loc[names[0]].iloc[0]
    deviation = (row["high"] - row["low"]) / 2 / stats.t.ppf(0.975, 39) * np.sqrt(40)
    assert row["detectable"] == pytest.approx(verdicts.detectable(deviation, 40, 10))
    assert (row["method"], row["published"]) == ("unionfl:window=5,scale=sum", -0.30)
    assert table.loc[names[0], "published"].isna().tolist() == [False, False, True, True, True]


def test_the_gain_is_that_of_rotation_by_both_conditions(folder, monkeypatch):
    monkeypatch.setitem(SHIFTS, "rotation", -0.02)
    make_runs("E", folder)
    protocol_results.write("E", folder)
    page = (folder / "protocol-E.md").read_text()
    assert page.endswith("\nThe gain is that of rotation: yes.\n")
    folder /= "protocol"
    for changed, shift in (("unionfl,window=5", -0.003), ("rotation", 0.02)):
        kept = {}
        for file in (folder / "E" / "mnist").glob(f"{changed}-*.csv"):
            kept[file] = pd.read_csv(file)
            kept[file].assign(
                client_dissimilarity=kept[file]["client_dissimilarity"] + shift
            ).to_csv(file, index=False)
        assert not protocol_results.of_rotation(protocol_results.compared("E", folder), folder)
        for file, rows in kept.items():
            rows.to_csv(file, index=False)


def evaluations(method, cohorts, values):
    """One row per seed and round, from 1."""
    return pd.concat([
        pd.DataFrame({
            "method": method, "seed": seed, "round": np.arange(1, len(own) + 1), "cohort": own,
            "x": level,
        })
        for seed, (own, level) in enumerate(zip(cohorts, values, strict=True))
    ])  # fmt: skip


def test_coincidence_compares_sets_and_results_with_a_tolerance():
    sets = [["1 2", "3 4", "5 6", "7 8"]] * 3
    others = [
        ["2 1", "3 4", "5 6", "7 8"],
        ["1 2", "3 4", "5 7", "7 8"],
        ["1 3", "3 4", "5 6", "8 7"],
    ]
    values = np.array([[0.1, 0.2, 0.3, 0.4]] * 3)
    shifts = [[1e-7, 0, 0, 0], [0, 0, 0.02, 0.04], [2e-6, 0.01, 0, 0]]
    runs = pd.concat([evaluations("a", others, values + shifts), evaluations("b", sets, values)])
    found = protocol_results.coincidence(runs, "a", "b", "x")
    assert (found.results, found.cohorts) == (8 / 12, 10 / 12)
    np.testing.assert_array_equal(found.first, [np.nan, 3, 1])
    assert found.never == 1
    np.testing.assert_allclose(found.differing, [3.0, 0.5001])
    assert found.differing.index.tolist() == [1, 2]
    # Without cohorts the results decide.
    found = protocol_results.coincidence(runs.drop(columns="cohort"), "a", "b", "x")
    assert np.isnan(found.cohorts)
    np.testing.assert_array_equal(found.first, [np.nan, 3, 1])
    same = protocol_results.coincidence(runs, "a", "a", "x")
    assert (same.results, same.cohorts, same.never, same.differing.size) == (1, 1, 3, 0)


def test_p_values_of_part_a_are_adjusted_for_its_family(part_a):
    folder, runs, _ = part_a
    rows = of_endpoint(folder, "A1", "dissimilarity, all rounds")
    p = np.array([stats.ttest_1samp(differences(runs, *pair), 0).pvalue for pair in rows.index])
    order = np.argsort(p)
    steps = np.maximum.accumulate(np.arange(20, 0, -1) * p[order])[np.argsort(order)]
    np.testing.assert_allclose(rows["p"], np.minimum(steps, 1), atol=6e-5)


def test_tables_on_pages_have_the_rows_of_their_names(part_a):
    _, runs, page = part_a
    found = blocks(page)
    assert found["mnist-windows"] == found["protocol-A2-fedavg"] == "kept\n"
    lines = [line for line in found["protocol-A1-divfl-unionfl"].splitlines() if "`" in line]
    columns = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    for first, rounds, last in ((0, "all rounds", 0), (4, "last round", 1)):
        names = ["divfl", *(f"unionfl:window={window}" for window in (2, 5, 10))]
        own = columns[first : first + 4]
        assert [row[:2] for row in own] == [[rounds, f"`{name}`"] for name in names]
        level = np.mean([100 * runs[f"divfl-{seed}"]["client_dissimilarity"].to_numpy()[-last:]
                         for seed in range(10, 30)])  # fmt: skip
        assert own[0][2] == f"{level:.2f}"
        assert own[0][3:5] == ["8.89" if last else "", "baseline"]
        gaps = differences(runs, "unionfl:window=10", "divfl", last=last)
        assert own[3][3:5] == ["8.52" if last else "", f"{gaps.mean():+.2f}"]
        assert [bool(row[-1]) for row in own] == [False, *[True] * 3]
    assert len(columns) == 8
    assert "20 claims of the family" in found["protocol-A1-divfl-unionfl"]
