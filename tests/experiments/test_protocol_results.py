"""Verdicts, tables and figures of the protocol, on synthetic runs and on the committed ones."""

import csv
import math
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.reproduction import protocol, protocol_pages, protocol_results, theory_results
from experiments.reproduction.pages import blocks

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"
COMPLETE = [
    name
    for name in protocol_results.FAMILIES
    if not protocol_results.missing(name, PAGES / "protocol")
]


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


def test_families_with_missing_runs_have_no_verdict(folder, monkeypatch, capsys):
    next((folder / "protocol" / "D").glob("*.csv")).unlink()
    make_runs("A", folder)
    (folder / "protocol" / "A" / "cifar10" / "divfl-19.csv").unlink()
    before = set(folder.rglob("*"))
    lines = dict(line.split(": ", 1) for line in run(folder, monkeypatch, capsys))
    text = "{} runs are missing, nothing is written"
    counts = {"D": 1, "A2": 1, "B": 144 + 160, "C1": 30, "C3": 21}
    written = lines.pop("A1")
    assert lines == {name: text.format(count) for name, count in counts.items()}
    assert re.fullmatch(r"(\d+ (reproduced|refuted|undecided)(, )?)+", written)
    assert sum(map(int, re.findall(r"\d+", written))) == 20
    new = {path.name for path in set(folder.rglob("*")) - before}
    assert new == {"protocol-A1.csv", "protocol-A1.md"}
    with pytest.raises(ValueError, match="name='A2': 1 runs are missing"):
        protocol_results.write("A2", folder)


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
        is_primary = table["endpoint"] == "dissimilarity, all rounds"
        assert (table["verdict"].notna() == is_primary).all()
        shown = (folder / f"protocol-{family}.md").read_text()
        assert f"{count} claims of the family" in shown
        assert shown.count("| verdict |") == 1
    assert set(table["seeds"]) == {10}
    row = of_endpoint(folder, "A1", "class-based dissimilarity, last five").loc["divfl", "fedavg"]
    gaps = differences(runs, "divfl", "fedavg", "client_dissimilarity_class_based", 5)
    assert row["difference"] == pytest.approx(gaps.mean(), abs=6e-5)
    whole = pd.read_csv(folder / "protocol-A1.csv")
    is_metric = whole["endpoint"].str.startswith("dissimilarity")
    assert (whole["published"].notna() == is_metric).all()
    is_published = whole["endpoint"] == "dissimilarity, last round"
    assert (whole["published_value"].notna() == is_published).all()


def test_verdicts_of_part_a_are_on_the_primary_endpoint(part_a):
    folder, runs, _ = part_a
    primary = of_endpoint(folder, "A1", "dissimilarity, all rounds")
    row = primary.loc["unionfl:window=5", "divfl"]
    gaps = differences(runs, "unionfl:window=5", "divfl")
    interval = stats.t.interval(0.95, 19, gaps.mean(), stats.sem(gaps))
    np.testing.assert_allclose(row[["difference", "low", "high"]].astype(float),
                               [gaps.mean(), *interval], atol=6e-5)  # fmt: skip
    assert row["published"] == pytest.approx(8.59 - 8.89)
    assert row["verdict"] == "reproduced"
    other = primary.loc["subtrunc:lam=0.95", "divfl"]
    assert (other["verdict"], other["difference"] > 1) == ("refuted", True)
    assert primary["published"].lt(0).all()


def test_a_seed_without_a_finite_value_is_left_out_and_counted(part_a):
    folder, runs, _ = part_a
    primary = of_endpoint(folder, "A1", "dissimilarity, all rounds")
    spoiled = primary.loc["unionfl:window=2"]
    assert spoiled["seeds"].tolist() == [19, 19]
    assert spoiled["left_out"].tolist() == [1, 1]
    gaps = differences(runs, "unionfl:window=2", "divfl")
    assert spoiled.loc["divfl", "difference"] == pytest.approx(gaps.mean(), abs=6e-5)
    assert (primary["seeds"] == 20).sum() == 18
    last = of_endpoint(folder, "A1", "dissimilarity, last round")
    assert set(last["seeds"]) == {20}
    assert "19 to 20 seeds" in (folder / "protocol-A1.md").read_text()


def test_p_values_of_part_a_are_adjusted_for_its_family(part_a):
    folder, runs, _ = part_a
    rows = of_endpoint(folder, "A1", "dissimilarity, all rounds")
    p = np.array([stats.ttest_1samp(differences(runs, *pair), 0).pvalue for pair in rows.index])
    order = np.argsort(p)
    steps = np.maximum.accumulate(np.arange(20, 0, -1) * p[order])[np.argsort(order)]
    np.testing.assert_allclose(rows["p"], np.minimum(steps, 1), atol=6e-5)


def test_the_forest_plot_has_the_claims_of_a_baseline(part_a):
    table = pd.read_csv(part_a[0] / "protocol-A1.csv")
    figure = protocol_pages.forest(protocol_pages.rows_of(table, "protocol-A1-divfl"))
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 9
    place = names.index("unionfl:window=5")
    (point,) = (
        line for line in figure.axes[0].lines
        if line.get_marker() == "D" and round(line.get_ydata()[0]) == place
    )  # fmt: skip
    assert point.get_xdata()[0] == pytest.approx(-0.3)
    for axes, endpoint in zip(figure.axes, ("last round", "all rounds"), strict=True):
        heading = axes.get_xlabel().replace("\n", " ")
        assert heading == f"dissimilarity, {endpoint}: difference to divfl (points)"
        rows = of_endpoint(part_a[0], "A1", f"dissimilarity, {endpoint}")
        (drawn,) = (
            line for line in axes.lines
            if line.get_marker() == "o" and line.get_ydata()[0] == place
        )  # fmt: skip
        expected = rows.loc[("unionfl:window=5", "divfl"), "difference"]
        assert drawn.get_xdata()[0] == pytest.approx(expected)


def test_curves_of_a_baseline_are_paired_differences_over_rounds(part_a):
    folder, runs, _ = part_a
    gaps = protocol_results.over_rounds("A1", folder / "protocol")
    drawn = protocol_pages.curves(protocol_pages.rows_of(gaps, "protocol-A1-fedavg"))
    panels = drawn.axes
    assert len(panels) == 11
    assert len({axes.get_subplotspec().rowspan.start for axes in panels}) == 2
    label = drawn.get_supylabel().replace("\n", " ")
    assert label == "dissimilarity, difference to fedavg (points)"
    (axes,) = [axes for axes in panels if axes.get_title() == "unionfl:window=5"]
    column = "client_dissimilarity"
    seeds = [
        runs[f"unionfl,window=5-{seed}"][column].to_numpy()
        - runs[f"fedavg-{seed}"][column].to_numpy()
        for seed in range(10, 30)
    ]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.arange(1, 22))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 100 * np.mean(seeds, axis=0), atol=1e-9)


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
        assert [bool(row[-1]) for row in own] == [False, *[not first] * 3]
    assert len(columns) == 8
    assert "20 claims of the family" in found["protocol-A1-divfl-unionfl"]


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
    files = (PAGES / "protocol" / "A" / "mnist").glob("*.csv")
    runs = pd.concat([pd.read_csv(file) for file in files]).query("round > 0")
    values = 100 * runs.pivot_table("client_dissimilarity", "seed", "algorithm")
    committed = pd.read_csv(PAGES / "protocol-A1.csv").query(
        "endpoint == 'dissimilarity, all rounds'"
    )
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
    committed = pd.read_csv(PAGES / "protocol-A1.csv").query(
        "endpoint == 'dissimilarity, all rounds'"
    )
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
    committed = pd.read_csv(PAGES / "protocol-B.csv").query(
        "endpoint == 'dissimilarity, all rounds'"
    )
    assert found == committed.set_index(["method", "group"])["verdict"].to_dict()


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


def test_part_c_compares_the_tuned_methods_with_fedprox(folder):
    make_runs("C", folder)  # The grid decides on further runs.
    assert protocol_results.missing("C1", folder / "protocol") == 0
    assert protocol_results.missing("C3", folder / "protocol") == 21
    make_runs("C", folder)
    published = {"C1": (2.25, -1.09), "C3": (7.51, -11.94)}
    for name, sizes in published.items():
        protocol_results.write(name, folder)
        table = pd.read_csv(folder / f"protocol-{name}.csv")
        primary = table[table["endpoint"] == "sigma_acc, all rounds"].set_index("method")
        chosen = "learning_rate=0.03," if name == "C3" else "learning_rate=0.3,"
        assert all(chosen in method for method in (*primary.index, *primary["baseline"]))
        primary.index = primary.index.str.partition(":").get_level_values(0)
        of_claim = primary.loc[["clustered_by_similarity", "equitable"]]
        assert tuple(of_claim["published"]) == sizes
        assert (of_claim["seeds"] == (10 if name == "C1" else 7)).all()
        np.testing.assert_allclose(of_claim["difference"], [3, 1], atol=0.4)
        assert of_claim["verdict"].tolist() == ["reproduced", "refuted"]


def test_part_b_has_the_two_best_points_of_each_method_and_all_scores(folder):
    make_runs("B", folder)  # The screening decides on further runs.
    assert protocol_results.missing("B", folder / "protocol") == 4 * 20 + 20 * len(
        protocol.screened(folder / "protocol")
    )
    make_runs("B", folder)
    (folder / "selection.md").write_text(PAGE.replace("A2-fedavg", "B-divfl"))
    protocol_results.write("B", folder)
    table = pd.read_csv(folder / "protocol-B.csv")
    primary = table[table["endpoint"] == "dissimilarity, all rounds"]
    sizes = primary.groupby("method")["published"].unique().to_dict()
    assert sizes == {"subtrunc:lam=0.95": [-0.93], "unionfl:window=5": [-0.30]}
    assert len(primary) == 4
    verdict_of = primary.groupby("method")["verdict"].unique().str.join(" ").to_dict()
    assert verdict_of == {"subtrunc:lam=0.95": "refuted", "unionfl:window=5": "reproduced"}
    shown = blocks((folder / "selection.md").read_text())["protocol-B-divfl"]
    for group in set(primary["group"]):
        assert shown.count(f"| `divfl`, {group.removeprefix('test/')} |") == 2
    scores = pd.read_csv(folder / "protocol-B-screening.csv").set_index("point")
    assert len(scores) == 24
    for method, rows in primary.groupby("method"):
        points = rows["group"].str.removeprefix("test/")
        assert set(points) == set(scores[method].nsmallest(2).index)
    page = (folder / "protocol-B.md").read_text()
    assert page.startswith("# Family B of the [protocol]")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.partition("## Screening")[2].splitlines() if line.startswith("| ")
    ]  # fmt: skip
    assert rows[0] == ["classes", "steps", "cohort", "rate", *(f"`{name}`" for name in scores)]
    for row, point in zip(rows[1:], scores.index, strict=True):
        assert row[:4] == [part.partition("=")[2] for part in point.split(",")]
        for shown, method in zip(row[4:], scores, strict=True):
            is_tested = f"test/{point}" in set(primary.loc[primary["method"] == method, "group"])
            assert shown == ("**{:+.2f}**" if is_tested else "{:+.2f}").format(
                scores.loc[point, method]
            )


def test_a_run_without_all_rounds_is_an_error(folder):
    make_runs("A", folder)
    file = folder / "protocol" / "A" / "mnist" / "divfl-10.csv"
    pd.read_csv(file).iloc[:-1].to_csv(file, index=False)
    with pytest.raises(ValueError, match=r"divfl-10\.csv: expected rounds 0 to 21"):
        protocol_results.write("A1", folder)
