"""Published tables: changed values are noticed, and no text is a formula."""

import csv
import re
import shutil
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from fedjax_fair.benchmark import published
from fedjax_fair.results.formats import from_cell, to_csv

FOLDER = Path(__file__).parents[2] / "docs" / "benchmark" / "embedded"


def change_digit(content):
    return re.sub(rb"0\.(\d)", lambda found: b"0.%d" % ((int(found[1]) + 1) % 10), content, count=1)


@pytest.fixture
def copied(tmp_path):
    tables = shutil.ignore_patterns("*.html", "*.png", "*.tex", "*.md")
    return shutil.copytree(FOLDER, tmp_path / "report", ignore=tables)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        *((table, change_digit) for table in ("runs", "clients", "curves", "pool_errors")),
        ("methods", lambda content: content.replace(b"FedAvg", b"FedBest")),
        ("runs", lambda content: content.replace(b"False", b"True", 1)),
        ("cells", lambda content: content[: content.rstrip().rfind(b"\n") + 1]),
        ("settings", lambda content: content + b"\n"),
        ("federations", lambda content: content.replace(b"\n", b"\r\n")),
    ],
)
def test_edited_tables_are_refused(table, change, copied):
    assert published.read(copied, "embedded").track == "embedded"
    file = copied / f"{table}.csv"
    before = file.read_bytes()
    file.write_bytes(change(before))
    assert file.read_bytes() != before
    with pytest.raises(ValueError, match=rf"{table}\.csv has changed since|published="):
        published.read(copied, "embedded")


def test_texts_that_could_be_formulas_come_back(tmp_path):
    known = published.read(FOLDER, "embedded")
    texts = ["=1+2", "@SUM(A1)", "+cmd|' /C calc'!A0", "-1+1", "\t=1", "'=1", "''-a", "-", "it's"]
    methods = known.methods.copy()
    methods["summary"] = (texts * len(methods))[: len(methods)]
    published.write(known._replace(methods=methods), tmp_path)
    with (tmp_path / "methods.csv").open(newline="", encoding="utf8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if re.match(r"[=+\-@\t\r].", cell)]
    again = published.read(tmp_path, "embedded")
    pd.testing.assert_frame_equal(again.methods, methods)
    pd.testing.assert_frame_equal(again.runs, known.runs)


def test_means_of_the_published_runs_are_those_that_are_shown():
    shown = pd.read_csv(FOLDER / "results.csv").set_index(["federation", "method"])
    runs = published.read(FOLDER, "embedded").all_runs.query("criterion == 'mean'")
    means = runs.pivot_table("value", ["federation", "method"], "measure")
    for name in ("accuracy", "standard_deviation", "relative_compute", "worse_than_fine_tuned"):
        values = means[name].reindex(shown.index)
        pd.testing.assert_series_equal(values, shown[name], check_names=False, rtol=2e-5)


@pytest.mark.parametrize(
    "text", ["=1", "+a", "-a\n", "@x", "\ty", "'=1", "''+1", "x=", "-", "'", "-0.5", "+1e5"]
)
def test_cells_come_back(text):
    is_harmless = text in ("x=", "-", "'", "-0.5", "+1e5")
    heading, cell = csv.reader(StringIO(to_csv(pd.DataFrame({text: [text]})), newline=""))
    assert heading == cell == [text if is_harmless else f"'{text}"]
    assert from_cell(cell[0]) == text
