"""Results of a benchmark as tables: read again, and joined with those of another one."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from short_track import shorten_training

from fedjax_fair.app.cli import main
from fedjax_fair.benchmark import collected, protocol, report, runner

pytestmark = pytest.mark.integration

METHODS = ("fedavg", "fine_tuned", "q_fedavg", "local_converged")
TABLES = ("runs", "clients", "settings", "curves", "federations", "methods", "cells")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A benchmark of one short federated dataset, with its report."""
    folder = tmp_path_factory.mktemp("benchmark") / "embedded"
    with pytest.MonkeyPatch.context() as patch:
        shorten_training(patch, "groups")
        track = protocol.Track(("groups",), METHODS, 2, (0, 1), (100, 101, 102))
        patch.setitem(protocol.TRACKS, "embedded", track)
        runner.run(runner.plan("embedded", folder), folder)
        write_tables(folder)
        yield folder


@pytest.fixture
def copy_of(finished, tmp_path):
    """Copies the benchmark, with some of its methods."""

    def copy(name, *methods):
        folder = tmp_path / name / "embedded"
        shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("report"))
        for program in (folder / "programs" / "groups").iterdir():
            if program.name not in methods:
                shutil.rmtree(program)
        write_tables(folder)
        return folder

    return copy


def write_tables(folder):
    """Writes the tables of a report, without its page and figures, which take longer."""
    (folder / "report").mkdir(exist_ok=True)
    collected.write(collected.collect(folder), folder / "report")


def verify_equal(found, expected):
    """Asserts equal tables up to the digits of the files."""
    for name in TABLES:
        key = [column for column in ("method", "measure") if column in getattr(found, name)]
        tables = [
            pd.DataFrame(getattr(each, name))
            .sort_values(key, kind="stable", ignore_index=True)
            .sort_index(axis="columns")
            for each in (found, expected)
        ]
        if name == "cells":  # Criteria and settings that a method lacks.
            tables = [table.astype(object).where(table.notna(), None).map(str) for table in tables]
            numbers = [c for c in tables[0] if c.startswith(("test.", "validation."))]
            for table in tables:
                table[numbers] = table[numbers].replace("None", "nan").astype(float)
        pd.testing.assert_frame_equal(
            *tables, check_dtype=False, check_column_type=False, rtol=1e-6
        )


def test_tables_are_read_as_they_were_written(finished):
    whole = collected.collect(finished)
    again = collected.read(finished / "report", "embedded")
    verify_equal(again, whole)
    assert again.environment == whole.environment
    assert again.constants == pytest.approx(whole.constants)
    pages = [report.contents(each) for each in (again, whole)]
    for name in ("federations", "results", "ranking", "verdicts", "evidence", "methods"):
        frames = [getattr(page, name) for page in pages]
        pd.testing.assert_frame_equal(*frames, check_dtype=False, rtol=1e-4, atol=1e-6)


def test_float32_accuracies_are_exact(finished):
    """A client that is as accurate as with a reference is not worse off."""
    whole = collected.collect(finished)
    again = collected.read(finished / "report", "embedded")
    for key, served in whole.references.served.items():
        np.testing.assert_array_equal(served, again.references.served[key])


@pytest.mark.parametrize("own", [("q_fedavg",), ("q_fedavg", "fedavg"), METHODS])
def test_methods_of_two_benchmarks_have_the_results_of_one(finished, copy_of, own):
    """Also shares of clients worse off than with a reference, and compute relative to FedAvg."""
    published = copy_of("published", "fedavg", "fine_tuned", "local_converged")
    mine = copy_of("mine", *own)
    found = collected.collect(mine, published / "report")
    verify_equal(found, collected.collect(finished))
    assert {"worse_than_fine_tuned", "worse_than_local_converged", "relative_compute"} <= set(
        found.runs.loc[found.runs["method"] == "q_fedavg", "measure"]
    )
    runs = found.runs[found.runs["criterion"] == "mean"]
    assert not runs.duplicated(["method", "seed", "measure"]).any()


def test_own_results_replace_published_ones(copy_of):
    published = copy_of("published", "fedavg", "q_fedavg") / "report"
    runs = pd.read_csv(published / "runs.csv")
    runs["accuracy"] = 0.123
    runs.to_csv(published / "runs.csv", index=False)
    found = collected.collect(copy_of("mine", "q_fedavg"), published).runs
    means = found[found["measure"] == "accuracy"].groupby("method")["value"].mean()
    assert means["fedavg"] == pytest.approx(0.123)
    assert means["q_fedavg"] > 0.3


def test_reasons_of_both_are_shown(copy_of):
    published, mine = copy_of("published", "fedavg"), copy_of("mine", "q_fedavg")
    for folder, reason in ((published, "first"), (mine, "second")):
        file = folder / "programs" / "groups" / "fedbn" / "failed.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"reason": reason}))
    write_tables(published)
    found = collected.collect(mine, published / "report")
    assert found.failures == ("fedbn on groups: second", "fedbn on groups: first")


def change_json(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def change_digest(folder):
    table = pd.read_csv(folder / "federations.csv")
    table.assign(data_digest="0" * 64).to_csv(folder / "federations.csv", index=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "expected the folder of a benchmark, with benchmark.json in it"),
        (
            lambda folder: change_json(folder / "benchmark.json", track="standard"),
            "expected results of the track 'embedded', got 'standard'",
        ),
        (
            lambda folder: change_json(folder / "benchmark.json", protocol="0.9"),
            "expected protocol 1.1, got 0.9",
        ),
        (change_digest, "expected results of the same examples of 'groups'; its digest differs"),
        (
            lambda folder: (folder / "runs.csv").write_text("method,seed\nfedavg,1\n"),
            "expected a table of a report (missing columns federation, model, criterion",
        ),
        (
            lambda folder: (folder / "clients.csv").unlink(),
            "expected a table of a report ([Errno 2] No such file",
        ),
        (
            lambda folder: (folder / "curves.csv").write_text(""),
            "expected a table of a report (No columns to parse",
        ),
    ],
)
def test_other_results_are_refused_in_one_line(copy_of, capsys, damage, message):
    published, mine = copy_of("published", "fedavg") / "report", copy_of("mine", "q_fedavg")
    before = (mine / "report" / "runs.csv").read_bytes()
    damage(published)
    assert main(["benchmark", "report", str(mine), "--published", str(published)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (mine / "report" / "runs.csv").read_bytes() == before


def test_a_report_with_published_methods_is_one_command(copy_of, capsys):
    published, mine = copy_of("published", "fedavg") / "report", copy_of("mine", "q_fedavg")
    assert main(["benchmark", "report", str(mine), "--published", str(published)]) == 0
    assert "index.html" in capsys.readouterr().out
    ranking = pd.read_csv(mine / "report" / "ranking.csv")
    assert set(ranking["method"]) == {"fedavg", "q_fedavg"}
