"""Verdicts, tables and figures of the protocol, on synthetic runs and on the committed ones."""

import csv
import math
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.reproduction import protocol, protocol_results, theory_results
from experiments.reproduction.pages import blocks

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


def test_an_incomplete_part_writes_nothing(folder, monkeypatch, capsys):
    next((folder / "protocol" / "D").glob("*.csv")).unlink()
    make_runs("A", folder)
    (folder / "protocol" / "A" / "cifar10" / "divfl-19.csv").unlink()
    before = sorted(folder.rglob("*"))
    lines = run(folder, monkeypatch, capsys)
    counts = [line.partition(" runs are missing, nothing is written")[0] for line in lines]
    assert counts == ["D: 1", "A: 1", "B: 144"]
    assert sorted(folder.rglob("*")) == before
    with pytest.raises(ValueError, match="part='A': 1 runs are missing"):
        protocol_results.write("A", folder)


SHIFTS = {"unionfl:window=5": -0.02, "subtrunc:lam=0.95": 0.02}
"""Of dissimilarity. Other methods differ from random clients by 0.002, except DivFL."""


def make_runs(part, folder):
    """Writes all runs of a part that are missing, with noise of 0.003 per seed."""
    rng = np.random.default_rng(0)
    for cell in protocol.missing(part, folder / "protocol"):
        rounds = cell.config.training.rounds
        level = 0.3 + SHIFTS.get(cell.method, 0.0) + 0.003 * rng.normal() + 0.01 * (cell.seed % 7)
        level += 0.1 * ("rate=0.01" in cell.group)
        values = level + 0.001 * rng.normal(size=rounds + 1)
        values[0] = 9  # The untrained model, which no endpoint has.
        rows = {"algorithm": cell.method, "seed": cell.seed, "round": range(rounds + 1)}
        for i, column in enumerate(dict(protocol_results.ENDPOINTS.values())):
            rows[column] = (1 + i) * values
        file = cell.file(folder / "protocol")
        file.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(file, index=False)


@pytest.fixture(scope="module")
def part_a(tmp_path_factory):
    """Results of a complete part A in which one value is missing, and its runs."""
    folder = tmp_path_factory.mktemp("part_a")
    make_runs("A", folder)
    spoiled = folder / "protocol" / "A" / "mnist" / "unionfl,window=2-12.csv"
    table = pd.read_csv(spoiled)
    table.loc[4, "client_dissimilarity"] = np.nan
    table.to_csv(spoiled, index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *arguments, **settings: None)
        protocol_results.write("A", folder)
    runs = {
        file.stem: pd.read_csv(file).query("round > 0")
        for file in (folder / "protocol" / "A" / "mnist").glob("*.csv")
    }
    return folder, runs


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
    folder, runs = part_a
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
    assert of_endpoint(folder, "A1", "accuracy, all rounds")["published"].isna().all()


def test_verdicts_of_part_a_are_on_the_primary_endpoint(part_a):
    folder, runs = part_a
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
    folder, runs = part_a
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
    folder, runs = part_a
    rows = of_endpoint(folder, "A1", "dissimilarity, all rounds")
    p = np.array([stats.ttest_1samp(differences(runs, *pair), 0).pvalue for pair in rows.index])
    order = np.argsort(p)
    steps = np.maximum.accumulate(np.arange(20, 0, -1) * p[order])[np.argsort(order)]
    np.testing.assert_allclose(rows["p"], np.minimum(steps, 1), atol=6e-5)


def test_the_forest_plot_has_the_claims_of_a_baseline(part_a):
    table = pd.read_csv(part_a[0] / "protocol-A1.csv")
    figure = protocol_results.forest(table[table["baseline"] == "divfl"])
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 9
    place = names.index("unionfl:window=5")
    (point,) = (
        line for line in figure.axes[0].lines
        if line.get_marker() == "D" and line.get_ydata()[0] == place
    )  # fmt: skip
    assert point.get_xdata()[0] == pytest.approx(-0.3)


def test_part_b_has_the_two_best_points_of_each_method_and_all_scores(folder):
    make_runs("B", folder)  # The screening decides on further runs.
    assert protocol_results.missing("B", folder / "protocol") > 0
    make_runs("B", folder)
    protocol_results.write("B", folder)
    table = pd.read_csv(folder / "protocol-B.csv")
    primary = table[table["endpoint"] == "dissimilarity, all rounds"]
    sizes = primary.groupby("method")["published"].unique().to_dict()
    assert sizes == {"subtrunc:lam=0.95": [-0.93], "unionfl:window=5": [-0.30]}
    assert len(primary) == 4
    verdict_of = primary.groupby("method")["verdict"].unique().str.join(" ").to_dict()
    assert verdict_of == {"subtrunc:lam=0.95": "refuted", "unionfl:window=5": "reproduced"}
    scores = pd.read_csv(folder / "protocol-B-screening.csv").set_index("point")
    assert len(scores) == 24
    for method, rows in primary.groupby("method"):
        points = rows["group"].str.removeprefix("test/")
        assert set(points) == set(scores[method].nsmallest(2).index)


def test_a_run_without_all_rounds_is_an_error(folder):
    make_runs("A", folder)
    file = folder / "protocol" / "A" / "mnist" / "divfl-10.csv"
    pd.read_csv(file).iloc[:-1].to_csv(file, index=False)
    with pytest.raises(ValueError, match=r"divfl-10\.csv: expected rounds 0 to 21"):
        protocol_results.write("A", folder)
