"""Results of a benchmark as tables: in files, and joined with those of another one."""

import hashlib
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import short_track
from short_track import write_tables

from experiments.benchmark_page import page as benchmark_page
from fedjax_fair.app.cli import main
from fedjax_fair.benchmark import collected, entry, published, report, runner
from fedjax_fair.benchmark.collected import Collected
from fedjax_fair.benchmark.protocol import MEGABYTES

pytestmark = pytest.mark.integration

METHODS = ("fedavg", "fine_tuned", "q_fedavg", "local_converged")
TABLES = tuple(published._COLUMNS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A benchmark of one short federated dataset, with the tables of its report."""
    folder = tmp_path_factory.mktemp("benchmark") / "embedded"
    with short_track.finished(folder, short_track.make_track(METHODS)):
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


def join(mine, others):
    return collected.collect(mine, published.read(others / "report", "embedded"))


def in_order(runs):
    keys = [*published._RUN[:5], "measure"]
    return runs.sort_values(keys, ignore_index=True)


def verify_equal(found: Collected, expected: Collected):
    """Asserts equal tables: exactly, except for the digits of curves and constants."""
    exact = {"check_dtype": False, "check_exact": True}
    rounded = {"check_dtype": False, "rtol": 1e-6}
    for name in TABLES:
        one, other = (pd.DataFrame(getattr(each, name)) for each in (found, expected))
        if name == "runs":
            one, other = in_order(one), in_order(other)
        if name == "pool_errors":  # By criterion or by method.
            keys = list(published._COLUMNS[name][:4])
            other = other.merge(one[keys])  # Without those of methods apart from FedAvg.
            one, other = (table.sort_values(keys, ignore_index=True) for table in (one, other))
        if name == "cells":
            columns = [c for c in one if c.startswith(("test.", "validation."))] + ["seed"]
            one, other = one[columns], other[columns]
        kind = exact if name in ("runs", "clients", "losses", "settings", "methods") else rounded
        pd.testing.assert_frame_equal(one, other, **kind)
    pd.testing.assert_frame_equal(
        *(in_order(each.all_runs) for each in (found, expected)),
        **exact,
    )


def test_tables_are_read_as_they_were_written(finished):
    whole = collected.collect(finished)
    again = published.read(finished / "report", "embedded")
    verify_equal(again, whole)
    assert len(again.pool_errors) == len(whole.pool_errors) > 0
    assert again.environments == whole.environments
    assert again.constants == pytest.approx(whole.constants)
    pages = [report.contents(each) for each in (again, whole)]
    for name in ("results", "ranking", "differences", "curves"):
        frames = [getattr(page, name) for page in pages]
        pd.testing.assert_frame_equal(*frames, check_dtype=False, rtol=1e-6)


@pytest.mark.parametrize("own", [("q_fedavg",), ("q_fedavg", "fedavg"), METHODS])
def test_methods_of_two_benchmarks_have_the_results_of_one(finished, copy_of, own):
    """Also shares of clients worse off than with a reference, loss gaps and relative compute."""
    found = join(
        copy_of("mine", *own), copy_of("others", "fedavg", "fine_tuned", "local_converged")
    )
    whole = collected.collect(finished)
    verify_equal(found, whole)
    assert len(found.pool_errors) == len(whole.pool_errors) > 0
    of_method = found.all_runs[found.all_runs["method"] == "q_fedavg"]
    relative = {"worse_than_fine_tuned", "worse_than_local_converged", "relative_compute"}
    relative |= {"loss_gap_maximum", "loss_gap_standard_deviation"}
    assert relative <= set(of_method["measure"])


def without_megabytes(found):
    """Without results at equal megabytes, which need those of FedAvg in the same report."""
    return found._replace(runs=found.runs[found.runs["criterion"] != MEGABYTES])


def test_published_methods_are_compared_with_references_of_the_folder(finished, copy_of):
    others = copy_of("others", "q_fedavg")
    alone = published.read(others / "report", "embedded").all_runs
    assert not alone["measure"].str.startswith(("worse_than", "loss_gap")).any()
    assert not (alone["measure"] == "relative_compute").any()
    found = join(copy_of("mine", "fedavg", "fine_tuned", "local_converged"), others)
    verify_equal(found, without_megabytes(collected.collect(finished)))


def test_reports_without_losses_of_clients_and_answers_are_joined(finished, copy_of):
    """Those that were published before have no loss gaps."""
    others = copy_of("others", "q_fedavg") / "report"
    description = others / "benchmark.json"
    described = json.loads(description.read_text("utf8"))
    for name in ("losses", "answers"):
        (others / f"{name}.csv").unlink()
        del described["digests"][name]
    description.write_text(json.dumps(described), "utf8")
    found = join(copy_of("mine", "fedavg", "fine_tuned", "local_converged"), others.parent)
    whole = without_megabytes(collected.collect(finished)).all_runs
    is_lost = whole["measure"].str.startswith("loss_gap") & (whole["method"] == "q_fedavg")
    assert is_lost.any()
    pd.testing.assert_frame_equal(
        in_order(found.all_runs), in_order(whole[~is_lost]), check_exact=True
    )


def test_equal_runs_of_two_benchmarks_have_no_difference(finished):
    """Rounding in files would give tiny ones, which t tests find significant."""
    whole = collected.collect(finished)
    again = published.read(finished / "report", "embedded")
    both = pd.concat([again.runs, whole.runs.assign(method=whole.runs["method"] + "_again")])
    values = both.pivot_table("value", ["criterion", "seed", "measure"], "method")
    for method in METHODS:
        assert (values[method] == values[f"{method}_again"]).sum() > 50
        assert not (values[method] != values[f"{method}_again"])[values[method].notna()].any()


def test_own_results_replace_published_ones(copy_of):
    others = copy_of("others", "fedavg", "q_fedavg")
    change(others, "runs", lambda table: table.assign(accuracy=0.123))
    found = join(copy_of("mine", "q_fedavg"), others).runs
    means = found[found["measure"] == "accuracy"].groupby("method")["value"].mean()
    assert means["fedavg"] == pytest.approx(0.123)
    assert means["q_fedavg"] > 0.3


def test_methods_of_a_file_replace_published_ones_on_all_datasets(copy_of):
    """The same name may be of other code."""
    others, mine = (
        copy_of("others", "fedavg", "q_fedavg"),
        collected.collect(copy_of("mine", "q_fedavg")),
    )
    known = published.read(others / "report", "embedded")
    renamed = {
        name: getattr(known, name).assign(federation="digits") for name in collected._BY_UNIT
    }
    renamed["federations"] = known.federations.assign(federation="digits")
    elsewhere = known._replace(**renamed)
    assert set(collected._join(mine, elsewhere).settings["federation"]) == {"groups", "digits"}
    mine = mine._replace(methods=mine.methods.assign(file="q.py"))
    found = collected._join(mine, elsewhere)
    assert set(zip(found.settings["federation"], found.settings["method"], strict=True)) == {
        ("groups", "q_fedavg"),
        ("digits", "fedavg"),
    }
    assert found.federations["federation"].tolist() == ["digits", "groups"]


def test_unseen_clients_are_counted_also_without_a_global_model(copy_of):
    others, mine = copy_of("others", "fedavg"), copy_of("mine", "local_converged")
    (expected,) = collected.collect(others).federations["unseen_clients"]
    assert expected > 0
    for found in (collected.collect(mine), join(mine, others), join(others, mine)):
        assert found.federations["unseen_clients"].tolist() == [expected]


def test_missing_values_stay_missing(finished):
    """Of one block, by five criteria; a measure that a method lacks has no rows."""
    whole = collected.collect(finished)
    runs = whole.runs.copy()
    is_one = (runs["method"] == "fedavg") & (runs["seed"] == 1201) & (runs["measure"] == "loss")
    runs.loc[is_one, "value"] = np.nan
    folder = finished.parent / "missing"
    published.write(whole._replace(runs=runs), folder)
    again = published.read(folder, "embedded").runs
    assert is_one.sum() == 5
    assert again["value"].isna().sum() == runs["value"].isna().sum()
    assert len(again) == len(runs)


def test_tuning_runs_of_an_unfinished_method_are_counted_once(finished, copy_of):
    mine = copy_of("mine", "fedavg", "q_fedavg")
    for file in (mine / "programs" / "groups" / "q_fedavg").glob("final*"):
        file.unlink()
    found = join(mine, finished)
    assert len(found.cells) == len(collected.collect(finished).cells)
    write_tables(mine)
    again = published.read(mine / "report", "embedded")
    assert "q_fedavg" in set(again.cells["method"]) - set(again.runs["method"])


def test_reasons_are_those_of_units_without_results(copy_of):
    others, mine = copy_of("others", "fedavg"), copy_of("mine", "q_fedavg")
    for folder, method, reason in (
        (others, "fedbn", "first"),
        (mine, "fedbn", "second"),
        (others, "q_fedavg", "third"),
        (mine, "fedavg", "fourth"),
    ):
        file = folder / "programs" / "groups" / method / "failed.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"reason": reason}))
    write_tables(others)
    found = join(mine, others)
    assert found.failures == [["groups", "fedbn", "second"]]
    assert benchmark_page.describe(found).failures == ("fedbn on groups: second",)


def test_versions_of_both_are_shown(copy_of):
    others, mine = copy_of("others", "fedavg"), copy_of("mine", "q_fedavg")
    assert len(join(mine, others).environments) == 1
    described = json.loads((others / "report" / "benchmark.json").read_text())
    described["environments"][0]["device"] = "another device"
    (others / "report" / "benchmark.json").write_text(json.dumps(described))
    shown = benchmark_page.describe(join(mine, others)).environment
    assert shown["2"]["device"] == "another device"
    assert shown["1"]["device"] != "another device"


def change(folder, name, function):
    """Changes a table of a report, and its digest."""
    file = folder / "report" / f"{name}.csv"
    function(pd.read_csv(file, dtype={"protocol": str})).to_csv(file, index=False)
    digests = json.loads((folder / "report" / "benchmark.json").read_text())["digests"]
    digests[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    change_json(folder, digests=digests)


def change_json(folder, **values):
    file = folder / "report" / "benchmark.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: shutil.rmtree(folder / "report"),
            "expected the folder of a report, with benchmark.json",
        ),
        (
            lambda folder: change_json(folder, track="standard"),
            "expected results of the track 'embedded', got 'standard'",
        ),
        (
            lambda folder: change_json(folder, protocol="0.9"),
            "expected results of the protocol '2.0', got '0.9'",
        ),
        (lambda folder: change_json(folder, failures=None), "expected the folder of a report"),
        (
            lambda folder: change(
                folder, "federations", lambda table: table.assign(data_digest="0" * 64)
            ),
            "expected results on the same examples of 'groups'; their SHA-256 is 0000",
        ),
        (
            lambda folder: change(
                folder, "cells", lambda table: table.assign(partition_digest="0" * 64)
            ),
            "expected the same partition of 'groups' with seed",
        ),
        (
            lambda folder: (folder / "report" / "runs.csv").write_text("method,seed\nfedavg,1\n"),
            "expected a table of a report (missing columns federation, model, criterion",
        ),
        (
            lambda folder: change(folder, "runs", lambda table: table.assign(note="text")),
            "expected a table of a report (could not convert string to float: 'text'",
        ),
        (
            lambda folder: (folder / "report" / "clients.csv").unlink(),
            "expected a table of a report ([Errno 2] No such file",
        ),
        (
            lambda folder: (folder / "report" / "curves.csv").write_text(""),
            "expected a table of a report (No columns to parse",
        ),
        (
            lambda folder: change(folder, "settings", lambda table: table[:0]),
            "expected fedavg on groups in runs.csv and in settings.csv",
        ),
        (
            lambda folder: change(folder, "methods", lambda table: table[:0]),
            "expected fedavg in methods.csv",
        ),
    ],
)
def test_other_results_are_refused_in_one_line(copy_of, capsys, damage, message):
    others, mine = copy_of("others", "fedavg"), copy_of("mine", "q_fedavg")
    before = (mine / "report" / "runs.csv").read_bytes()
    damage(others)
    arguments = ["benchmark", "report", str(mine), "--published", str(others / "report")]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "published" in error
    assert error.count("\n") == 1
    assert (mine / "report" / "runs.csv").read_bytes() == before


def test_other_data_are_noticed_before_any_run(finished):
    known = published.read(finished / "report", "embedded")
    known = known._replace(federations=known.federations.assign(data_digest="0" * 64))
    planned = runner.plan("embedded", finished.parent / "new", ["fedavg"], ["groups"])
    with pytest.raises(ValueError, match="same examples of 'groups'"):
        entry.check(planned, published=known)


def test_a_report_with_published_methods_is_one_command(copy_of, capsys):
    others, mine = copy_of("others", "fedavg"), copy_of("mine", "q_fedavg")
    assert main(["benchmark", "report", str(mine), "--published", str(others)]) == 2
    assert f"'{others / 'report'}' is one" in capsys.readouterr().err
    assert main(["benchmark", "report", str(mine), "--published", str(others / "report")]) == 0
    assert "report" in capsys.readouterr().out
    compared = pd.read_csv(mine / "report" / "differences.csv")
    assert set(compared["method"]) == {"q_fedavg"}


def test_without_the_baseline_nothing_is_compared(copy_of):
    contents = report.contents(collected.collect(copy_of("mine", "q_fedavg", "fine_tuned")))
    assert contents.differences.empty


def test_kinds_are_those_of_the_registry():
    names = ("divfl:gradients=stale", "divfl+equitable", "fine_tuned", "mine")
    kinds = [collected._kind(name) for name in names]
    assert kinds == ["selection", "combination", "reference", "plugin"]
