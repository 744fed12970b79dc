"""Forest plots of the pages show the numbers of their tables."""

import re
from pathlib import Path

import pandas as pd
import pytest

from experiments.reproduction import groups, methods_results, text

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"


def drawn(figure, panel=0):
    """Returns difference, limits and whether it is filled, by the name of the row."""
    axes = figure.axes[panel]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    found = {}
    for collection in axes.collections:
        ((low, place), (high, _)) = collection.get_segments()[0]
        (point,) = (
            line for line in axes.lines
            if line.get_marker() == "o" and line.get_ydata()[0] == place
        )  # fmt: skip
        is_filled = point.get_markerfacecolor() != "white"
        found[names[round(place)]] = (point.get_xdata()[0], low, high, is_filled)
    assert len(found) == len(names)
    return found


@pytest.mark.parametrize("data", groups.FEATURES)
def test_only_claims_about_groups_are_filled(data):
    table = pd.read_csv(PAGES / "groups-tables.csv")
    figure = groups.figures(table)[f"groups-{data}"]
    own = table[table["data"] == data].set_index(["method", "alpha"])
    for panel, (column, claimed) in enumerate((("eo", "fairfed:beta=1"), ("dp", "fedfb"))):
        rows = drawn(figure, panel)
        assert len(rows) == 10
        for name, (difference, low, high, is_filled) in rows.items():
            method, alpha = re.split(", . = ", name)
            row = own.loc[(method, float(alpha))]
            limits = [row[f"{column} less fedavg {end}"] for end in ("mean", "low", "high")]
            assert [difference, low, high] == pytest.approx(limits)
            assert is_filled == (method == claimed and row["p_holm"] < 0.05)
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


def test_endpoints_of_the_seven_methods_are_drawn_by_their_unit():
    table = pd.read_csv(PAGES / "methods-endpoints.csv")
    figures = methods_results.figures(table)
    rows = {name.removeprefix("methods-"): drawn(figure) for name, figure in figures.items()}
    assert {units: len(found) for units, found in rows.items()} == {"points": 11, "rounds": 3}
    for row in table[table["reference"] != "-"].to_dict("records"):
        units = "rounds" if "rounds" in row["endpoint"] else "points"
        name = f"{row['claim']} \N{MINUS SIGN} {row['reference']}: {row['endpoint']}"
        *numbers, is_filled = rows[units][name]
        assert numbers == pytest.approx([row["mean"], row["low"], row["high"]])
        assert is_filled == (row["verdict"] != "undecided")
        assert f"({units})" in figures[f"methods-{units}"].axes[0].get_xlabel()


def test_differences_without_p_values_are_not_filled():
    table = pd.read_csv(PAGES / "text-shakespeare.csv")
    figure = text.figure(table)
    for panel, key in enumerate(("worst", "slope")):
        rows = drawn(figure, panel)
        assert list(rows) == table["method"].tolist()[1:]
        for row in table.iloc[1:].to_dict("records"):
            columns = (f"{key} less fedavg{end}" for end in ("", " low", " high"))
            assert rows[row["method"]] == (*map(pytest.approx, map(row.get, columns)), False)
