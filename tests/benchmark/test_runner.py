"""Runs of the benchmark: tuning, final runs, cells, resumption, measures, export and report."""

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
import short_track
import xarray as xr

from experiments.reliability.disks import REASON, full_disk
from fedjax_fair import results
from fedjax_fair.app.cli import main
from fedjax_fair.benchmark import (
    collected,
    costs,
    entry,
    export,
    federations,
    measures,
    protocol,
    report,
    run_cells,
    runner,
    unit,
)
from fedjax_fair.results.files import locked
from fedjax_fair.training import executable_cache
from fedjax_fair.utils.warning import warn

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def small():
    """The short track."""
    with pytest.MonkeyPatch.context() as patch:
        short_track.shorten(patch)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("benchmark") / "embedded", []
    with short_track.finished(folder, short_track.make_track(), lines.append):
        return folder, lines


def test_warnings_name_the_method(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_unit", lambda *_: warn("a sign of bad learning."))
    with pytest.warns(UserWarning, match="sign") as found:
        runner.run(runner.plan("embedded", tmp_path, ["fedavg", "fedprox"], ["groups"]), tmp_path)
    assert {str(each.message) for each in found} == {
        f"{method} on groups: a sign of bad learning." for method in ("fedavg", "fedprox")
    }


def test_units_are_tuned_and_run(finished):
    folder, lines = finished
    found = run_cells.read(folder / "cells.jsonl")
    done = [cell for cell in found if cell["method"] == "fedavg"]
    of_phase = {
        phase: [cell for cell in done if cell["phase"] == phase]
        for phase in ("range", "tuning", "final")
    }
    assert [cell["seed"] for cell in of_phase["range"]] == [1000] * 3
    windows = {cell["window"] for cell in of_phase["tuning"]}
    assert windows == set(range(len(windows)))
    assert len(of_phase["tuning"]) == 3 * protocol.SETTINGS * len(windows)
    assert {cell["seed"] - 1300 == cell["block"] for cell in of_phase["tuning"]} == {True}
    assert {cell["seed"] - 1200 == cell["block"] for cell in of_phase["final"]} == {True}
    assert {cell["block"] for cell in of_phase["final"]} == {0, 1, 2}
    names = {name for cell in of_phase["final"] for name in cell["criterion"]}
    assert names == set(protocol.CRITERIA)
    assert all("test" not in cell for cell in done if cell["phase"] != "final")
    # Step sizes of all magnitudes are tried, and diverged ones are not chosen.
    assert {cell["status"] for cell in done} == {"ok", "diverged"}
    assert {cell["status"] for cell in of_phase["final"]} == {"ok"}
    tuned = {json.dumps(c["settings"]) for c in of_phase["tuning"] if c["window"] == 0}
    assert len(tuned) == 3 * protocol.SETTINGS
    assert any("fedbn: " in line and "batch normalization" in line for line in lines)
    failed = json.loads((folder / "programs" / "groups" / "fedbn" / "failed.json").read_text())
    assert "batch normalization" in failed["reason"]


def test_each_block_chooses_among_its_own_settings_on_validation_examples(finished):
    folder, _ = finished
    cells = [c for c in run_cells.read(folder / "cells.jsonl") if c["method"] == "fedavg"]
    last = max(cell["window"] for cell in cells)
    for block in range(3):
        own = [c for c in cells if c["block"] == block and c["window"] == last]
        tuned = [cell for cell in own if cell["phase"] == "tuning"]
        best = max(tuned, key=lambda cell: cell["validation"]["accuracy"])
        (final,) = [c for c in own if c["phase"] == "final" and "mean" in c["criterion"]]
        assert final["settings"] == best["settings"]


def test_the_window_is_around_the_best_step_size(finished):
    folder, _ = finished
    cells = [c for c in run_cells.read(folder / "cells.jsonl") if c["method"] == "fedavg"]
    tried = [cell for cell in cells if cell["phase"] == "range"]
    best = max(tried, key=lambda cell: cell["validation"]["accuracy"])["settings"]["learning_rate"]
    rates = [
        cell["settings"]["learning_rate"]
        for cell in cells
        if cell["phase"] == "tuning" and cell["window"] == 0
    ]
    assert best / 10 < min(rates) < best / 5
    assert 5 * best < max(rates) < 10 * best


def test_a_window_moves_where_blocks_choose_its_limit(finished):
    """With four rounds of training, the largest step sizes are best."""
    cells = [c for c in run_cells.read(finished[0] / "cells.jsonl") if c["method"] == "fedavg"]
    windows = {}
    for cell in cells:
        if cell["phase"] == "tuning":
            windows.setdefault(cell["window"], []).append(cell)
    assert len(windows) > 1
    for number, of_window in windows.items():
        rates = [cell["settings"]["learning_rate"] for cell in of_window]
        chosen = [
            max(
                (cell for cell in of_window if cell["block"] == block),
                key=lambda cell: cell["validation"]["accuracy"],
            )["settings"]["learning_rate"]
            for block in range(3)
        ]
        # A third of three blocks is one; eighths of two decades.
        low, high = min(rates) * 10**0.2, max(rates) / 10**0.2
        is_at_limit = any(rate < low or rate > high for rate in chosen)
        assert is_at_limit == (number < len(windows) - 1) or number == 2


def test_no_seed_of_earlier_versions_is_used():
    for track in protocol.TRACKS.values():
        seeds = [seed for of_phase in track.seeds.values() for seed in of_phase]
        assert len(seeds) == len(set(seeds))
        for used in protocol.USED_SEEDS.values():
            assert not set(seeds) & set(used)


def test_final_runs_are_equal_with_fewer_clients_at_a_time(finished, tmp_path, monkeypatch):
    whole = federations.FEDERATIONS["groups"]
    training = replace(whole.config.training, clients_per_batch=2)
    config = replace(whole.config, training=training)
    monkeypatch.setitem(federations.FEDERATIONS, "groups", whole._replace(config=config))
    runner.run(runner.plan("embedded", tmp_path, ["fedavg"]), tmp_path)
    one, other = (
        results.open(each / "programs" / "groups" / "fedavg" / "final.nc")
        for each in (finished[0], tmp_path)
    )
    assert one.attrs["chosen"] == other.attrs["chosen"]
    np.testing.assert_allclose(one["test_loss"], other["test_loss"], rtol=1e-4)


def test_measures_equal_those_of_the_client_accuracies(finished):
    folder, _ = finished
    found = list(measures.finals(folder))
    table = collected.collect(folder).all_runs
    table = table.set_index(["method", "criterion", "measure", "seed"])["value"]
    by_method = {final.method: final for final in found if final.criterion == "mean"}
    accuracy = by_method["fedavg"].last["test_accuracy"].sel(seed=1201).values
    local = by_method["local_converged"]
    assert (by_method["fedavg"].model, local.model) == ("global", "personalized")
    assert table["fedavg", "mean", "accuracy", 1201] == pytest.approx(np.nanmean(accuracy))
    assert table["fedavg", "mean", "standard_deviation", 1201] == pytest.approx(
        np.nanstd(accuracy), rel=1e-5
    )
    other = local.last["test_accuracy"].sel(seed=1201).values
    share = np.mean((accuracy < other)[~np.isnan(accuracy)])
    assert table["fedavg", "mean", "worse_than_local_converged", 1201] == pytest.approx(share)
    assert ("local_converged", "mean", "worse_than_local_converged", 1201) not in table
    losses = (each.last["test_loss"].sel(seed=1201) for each in (by_method["fedavg"], local))
    gaps = np.subtract(*(each.values for each in losses))
    found = table["fedavg", "mean", "loss_gap_maximum", 1201]
    assert found == pytest.approx(np.nanmax(gaps), rel=1e-6)
    found = table["fedavg", "mean", "loss_gap_standard_deviation", 1201]
    assert found == pytest.approx(np.nanstd(gaps), rel=1e-5)
    assert ("local_converged", "mean", "loss_gap_maximum", 1201) not in table
    assert ("local_converged", "mean", "unseen_accuracy", 1201) not in table
    unseen = by_method["fedavg"].last["unseen_accuracy"].sel(seed=1201).values
    assert table["fedavg", "mean", "unseen_accuracy", 1201] == pytest.approx(unseen.mean())
    assert table["fedavg", "mean", "unseen_worst_10pct", 1201] == pytest.approx(unseen.min())
    # Four rounds of six clients, each of which receives and sends a model.
    model = 2 * 16 + 16 + 16 * 2 + 2
    assert table["fedavg", "mean", "megabytes_up", 1201] == pytest.approx(4 * 6 * model * 4 / 1e6)


def test_rounds_until_the_target():
    dataset = xr.Dataset(
        {
            "accuracy_mean_clients": (("seed", "round"), [[0.1, 0.9, 0.9], [0.1, 0.2, 0.3]]),
            "bytes_up": (("seed", "round"), [[0, 1e6, 2e6]] * 2),
            "bytes_down": (("seed", "round"), [[0, 1e6, 2e6]] * 2),
        },
        {"seed": [0, 1], "round": [0, 2, 4]},
    )
    final = measures.Final(
        "groups", "fedavg", "mean", [{}, {}], np.array([4, 4]), "global", dataset, None
    )
    found = measures._communication(final)
    assert found["rounds_to_target"].tolist() == [2, 6]
    assert found["megabytes_to_target"].tolist() == [2, 6]
    assert "trained_share" not in found
    counts = {"trained_parameters": ("seed", [1, 1]), "frozen_parameters": ("seed", [3, 3])}
    found = measures._communication(final._replace(dataset=dataset.assign(counts)))
    assert found["trained_share"].tolist() == [0.25, 0.25]


def test_the_constant_predictor_predicts_the_most_frequent_class():
    counts = np.array([[3, 1], [1, 1], [4, 0]])
    dataset = xr.Dataset({"test_examples": (("client", "class"), counts)})
    final = measures.Final("groups", "fedavg", "mean", [], np.zeros(0), "global", dataset, None)
    found = measures.constants([final])
    assert found["groups", "accuracy"] == pytest.approx(np.mean([0.75, 0.5, 1]))
    assert found["groups", "worst_10pct"] == 0.5
    # Mean difference of two different clients, and of two any clients over twice their mean.
    assert found["groups", "dissimilarity"] == pytest.approx((0.25 + 0.25 + 0.5) / 3)
    assert found["groups", "gini"] == pytest.approx(2 * (0.25 + 0.25 + 0.5) / 9 / (2 * 0.75))


def test_finished_work_is_not_repeated_and_more_methods_are_added(finished, monkeypatch):
    folder, _ = finished
    before = (folder / "programs" / "groups" / "fedavg" / "final.nc").stat().st_mtime_ns
    lines = []
    runner.run(runner.plan("embedded", folder, ["fedavg"]), folder, show=lines.append)
    assert lines == []
    assert (folder / "programs" / "groups" / "fedavg" / "final.nc").stat().st_mtime_ns == before


def test_an_interrupted_unit_continues_with_the_same_results(finished, tmp_path):
    folder, _ = finished
    copy = tmp_path / "embedded"
    shutil.copytree(folder, copy)
    own = copy / "programs" / "groups" / "fedavg"
    for name in ("final.jsonl", "final.nc"):
        (own / name).unlink()
    runner.run(runner.plan("embedded", copy, ["fedavg"]), copy)
    continued, whole = (
        results.open(each / "programs" / "groups" / "fedavg" / "final.nc")
        for each in (copy, folder)
    )
    xr.testing.assert_identical(continued, whole)


def test_reasons_are_those_of_missing_results_by_dataset(tmp_path):
    for name, text in {"a": "x", "b": "y", "c": "x", "d": "x"}.items():
        folder = tmp_path / "programs" / "digits" / name
        folder.mkdir(parents=True)
        (folder / "failed.json").write_text(json.dumps({"reason": text}))
    (tmp_path / "programs" / "digits" / "d" / "final.jsonl").touch()
    (tmp_path / "programs" / "digits" / "b" / "failed.json").write_text("{")
    assert runner.failures(runner.failed_units(tmp_path)) == [
        "a, c on digits: x",
        "b on digits: failed.json is damaged",
    ]


def test_results_of_other_data_are_not_continued(finished, tmp_path, monkeypatch):
    copy = tmp_path / "embedded"
    shutil.copytree(finished[0], copy)
    (copy / "programs" / "groups" / "fedavg" / "final.jsonl").unlink()
    short = federations.FEDERATIONS["groups"]
    other = short.pool(None)
    other = other._replace(features=other.features + 1)
    monkeypatch.setitem(federations.FEDERATIONS, "groups", short._replace(pool=lambda _: other))
    lines = []
    runner.run(runner.plan("embedded", copy, ["fedavg"]), copy, show=lines.append)
    assert "range.nc': expected results of the same data" in lines[0]


def test_shards_divide_the_units(tmp_path):
    every = runner.plan("embedded", tmp_path).units
    parts = [runner.plan("embedded", tmp_path, shard=(i, 3)).units for i in (1, 2, 3)]
    assert sorted(unit.method for part in parts for unit in part) == sorted(short_track.METHODS)
    assert len(every) == sum(map(len, parts))


def test_compiled_functions_are_released_after_some_units(tmp_path, monkeypatch):
    """Otherwise a long track ends at the limit of memory mappings."""
    seen = []

    def compile_one(unit, *_):
        executable_cache.call(jax.jit(lambda x: x + len(unit.method)), 1.0)
        seen.append(len(executable_cache._by_text))

    monkeypatch.setattr(runner, "run_unit", compile_one)
    monkeypatch.setattr(runner, "_MAX_THREADS", 1)
    monkeypatch.setattr(runner, "_MAX_UNITS", 2)
    executable_cache.clear()
    runner.run(runner.plan("embedded", tmp_path, ["fedavg", "scaffold", "median"]), tmp_path)
    assert seen == [1, 2, 1]


def test_a_unit_of_another_process_is_left_alone(finished, tmp_path):
    lines = []
    planned = runner.plan("embedded", tmp_path, ["fedavg"])
    planned.units[0].folder.mkdir(parents=True)
    with locked(planned.units[0].folder):
        runner.run(planned, tmp_path, show=lines.append)
    assert "used by another process" in lines[0]
    assert not unit.is_done(planned.units[0])


def test_nothing_is_lost_on_a_full_disk(finished, tmp_path):
    folder = tmp_path / "embedded"
    shutil.copytree(finished[0], folder)
    shutil.rmtree(folder / "programs" / "groups" / "fedavg")
    done = (folder / "programs" / "groups" / "fine_tuned" / "final.nc").read_bytes()
    planned = runner.plan("embedded", folder, ["fine_tuned", "fedavg"])
    with full_disk(8192), pytest.raises(OSError, match=rf"{REASON}: .*fedavg.range.00\.nc'"):
        runner.run(planned, folder)
    assert (folder / "programs" / "groups" / "fine_tuned" / "final.nc").read_bytes() == done
    assert [unit.is_done(each) for each in planned.units] == [True, False]
    runner.run(planned, folder)
    results_of = [
        results.open(each / "programs" / "groups" / "fedavg" / "final.nc")
        for each in (folder, finished[0])
    ]
    np.testing.assert_allclose(*(each["test_loss"] for each in results_of), rtol=1e-4)


def test_half_written_files_are_named_and_run_again(finished, tmp_path, capsys):
    copy = tmp_path / "embedded"
    shutil.copytree(finished[0], copy)
    own = copy / "programs" / "groups" / "fedavg"
    lines = (own / "final.jsonl").read_text()
    (own / "final.jsonl").write_text(lines[: len(lines) // 2])
    assert main(["benchmark", "report", str(copy)]) == 2
    error = capsys.readouterr().err
    assert "fedavg/final.jsonl': line" in error
    assert "delete the file to run it again" in error
    assert error.count("\n") == 1
    (own / "final.jsonl").unlink()
    (own / "tuning-0.nc").write_bytes((own / "tuning-0.nc").read_bytes()[:-100])
    shown = []
    runner.run(runner.plan("embedded", copy, ["fedavg"]), copy, show=shown.append)
    assert "tuning-0.nc': expected undamaged results" in shown[0]
    for file in own.glob("*.jsonl"):
        file.unlink()
    runner.run(runner.plan("embedded", copy, ["fedavg"]), copy)
    assert (own / "final.jsonl").read_text() == lines
    assert runner.failures(runner.failed_units(copy)) == runner.failures(
        runner.failed_units(finished[0])
    )


def test_missing_data_is_shown_once_and_the_rest_continues(finished, tmp_path, monkeypatch):
    def missing(data_dir):
        raise FileNotFoundError(f"'adult' is not in {data_dir}")

    adult = federations.FEDERATIONS["adult"]._replace(pool=missing)
    monkeypatch.setitem(federations.FEDERATIONS, "adult", adult)
    track = protocol.TRACKS["embedded"]._replace(federations=("adult", "groups"))
    monkeypatch.setitem(protocol.TRACKS, "embedded", track)
    shutil.copytree(finished[0], tmp_path / "embedded")
    shown = []
    planned = runner.plan("embedded", tmp_path / "embedded", ["fedavg", "fine_tuned"])
    runner.run(planned, tmp_path / "embedded", "nowhere", show=shown.append)
    assert shown == ["2/2 adult: 'adult' is not in nowhere (0:00:00 left)"]
    reason = "fedavg, fine_tuned on adult: 'adult' is not in nowhere"
    assert reason in runner.failures(runner.failed_units(tmp_path / "embedded"))
    report.write(tmp_path / "embedded")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cell: cell | {"protocol": "0.9"}, "line 1: expected protocol 2.0, got 0.9"),
        (lambda cell: cell | {"settings": {"learning_rate": 9.0}}, "line 1: the cell was edited"),
        (lambda cell: cell | {"validation": {"accuracy": 1.0}}, "line 1: the cell was edited"),
        (lambda cell: {"protocol": protocol.VERSION}, "line 1: expected a cell; delete the file"),
    ],
)
def test_edited_cells_are_refused(finished, tmp_path, change, message):
    first = (finished[0] / "cells.jsonl").read_text().splitlines()[0]
    file = tmp_path / "cells.jsonl"
    file.write_text(json.dumps(change(json.loads(first))))
    with pytest.raises(ValueError, match=message):
        run_cells.read(file)


def test_results_of_another_protocol_or_damaged_ones_are_refused(finished, tmp_path):
    copy = tmp_path / "embedded"
    shutil.copytree(finished[0], copy)
    described = json.loads((copy / "benchmark.json").read_text())
    (copy / "benchmark.json").write_text(json.dumps(described | {"protocol": "0.9"}))
    with pytest.raises(ValueError, match=r"expected protocol 2.0, got 0.9; use another folder"):
        runner.run(runner.plan("embedded", copy), copy)
    (copy / "benchmark.json").write_text(json.dumps(described | {"track": "standard"}))
    with pytest.raises(ValueError, match=r"expected a benchmark of the track 'embedded', not"):
        runner.run(runner.plan("embedded", copy), copy)
    (copy / "benchmark.json").write_text("{")
    with pytest.raises(ValueError, match=r"expected undamaged JSON"):
        report.write(copy)
    (copy / "benchmark.json").write_text(json.dumps(described))
    file = copy / "programs" / "groups" / "fedavg" / "final.nc"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"final.nc'.*changed since it was written"):
        report.write(copy)


def test_the_report_is_written_from_files(finished):
    made = report.write(finished[0])
    text = (made / "results.md").read_text()
    assert all(name in text for name in ("fedavg", "fine_tuned", "local_converged"))
    assert {"cells.csv", "results.csv", "ranking.csv", "report.md", "figures"} <= {
        path.name for path in made.iterdir()
    }


def test_exported_columns_are_those_of_benchopt(finished):
    """Those that its plots of curves and its box plots read, and the names of its parameters."""
    import pandas as pd
    import pyarrow.parquet

    table = pd.read_csv(export.write(finished[0], "csv"))
    file = export.write(finished[0], "parquet")
    names = ["objective_name", "dataset_name", "solver_name"]
    objectives = [f"objective_{name}" for name in ("accuracy", "worst_10pct", "loss")]
    types = {field.name: str(field.type) for field in pyarrow.parquet.read_schema(file)}
    assert {types[name] for name in names} <= {"string", "large_string"}
    assert types["idx_rep"] == types["stop_val"] == "int64"
    numeric = {types[name] for name in ("time", "p_solver_learning_rate", *objectives)}
    assert numeric <= {"double", "float"}
    assert types["objective_standard_deviation"] in ("double", "float")
    assert set(types) == set(table)
    pd.testing.assert_frame_equal(pd.read_parquet(file), table, check_dtype=False, rtol=1e-5)
    assert not table.duplicated([*names, "idx_rep", "stop_val"]).any()
    one = table.query(
        "solver_name == 'fedavg' and objective_name == 'tuned by mean' and idx_rep == 1200"
    )
    assert one["stop_val"].tolist() == [0, 2, 4]
    dataset = next(final for final in measures.finals(finished[0]) if final.method == "fedavg")
    expected = dataset.dataset["accuracy_mean_clients"].sel(seed=1200).values
    np.testing.assert_allclose(one["objective_accuracy"], expected, rtol=1e-5)


def test_parquet_without_pyarrow_is_one_line(finished, monkeypatch, capsys):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert main(["benchmark", "export", str(finished[0])]) == 2
    error = capsys.readouterr().err
    assert error == "fedjax-fair: format='parquet': expected the package pyarrow; csv needs none.\n"
    assert main(["benchmark", "export", str(finished[0]), "--format", "csv"]) == 0


def test_an_entry_is_one_hashed_file(finished):
    file = entry.write(finished[0], "fedavg")
    cells = [c for c in run_cells.gather(finished[0]) if c["method"] == "fedavg"]
    assert sorted(map(json.dumps, entry.read(file))) == sorted(map(json.dumps, cells))
    file.write_text(file.read_text().replace('"seed": 1200', '"seed": 1201', 1))
    with pytest.raises(ValueError, match="expected an unedited file"):
        entry.read(file)
    with pytest.raises(ValueError, match="method='ditto': expected finished runs"):
        entry.write(finished[0], "ditto")


def test_the_estimate_counts_missing_work(finished, tmp_path):
    whole = costs.estimate(runner.plan("embedded", tmp_path, ["fedavg"]))
    done = costs.estimate(runner.plan("embedded", finished[0], ["fedavg"]))
    assert [row[1] for row in whole.rows] == ["1", "1"]
    nothing = ("0.0 min", "0.0 GB")
    assert [row[1:] for row in done.rows] == [("0", "0", *nothing), ("0", "", *nothing)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["benchmark", "embeded"], "track='embeded'"),
        (["benchmark", "--methods", "fedavgg"], "did you mean 'fedavg'"),
        (["benchmark", "--methods", "fedprox:prx=1"], "prox"),
        (["benchmark", "--shard", "9/8"], "shard=9/8"),
        (["benchmark", "--shard", "third"], "shard='third'"),
        (["benchmark", "--federations", "mnist"], "federations='mnist'"),
        (["benchmark", "report", "missing"], "folder='missing'"),
        (["benchmark", "export", "missing"], "folder='missing'"),
        (["benchmark", "enter", "missing.py"], "missing.py"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "benchmarks").exists()


def test_results_are_not_overwritten_without_resume(finished, capsys):
    assert main(["benchmark", "--output", str(finished[0].parent), "--methods", "fedavg"]) == 2
    assert "--resume continues them" in capsys.readouterr().err
