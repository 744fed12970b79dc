"""Repeating the final runs of a published benchmark."""

import shutil

import pandas as pd
import pytest
import short_track

from experiments import rerun
from fedjax_fair.benchmark import protocol, runner
from fedjax_fair.benchmark.unit import VALIDATION

pytestmark = pytest.mark.integration

METHODS = ("fedavg", "local_converged")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The tables of a short benchmark, and the folder of its results."""
    folder = tmp_path_factory.mktemp("published") / "embedded"
    track = protocol.Track(("groups",), METHODS, 4, (0, 1), (100, 101, 102))
    with short_track.finished(folder, track):
        short_track.write_tables(folder)
        yield folder


def rows_of(out):
    """Returns the printed comparison, by federated dataset."""
    lines = out.splitlines()
    start = lines.index("federation,runs,equal,largest_difference")
    return {line.split(",")[0]: line.split(",")[1:] for line in lines[start + 1 :]}


def test_runs_without_their_tuning_equal_the_published_ones(published, tmp_path, capsys):
    rerun.main(["embedded", "--published", str(published / "report"), "--output", str(tmp_path)])
    runs, equal, difference = rows_of(capsys.readouterr().out)["groups"]
    assert (tmp_path / "rerun.csv").exists()
    finals = pd.read_csv(published / "report" / "cells.csv").query("phase == 'final'")
    assert int(runs) == int(equal) == len(finals)
    assert float(difference) < rerun._TOLERANCE
    tuned = tmp_path / "embedded" / "programs" / "groups"
    assert (tuned / "fedavg" / "tuning.nc").stat().st_size < (
        published / "programs" / "groups" / "fedavg" / "tuning.nc"
    ).stat().st_size  # It is restored, not run.


def test_other_accuracies_are_counted(published, tmp_path):
    table = pd.read_csv(published / "report" / "cells.csv")
    row = table.index[table["phase"] == "final"][0]
    table.loc[row, "test.accuracy"] += 2 * rerun._TOLERANCE
    (found,) = rerun.compare(table, published).to_dict("records")
    assert found["runs"] - found["equal"] == 1


def test_missing_runs_are_not_equal(published, tmp_path):
    table = pd.read_csv(published / "report" / "cells.csv")
    folder = tmp_path / "embedded"
    shutil.copytree(published, folder)
    shutil.rmtree(folder / "programs" / "groups" / "local_converged")
    (found,) = rerun.compare(table, folder).to_dict("records")
    finals = table[table["phase"] == "final"]
    assert found["runs"] == len(finals)
    assert found["equal"] == (finals["method"] == "fedavg").sum()


def test_other_choices_than_the_published_ones_are_refused(published, tmp_path):
    table = pd.read_csv(published / "report" / "cells.csv", dtype={"protocol": str})
    is_tuning = (table["phase"] == "tuning") & (table["method"] == "fedavg")
    names = [f"validation.{name}" for name in VALIDATION]
    table.loc[is_tuning, names] = 1 - table.loc[is_tuning, names]
    with pytest.raises(ValueError, match="fedavg on groups: expected the published settings of"):
        rerun.restore(table, tmp_path / "embedded", "embedded")


def test_unknown_names_are_refused(published):
    with pytest.raises(ValueError, match="federations='digit'"):
        rerun.main(["embedded", "--published", str(published / "report"), "--federations", "digit"])


def test_published_choices_decide_ties(published, tmp_path):
    """Rounded values may be equal where the better setting was not the first one."""
    table = pd.read_csv(published / "report" / "cells.csv", dtype={"protocol": str})
    table = table[table["method"] == "fedavg"]
    last = table["settings_hash"].iloc[-1]
    names = [f"validation.{name}" for name in VALIDATION]
    table.loc[table["phase"] == "tuning", names] = 0.5
    finals = table["phase"] == "final"
    table.loc[finals, "settings_hash"] = last
    table.loc[finals, "criterion"] = "['mean', 'worst', 'fairest']"
    folder = tmp_path / "embedded"
    rerun.restore(table, folder, "embedded")
    runner.run(runner.plan("embedded", folder, ["fedavg"]), folder)
    own = pd.json_normalize(rerun.run_cells.gather(folder))
    assert set(own.loc[own["phase"] == "final", "settings_hash"]) == {last}
    shutil.rmtree(folder)
