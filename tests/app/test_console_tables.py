"""Tables of results in the terminal: rows, and a layout for every width."""

import re

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app.terminal.console import format_table
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results.comparison import comparison_table, default_metrics
from fedjax_fair.results.formats import Table, format_number
from fedjax_fair.results.tables import final_tables

DIMS = ("algorithm", "seed", "round")


def long_names(num_clients=6):
    """Results of methods with long names, with everything in the table of methods."""
    rng = np.random.default_rng(0)
    names = ["fedavg", "clustered_by_similarity:prox=0.1"]
    summaries = [
        "accuracy_mean_clients", "accuracy_mean_examples", "accuracy_worst_10pct",
        "client_dissimilarity", "group_accuracy_gap",
    ]  # fmt: skip
    columns = {
        name: (DIMS, rng.uniform(0.6, 0.62, (2, 5, 1)), {"units": "1"}) for name in summaries
    }
    columns["accuracy_worst_10pct"][1][1] -= 0.3
    columns["test_examples"] = (("client", "class"), np.full((num_clients, 3), 4))
    return xr.Dataset(columns, {"algorithm": names}, {"data": "digits"})


def test_the_table_of_methods_ends_with_noise_floors():
    runs = long_names()
    (table,) = final_tables(runs)
    floors = results.noise_floor(runs, list(default_metrics(runs)[1])).mean("algorithm")
    expected = [format_number(100 * floor.item(), ".1f") for floor in floors.values()]
    assert table.rows[-1] == ("noise floor", *(text.strip("-") for text in expected))
    assert sum(cell != "" for cell in table.rows[-1]) == 3
    (single,) = final_tables(runs.isel(seed=[0]))
    assert single.rows[-1][0] == "noise floor"
    assert "±" not in str(single.rows)
    assert "*" not in str(single.rows)


def test_configurations_without_effect_are_one_row():
    rng = np.random.default_rng(0)
    dims = ("algorithm", "lam", "prox", "seed", "round")
    names = [getattr(ACCURACY, name) for name in ("mean", "worst", "spread", "dissimilarity")]
    columns = {name: (dims, rng.uniform(size=(2, 2, 2, 3, 1))) for name in names}
    for _, values in columns.values():
        values[0, 1] = values[0, 0]  # The first method does not read lam.
    runs = xr.Dataset(
        columns, {"algorithm": ["one", "two"], "lam": [0.1, 5.0], "prox": [0.0, 0.2]},
        {"data": "made up"},
    )  # fmt: skip
    (table,) = final_tables(runs)
    assert [row[0] for row in table.rows] == [
        "one, prox=0", "one, prox=0.2",
        "two, lam=0.1, prox=0", "two, lam=0.1, prox=0.2",
        "two, lam=5, prox=0", "two, lam=5, prox=0.2",
    ]  # fmt: skip
    assert table.title == "The first 6 of 6 configurations (made up)"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_tables_fit_without_breaking_numbers_or_pieces_of_names(width):
    runs = long_names()
    comparison = comparison_table(results.compare(runs, "accuracy_worst_10pct"), digits=1)
    for table in (*final_tables(runs), comparison):
        lines = format_table(table, width).splitlines()
        assert max(map(len, lines)) <= width
        assert " ".join(table.title.split()) in " ".join(" ".join(lines).split())
        printed = "\n".join(lines)
        for name, *cells in table.rows:
            for cell in cells:
                for line in cell.split("\n"):
                    assert line in printed
            assert all(piece in printed for piece in re.split("(?<=[+:])", name))


ROWS = [("first+method:b=1,c=2", "1.0 ± 0.2", "3"), ("second", "-4.0 ± 1.0\n+5", "")]
TABLE = Table("Title", ("method", "accuracy", "gap of\ngroups"), ROWS, "In %.")


WHOLE_NAMES = """
Title
                                   gap of
 method                  accuracy  groups
 ----------------------------------------
 first+method:b=1,c=2   1.0 ± 0.2       3
 second                -4.0 ± 1.0
                               +5
In %.
"""
WRAPPED_NAMES = """
Title
                       gap of
 method      accuracy  groups
 ----------------------------
 first+     1.0 ± 0.2       3
  method:
  b=1,c=2
 second    -4.0 ± 1.0
                   +5
In %.
"""
LABELS = """
Title
                gap of
      accuracy  groups
 ---------------------
 A   1.0 ± 0.2       3
 B  -4.0 ± 1.0
            +5
A: first+method:b=1,c=2
B: second
In %.
"""
BLOCKS = """
Title
     accuracy
 ------------
 A  1.0 ± 0.2
 B -4.0 ± 1.0
           +5

   gap of
   groups
 --------
 A      3
 B
A: first+method:
 b=1,c=2
B: second
In %.
"""


@pytest.mark.parametrize(
    ("width", "expected"), [(43, WHOLE_NAMES), (30, WRAPPED_NAMES), (27, LABELS), (18, BLOCKS)]
)
def test_a_narrow_table_wraps_names_then_has_labels_and_blocks(width, expected):
    assert format_table(TABLE, width) == expected


def test_short_names_are_repeated_in_every_block():
    table = TABLE._replace(rows=[("first", *ROWS[0][1:])])
    lines = [line.split() for line in format_table(table, 18).splitlines()]
    assert lines == [
        [], ["Title"], ["method", "accuracy"], ["-" * 16], ["first", "1.0", "±", "0.2"], [],
        ["gap", "of"], ["method", "groups"], ["-" * 13], ["first", "3"], ["In", "%."],
    ]  # fmt: skip


def test_labels_differ_from_those_of_runs_and_are_numbers_if_letters_do_not_suffice():
    for count, run, expected in ((3, "B", ["A", "C", "D"]), (26, "B", ["1", "2", "3"])):
        names = [f"a long name of {place} ({run})" for place in range(count)]
        table = Table("Title", ("method", "gap"), [(name, "1") for name in names], "")
        lines = [line.split() for line in format_table(table, 10).splitlines()]
        assert [line[0] for line in lines if line[1:] == ["1"]][:3] == expected
