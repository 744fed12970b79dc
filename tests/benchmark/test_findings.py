"""Tables of the benchmark's pages, from made results."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
from measure_tables import SEEDS, long_table
from page_contents import make_contents
from scipy import stats

from experiments import findings
from fedjax_fair.benchmark.report_tables import write_tables


def make_found(rng, federations=("digits", "groups")):
    values = {
        name: {m: rng.normal(0.5, 0.01, len(SEEDS)) for m in ("fedavg", "divfl", "fedadam")}
        for name in federations
    }
    runs = [long_table(values), long_table(values, "standard_deviation", "fairest")]
    error = {"federation": "digits", "method": "divfl", "criterion": "mean", "measure": "accuracy"}
    found = SimpleNamespace(
        track="embedded", runs=pd.concat(runs), constants={},
        pool_errors=pd.DataFrame([error | {"se": 0.02}]),
    )  # fmt: skip
    return found, values


def test_intervals_are_simultaneous_over_all_rows():
    found, values = make_found(np.random.default_rng(0))
    table = findings.with_intervals(findings.findings(found))
    pairs = [pair for pair in findings.CONTRASTS if set(pair) <= set(values["digits"])]
    pairs += [(name, "fedavg") for name in ("divfl", "fedadam")]
    assert len(table) == 2 * 2 * len(pairs) > 0  # Two measures and two datasets.
    for row in table.itertuples():
        is_known = (row.federation, row.measure, row.method, row.other) == (
            "digits", "accuracy", "divfl", "fedavg"
        )  # fmt: skip
        gaps = 100 * (values[row.federation][row.method] - values[row.federation][row.other])
        test = stats.ttest_1samp(gaps, 0).confidence_interval(1 - 0.05 / len(table))
        half = (test.high - test.low) / 2
        half = half * np.hypot(1, 2 / stats.sem(gaps)) if is_known else half
        np.testing.assert_allclose([row.low, row.high], [gaps.mean() - half, gaps.mean() + half])
    assert table["level"].eq(1 - 0.05 / len(table)).all()


def test_rows_of_other_tracks_stay_as_they_are(tmp_path):
    file = tmp_path / "findings.csv"
    rng = np.random.default_rng(0)
    both = {track: make_found(rng)[0] for track in ("embedded", "standard")}
    both["standard"].track = "standard"
    num_rows, levels = findings.write_findings(both, file)
    assert levels == [f"{1 - 0.05 / num_rows:.5g}"]
    before = file.read_text().splitlines()
    again, _ = make_found(np.random.default_rng(1))
    assert findings.write_findings({"embedded": again}, file) == (num_rows, levels)
    after = file.read_text().splitlines()
    assert after[0] == before[0]
    of_track = [line.startswith("standard,") for line in before]
    assert of_track == [line.startswith("standard,") for line in after]
    for is_kept, old, new in zip(of_track[1:], before[1:], after[1:], strict=True):
        assert (old == new) == is_kept
    # The same results give the same file.
    findings.write_findings({"embedded": both["embedded"]}, file)
    assert file.read_text().splitlines() == before


def test_pages_have_the_tables_over_all_datasets(tmp_path):
    contents = make_contents(federations=("digits", "groups", "synthetic"))
    write_tables(contents, tmp_path)
    shown = {name: findings.table_of(tmp_path, title) for name, title in findings.TABLES.items()}
    ranked = shown["ranking"].splitlines()
    assert ranked[0].startswith("| method | rank by accuracy |")
    assert len(ranked) == 2 + contents.ranking["method"].nunique()
    for name, rows in (("known", contents.statements), ("undecided", contents.undecided)):
        lines = shown[name].splitlines()
        if name == "undecided":  # Only those over all datasets.
            rows = rows[rows["order"].notna()]
            assert all(line.startswith("| all |") for line in lines[2:])
            needed = rows["blocks_needed"].sort_values()[:20]
            shown_cells = [line.split("|")[-2].strip().replace(",", "") for line in lines[2:]]
            assert shown_cells == [f"{value:.0f}" for value in needed]
        assert len(lines) == 2 + min(len(rows), 20)
    assert findings.table_of(tmp_path, "Another table") == "-"


def test_a_table_is_replaced_between_its_comments():
    page = "before\n<!-- a -->\nold\n<!-- end -->\nafter"
    assert findings.with_table(page, "a", "new") == page.replace("old", "new")
