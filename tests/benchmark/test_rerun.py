"""Repeating the final runs of a published benchmark."""

import pandas as pd
import pytest
import short_track

from experiments import rerun

pytestmark = pytest.mark.integration

METHODS = ("fedavg", "local_converged")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The tables of a short benchmark."""
    folder = tmp_path_factory.mktemp("published") / "embedded"
    with short_track.finished(folder, short_track.make_track(METHODS)):
        short_track.write_tables(folder)
        yield folder / "report"


def rows_of(out):
    """Returns the printed comparison, by federated dataset."""
    lines = out.splitlines()
    start = lines.index("federation,runs,equal,largest_difference")
    return {line.split(",")[0]: line.split(",")[1:] for line in lines[start + 1 :]}


@pytest.mark.parametrize("column", ["test.accuracy", "partition_digest", None])
def test_runs_equal_the_published_ones(column, published, tmp_path, capsys):
    table = pd.read_csv(published / "cells.csv", dtype={"protocol": str})
    row = table.index[table["phase"] == "final"][0]
    if column == "test.accuracy":
        table.loc[row, column] += 2 * rerun._TOLERANCE
    elif column:
        table.loc[row, column] = "0"
    table.to_csv(tmp_path / "cells.csv", index=False)
    file = tmp_path / "rerun.csv"
    rerun.main(["embedded", "--published", str(tmp_path), "--output", str(file)])
    runs, equal, difference = rows_of(capsys.readouterr().out)["groups"]
    assert file.exists()
    assert int(runs) == (table["phase"] == "final").sum()
    assert int(runs) - int(equal) == (column is not None)
    assert float(difference) < 3 * rerun._TOLERANCE


def test_unknown_names_are_refused(published):
    with pytest.raises(ValueError, match="federations='digit'"):
        rerun.main(["embedded", "--published", str(published), "--federations", "digit"])
