"""The report of made tables: what it compares, and what its files say."""

import numpy as np
import pandas as pd
import pytest
from page_contents import BLOCKS, FOUND_FEDERATIONS, FOUND_METHODS, make_found

from fedjax_fair.benchmark import protocol, report
from fedjax_fair.benchmark.report_contents import by_method, unit_of
from fedjax_fair.benchmark.report_tables import comparison_tables, write_tables
from fedjax_fair.results.formats import markdown


def test_entries_are_ranked_and_change_no_rank():
    found = make_found()
    whole = report.contents(found).ranking
    kept = found.runs[found.runs["method"] != "entered"]
    without = report.contents(make_found(runs=kept)).ranking
    keys = ["order", "method"]
    columns = ["rank", "beaten", "difference", "low", "high"]
    both = without.merge(whole, on=keys, suffixes=("", "_whole"))
    assert len(both) == len(without) == 4 * 4
    for name in columns:
        np.testing.assert_array_equal(both[name], both[f"{name}_whole"])
    entered = whole[whole["method"] == "entered"]
    assert len(entered) == 4
    assert entered["rank"].between(1, 5).all()
    assert entered["beaten"].between(0, 1).all()


def test_variants_are_a_family_of_their_own(monkeypatch):
    track = protocol.TRACKS["embedded"]._replace(variants=("groups_dropouts",))
    monkeypatch.setitem(protocol.TRACKS, "embedded", track)
    both = report.contents(make_found((*FOUND_FEDERATIONS, "groups_dropouts")))
    found = make_found((*FOUND_FEDERATIONS, "groups_dropouts"))
    runs = found.runs[found.runs["federation"] != "groups_dropouts"]
    without = report.contents(make_found(runs=runs))
    pd.testing.assert_frame_equal(both.ranking, without.ranking)
    is_variant = both.differences["federation"] == "groups_dropouts"
    kept = both.differences[~is_variant].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, without.differences)
    own = both.differences[is_variant & (both.differences["family"] == "F2")]
    assert own["p"].notna().all()
    assert len(own) == 2 * 4


def test_limits_of_settings_are_marked_and_not_ranked():
    found = make_found()
    is_one = (found.settings["method"] == "ditto") & (found.settings["federation"] == "digits")
    settings = found.settings.assign(at_limit=np.where(is_one, "learning_rate", ""))
    limited = report.contents(make_found(settings=settings))
    assert "ditto" not in set(limited.ranking["method"])
    marked = limited.results[limited.results["at_limit"]]
    assert marked[["federation", "method"]].to_numpy().tolist() == [["digits", "ditto"]]
    keys = ["federation", "method", "measure", "criterion"]
    compared = limited.differences.set_index(keys)["verdict"]
    assert compared["digits", "ditto", "accuracy", "mean"] == "limit"
    assert compared["groups", "ditto", "accuracy", "mean"] == "worse"


@pytest.mark.parametrize("name", ["digits", "groups"])
def test_spread_of_chance_is_named_and_has_no_verdict(name):
    shown = report.contents(make_found())
    assert shown.without_spread == ("digits", "groups")
    is_spread = shown.statements["measure"] == "standard_deviation"
    assert set(shown.statements.loc[is_spread, "scope"]) == {"synthetic"}
    table = comparison_tables(shown)[f"differences-{name}"]
    assert f"Chance explains {100 * shown.chance[name]:.0f}% of the variance" in table.note
    assert "so that spread has no verdict" in table.note
    assert {row[-1] for row in table.rows} == {"-"}


def test_errors_by_the_test_pool_widen_the_intervals_that_are_shown():
    keys = {"federation": "digits", "criterion": "mean", "measure": "accuracy"}
    errors = pd.DataFrame([keys | {"method": m, "se": 0.5} for m in FOUND_METHODS[1:]])
    shown = report.contents(make_found(pool_errors=errors))
    rows = by_method(shown, "digits")
    assert (rows["accuracy_low"] < -1).all()
    compared = shown.differences.query(
        "federation == 'digits' and measure == 'accuracy' and criterion == 'mean'"
    )
    assert (compared["low_blocks"] > -0.1).all()
    assert (compared["se_pool"] == 0.5).all()
    needed = dict(zip(compared["method"], compared["blocks_needed"], strict=True))
    assert needed["tilted"] == np.inf
    table = comparison_tables(shown)["undecided"]
    assert "none suffice" in {row[-1] for row in table.rows}
    assert len(shown.statements[shown.statements["scope"] != "digits"]) > 0


def test_the_files_lead_with_what_is_known(tmp_path):
    shown = report.contents(make_found())
    names = {path.name for path in write_tables(shown, tmp_path)}
    assert {"results.csv", "ranking.csv", "differences.csv", "report.md", "results.md"} <= names
    assert {"statements.tex", "ranking.tex", "undecided.tex", "differences-digits.tex"} <= names
    text = (tmp_path / "report.md").read_text()
    tables = [table for table in comparison_tables(shown).values() if table.rows]
    assert text == "\n".join(map(markdown, tables))
    assert [table.title for table in tables] == [
        "What is known",
        "Ranking, all datasets",
        "Ranking at equal costs and with rounds chosen",
        *(f"Differences on {name}" for name in FOUND_FEDERATIONS),
        "What could not be decided",
    ]
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.headings)}
    first = tables[0].rows[0]
    assert first[:4] == ("all", "scaffold", "rank by accuracy (ranks)", "better")
    assert all(cells[-1] != "-" for cells in tables[0].rows)


def test_units_are_honest_about_direction():
    assert unit_of("overall", "accuracy") == ("ranks", 1.0)
    assert unit_of("digits", "standard_deviation") == ("points", 100.0)


def test_without_the_baseline_nothing_is_compared():
    found = make_found()
    runs = found.runs[found.runs["method"] != "fedavg"]
    shown = report.contents(make_found(runs=runs))
    assert shown.differences.empty
    assert set(shown.ranking["verdict"]) == {""}
    assert shown.statements.empty
    assert shown.undecided.empty
    assert len(shown.results)


def test_blocks_are_the_unit_of_all_intervals():
    shown = report.contents(make_found())
    assert set(shown.differences["blocks"]) == {len(BLOCKS)}
    rows = by_method(shown, "overall").set_index("method")
    expected = shown.ranking.query("order == 'accuracy'").set_index("method")
    for name in FOUND_METHODS[1:]:
        assert rows["accuracy_difference"][name] == pytest.approx(expected["difference"][name])
    assert shown.ranking.columns.tolist() == list(report.verdicts.COLUMNS["overall"])
