"""The commands that train, show, compare and resume."""

import csv
import io
import re
import shutil

import netCDF4
import pytest
import xarray as xr
from small_run import METHODS, SMALL

from fedjax_fair import results
from fedjax_fair.app import experiment
from fedjax_fair.app.cli import main
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config, Preset, TrainingConfig
from fedjax_fair.app.terminal.console import format_results
from fedjax_fair.results.comparison import comparison_table
from fedjax_fair.results.files import locked
from fedjax_fair.results.tables import final_tables

pytestmark = pytest.mark.usefixtures("wide_terminal")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("cli") / "runs"


@pytest.fixture(scope="module")
def folder(runs):
    assert main(["run", *SMALL, "--output", str(runs)]) == 0
    (path,) = runs.iterdir()
    return path


@pytest.mark.smoke
def test_run_applies_its_options(folder):
    assert folder.name.endswith("-digits")
    dataset = results.open(folder)
    assert dict(dataset["test_accuracy"].sizes) == {
        "algorithm": 2, "seed": 2, "round": 3, "client": 10,
    }  # fmt: skip
    assert set(dataset["cohort_steps"].values.ravel()) == {2}
    assert dataset["algorithm"].values.tolist() == METHODS


def test_show_prints_the_table_of_results(folder, capsys):
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    (table,) = final_tables(results.open(folder))
    settings_line, _, rest = shown.partition("\n\n")
    assert settings_line.startswith("Settings: ")
    assert rest.strip() == format_results(table).strip()
    assert "Definitions: fedjax-fair metrics" in " ".join(shown.split())


def test_show_prints_the_evaluations_of_an_unfinished_run(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "a copy")
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:-9])
    for has_results in (True, False):  # Of the first method.
        assert main(["show", str(copy)]) == 0
        shown = capsys.readouterr().out
        assert "Evaluations so far" in shown
        assert re.search(rf"{METHODS[0]} +4 of 4 ", shown)
        assert re.search(rf"{METHODS[1]} +2 of 4 ", shown)
        assert shown.endswith(f"Unfinished: `fedjax-fair resume '{copy}'` continues.\n")
        if has_results:
            (copy / "results.nc").unlink()
    with locked(copy):
        assert main(["show", str(copy)]) == 0
    assert capsys.readouterr().out.endswith("continues in another process.\n")
    message = (
        rf"unfinished, after round 4 of '{METHODS[1]}'; `fedjax-fair resume '{copy}'` continues"
    )
    with pytest.raises(ValueError, match=message):
        results.open(copy)
    (copy / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=rf"run is unfinished; `fedjax-fair resume '{copy}'`"):
        results.open(copy)
    assert main(["show", str(copy)]) == 2
    assert f"`fedjax-fair resume '{copy}'` continues it" in capsys.readouterr().err
    with pytest.raises(ValueError, match=rf"results\.nc file, such as '{copy}'"):
        results.open(tmp_path)


def test_show_needs_neither_log_nor_configuration_of_a_finished_run(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert main(["show", str(copy)]) == 0
    table = capsys.readouterr().out
    for name in ("metrics.jsonl", "config.json"):
        (copy / name).write_text("{")
        assert main(["show", str(copy)]) == 0
        assert capsys.readouterr().out == table


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "csv"])
def test_methods_are_compared(form, folder, capsys):
    metrics = ["client_dissimilarity_class_based", "test_loss_mean_clients"]
    baseline = ["--baseline", METHODS[1]]
    command = ["compare", str(folder), "--metrics", *metrics, *baseline, "--format", form]
    assert main(command) == 0
    shown = capsys.readouterr().out
    dataset = results.open(folder)
    dataset = dataset.merge(results.class_based(dataset))
    for metric in metrics:
        compared = results.compare(dataset, metric, METHODS[1])
        if form == "terminal":
            rows = [line.split() for line in shown.splitlines()]
            cell = comparison_table(compared, 1).rows[1][1]
            assert sum(set(cell.split()) <= set(row) for row in rows) == 1
        else:
            _, _, table = results.to_text(compared, form).partition("\n")
            assert table in shown
    heads = {"terminal": " ----", "markdown": "|---|", "latex": "toprule", "csv": "metric,unit"}
    assert shown.count(heads[form]) == (1 if form == "csv" else 2)


def test_runs_are_compared_by_default_metrics(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "later")
    changed = results.open(folder)
    changed["accuracy_mean_clients"] += 0.01
    results.save(changed, copy / "results.nc")
    assert main(["compare", str(folder), str(copy), "--format", "csv", "--unpaired"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 3 * 4
    assert {row["method"] for row in rows} == {
        f"{name} ({run})" for name in METHODS for run in (folder, copy)
    }
    assert {row["metric"] for row in rows} == {
        "accuracy_mean_clients",
        "accuracy_worst_10pct_class_based",
        "client_dissimilarity_class_based",
    }


@pytest.mark.usefixtures("without_figures")
def test_resuming_a_finished_run_changes_nothing(folder, capsys):
    before = results.open(folder), (folder / "metrics.jsonl").read_text()
    assert main(["resume", str(folder)]) == 0
    assert str(folder) in capsys.readouterr().out
    assert before[0].identical(results.open(folder))
    assert before[1] == (folder / "metrics.jsonl").read_text()


def test_a_run_that_diverges_ends_in_one_line(folder, tmp_path, capsys):
    """It has the compiled functions of the other run."""
    options = ["--methods", "fedavg", "--solver.learning-rate=1e38", "--output", str(tmp_path)]
    assert main(["run", *SMALL, *options, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the update of round 0 is not finite" in line


def test_the_runs_in_a_folder_are_compared(folder, tmp_path, capsys):
    """Equal results are one method; others have a letter of their run."""
    for name in ("a", "b", "c"):
        shutil.copytree(folder, tmp_path / name)
    changed = results.open(folder).isel(algorithm=[0])
    changed["accuracy_mean_clients"] += 0.01
    results.save(changed, tmp_path / "c" / "results.nc")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text("{}")
    command = ["compare", str(tmp_path), "--metrics", "accuracy_mean_clients"]
    with pytest.warns(UserWarning, match=r": d skipped, unfinished\."):
        assert main([*command, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    first = METHODS[0]
    paths = {name: tmp_path / name for name in ("a", "c")}
    expected = [f"{first} ({paths['a']})", *METHODS[1:], f"{first} ({paths['c']})"]
    assert [row["method"] for row in rows] == expected
    shutil.rmtree(tmp_path / "d")
    assert main([*command, "--format", "markdown", "--baseline", f"{first} (C)"]) == 0
    shown = capsys.readouterr().out
    assert f"A: {paths['a']}; C: {paths['c']}." in shown
    assert f"| {first} (A) |" in shown
    assert main([*command, "--baseline", first]) == 2
    expected = f"baseline='{first}' has several results; expected '{first} (A)' or '{first} (C)'.\n"
    assert capsys.readouterr().err.endswith(expected)


def test_an_interruption_prints_how_to_continue(monkeypatch, capsys, tmp_path):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "execute", interrupt)
    assert main(["run", *SMALL, "--output", str(tmp_path)]) == 130
    (folder,) = tmp_path.iterdir()
    command = f"`fedjax-fair resume {folder}` continues"
    expected = f"fedjax-fair: interrupted; {command} {METHODS[0]} from round 0\n"
    assert capsys.readouterr().err == expected


def test_show_rejects_other_datasets(capsys, tmp_path):
    xr.Dataset({"x": ("y", [1.0])}).to_netcdf(tmp_path / "foreign.nc")
    assert main(["show", str(tmp_path / "foreign.nc")]) == 2
    assert "foreign.nc': results: expected those of a run" in capsys.readouterr().err


METRIC = "accuracy_mean_clients"
WRONG = {
    "empty": lambda found: found[[]],  # Without coordinates too.
    "no methods": lambda found: found.drop_vars("algorithm"),
    "numbers of methods": lambda found: found.assign_coords(algorithm=[1, 2]),
    "one method": lambda found: found.isel(algorithm=0),
    "no rounds": lambda found: found.isel(round=slice(0)),
    "renamed rounds": lambda found: found.rename(round="step"),
    "no clients": lambda found: found.drop_dims("client"),
    "no metric": lambda found: found.drop_vars(METRIC),
    "text": lambda found: found.assign({METRIC: found[METRIC].astype(str)}),
    "one metric": lambda found: found[[METRIC]],
}


@pytest.mark.parametrize("name", WRONG)
def test_files_of_another_structure_are_one_line(name, folder, tmp_path, capsys):
    path = tmp_path / "results.nc"
    results.save(WRONG[name](results.open(folder)), path)
    for command in (["show", path], ["compare", path], ["compare", path, folder]):
        assert main([str(word) for word in command]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("fedjax-fair: ")


EMPTY = {
    "no bytes": lambda path: path.touch(),
    "no variables": lambda path: netCDF4.Dataset(path, "w").close(),
    "an empty dataset": lambda path: results.save(xr.Dataset(), path),
    "an empty folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_files_are_one_line(name, tmp_path, capsys):
    path = tmp_path / "results.nc"
    EMPTY[name](path)
    for command in (["show", path], ["compare", path], ["compare", path, path]):
        assert main([str(word) for word in command]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("fedjax-fair: ")


@pytest.mark.parametrize(
    ("arguments", "eval_every"),
    [
        ("run digits", 10),
        ("run digits --training.rounds 10", 1),
        ("run digits --training.rounds 10 --training.eval-every 10", 10),
        ("run groups", 5),
        ("run groups --training.rounds 40", 5),
        ("run groups --training.rounds 9", 1),
        ("run equitable", 5),
        ("run seldom", 10),
        ("run seldom --training.rounds 20", 10),
        ("run seldom --training.rounds 19", 1),
        ("run seldom --config {file}", 2),
        ("run seldom --config {rounds}", 1),
        ("run --config {rounds}", 1),
    ],
)
def test_a_run_has_several_evaluations_unless_asked(
    arguments, eval_every, tmp_path, capsys, monkeypatch
):
    files = {"file": "rounds = 4\neval_every = 2", "rounds": "rounds = 4"}
    for name, settings_of_training in files.items():
        (tmp_path / f"{name}.toml").write_text(f"[training]\n{settings_of_training}\n")
    paths = {name: tmp_path / f"{name}.toml" for name in files}
    training = TrainingConfig(rounds=10, eval_every=10)
    monkeypatch.setitem(presets.PRESETS, "seldom", Preset("", Config(training=training)))
    words = arguments.format(**paths).split()
    assert main([*words, "--dry-run"]) == 0
    assert f"\neval_every = {eval_every}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["run", "--training.seeds", "3"], "3; for 3 seeds write --training.seeds 0:3\n"),
        (["run", "--training.seeds", "1000"], "for 1,000 seeds write --training.seeds 0:1000\n"),
        (["sweep", "--training.seeds=3"], "one seed, 3; for 3 seeds write --training.seeds 0:3\n"),
        (["sweep", "seeds=3"], "note: one seed, 3; for 3 seeds write seeds=0:3\n"),
        (["run", "--training.seeds", "1"], ""),
        (["run", "--training.seeds", "3", "4"], ""),
    ],
)
def test_one_seed_is_no_number_of_seeds(arguments, note, capsys):
    small = ["--methods", "fedavg", "--training.rounds", "2", "--dry-run"]
    assert main([*arguments, *small]) == 0
    printed = capsys.readouterr().err
    assert (printed.count(note) == 1) if note else (printed == "")


def test_differences_are_plotted(folder, tmp_path, capsys):
    file = tmp_path / "differences.svg"
    assert main(["compare", str(folder), "--plot", str(file)]) == 0
    assert file.read_text().startswith("<?xml")
    for bad, message in (
        (tmp_path / "differences", "expected a file name that ends with"),
        (tmp_path / "nowhere" / "a.png", "No such file"),
    ):
        capsys.readouterr()
        assert main(["compare", str(folder), "--plot", str(bad)]) == 2
        assert message in capsys.readouterr().err
