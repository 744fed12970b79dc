"""Sweeps on the command line."""

import csv
import io

import numpy as np
import pytest
import xarray as xr
from small_run import SMALL

from fedjax_fair import results
from fedjax_fair.analysis import front, front_table
from fedjax_fair.app.cli import main
from fedjax_fair.app.commands import options, training
from fedjax_fair.app.run_groups import plan_sweep
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.request import request
from fedjax_fair.app.terminal.console import format_results
from fedjax_fair.app.terminal.termination import Terminated
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results.formats import format_mean
from fedjax_fair.results.tables import final_tables

SHOWN = [getattr(ACCURACY, name) for name in ("mean", "worst", "spread", "dissimilarity")]

pytestmark = pytest.mark.usefixtures("wide_terminal")


def test_an_unfinished_sweep_says_how_to_continue(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="the same `fedjax-fair sweep` command continues it"):
        results.open(tmp_path)


def test_the_configurations_of_a_sweep_are_compared(tmp_path, capsys, without_figures):
    command = ["sweep", "prox=0,0.1", *SMALL, "--methods=fedprox"]
    assert main([*command, "--output", str(tmp_path)]) == 0
    assert main([*command, "--output", str(tmp_path), "--solver.batch-size=5"]) == 0
    folder, _ = tmp_path.iterdir()  # Other settings have another folder.
    capsys.readouterr()
    assert main(["compare", str(folder), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["method"] for row in rows} == {"fedprox, prox=0", "fedprox, prox=0.1"}
    dataset = results.open(folder)
    compared = results.compare(dataset, "accuracy_mean_clients")
    finals = dataset["accuracy_mean_clients"].isel(algorithm=0, round=-1).mean("seed")
    assert compared["difference"].item() == pytest.approx(float(finals[1] - finals[0]))


def test_sigterm_prints_how_to_continue_a_sweep(monkeypatch, capsys, tmp_path):
    def end(*arguments, **settings):
        raise Terminated

    monkeypatch.setattr(training, "sweep", end)
    assert main(["sweep", "digits", "lam=0,0.5", *SMALL, "--output", str(tmp_path)]) == 143
    assert capsys.readouterr().err == "fedjax-fair: terminated; the same command continues\n"


def test_sweep_runs_every_configuration_and_ranks_them(tmp_path, capsys):
    command = ["sweep", "digits", "lam=0,0.5", "seeds=3:5", "learning_rate=0.01,0.1"]
    command += [*SMALL[:5], "--methods", "subtrunc,fedavg", "--output", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    dataset = results.open(folder)
    assert dict(dataset["accuracy_mean_clients"].sizes) == {
        "algorithm": 2, "lam": 2, "learning_rate": 2, "seed": 2, "round": 3,
    }  # fmt: skip
    assert dataset["seed"].values.tolist() == [3, 4]
    rows = [line for line in shown.splitlines() if "learning_rate=" in line]
    level = dataset["accuracy_mean_clients"]
    methods = ("subtrunc", "fedavg")
    is_unused = [np.array_equal(*level.sel(algorithm=name).values) for name in methods]
    assert is_unused[1]  # FedAvg does not read the weight of a bonus.
    assert len(rows) == sum(2 if unused else 4 for unused in is_unused)
    assert f"The best {len(rows)} of {len(rows)} configurations" in shown
    page = (folder / "report.html").read_text("utf8")
    assert "What is the effect of each setting?" in page
    assert "fedavg, learning_rate=0.1" in page  # Which does not read the other setting.
    found = front_table(front(dataset))
    assert found.title in page
    assert found.rows[0][1] in page[page.index(found.title) :]
    validation = dataset["validation_accuracy_mean_clients"].isel(round=-1)
    best = validation.stack(configuration=("algorithm", "lam", "learning_rate"))
    best = best.isel(configuration=int(best.mean("seed").argmax("configuration")))
    (table,) = final_tables(dataset)
    assert table.rows[0][1] == format_mean(100 * best.values)
    assert format_results(table) in shown
    assert main(command) == 0  # Nothing is run again.
    again = capsys.readouterr().out
    assert "MiB" not in again
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out in again


def sweep_of(**accuracies):
    """Results over three configurations with these accuracies."""
    shape = ("algorithm", "lam", "seed", "round")
    columns = {
        name: (shape, np.reshape(accuracies.get(name, [0.1, 0.2, 0.3]), (1, 3, 1, 1)))
        for name in [*SHOWN, *accuracies]
    }
    labels = {"algorithm": ["subtrunc"], "lam": [0.5, 1.5, 2.5], "seed": [0], "round": [4]}
    return xr.Dataset(columns, labels, {"data": "made"})


def shown_configurations(dataset):
    (table,) = final_tables(dataset)
    return [row[0] for row in table.rows], table.note


def test_a_sweep_is_ranked_by_validation_only():
    test = {"accuracy_mean_clients": [0.9, 0.8, 0.7]}
    held = {"validation_accuracy_mean_clients": [0.5, 0.7, 0.6]}
    configurations, caption = shown_configurations(sweep_of(**test, **held))
    assert configurations == [f"subtrunc, lam={lam}" for lam in (1.5, 2.5, 0.5)]
    assert "ranked by validation" in caption
    configurations, caption = shown_configurations(sweep_of(accuracy_mean_clients=[0.7, 0.9, 0.8]))
    assert configurations == [f"subtrunc, lam={lam}" for lam in (0.5, 1.5, 2.5)]
    assert "not ranked: no validation" in caption


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lamda=1"], "lamda"),
        (["lam=much"], "lam"),
        (["lam="], "lam"),
        (["lam=0.1,0.1"], "different"),
        (["seeds=1,1"], "seeds"),
        (["training.seeds=1,2"], "training.seeds"),
        (["prox=-1"], "prox=-1.0"),
        (["lam=1", "--runs-per-batch=0"], "runs_per_batch=0"),
        (
            ["prox=1", "--data.validation-fraction=1"],
            "data.validation_fraction=1.0: expected a number in [0, 1)",
        ),
        (
            ["prox=1", "--data.validation-fraction=0.001"],
            "validation_fraction=0.001: expected a larger fraction",
        ),
        (
            ["prox=1", "--data.unseen-fraction=0.2"],
            "data.unseen_fraction=0.2: expected 0 in a sweep",
        ),
        (
            ["prox=0,1", "--solver.prox=5"],
            "--solver.prox has no effect, because prox is varied; remove it.",
        ),
        (
            ["seeds=0:3", "prox=0,1"],
            "--training.seeds has no effect, because seeds is varied; remove it.",
        ),
    ],
)
def test_mistakes_in_a_sweep_end_in_one_line(words, message, tmp_path, capsys):
    assert main(["sweep", *words, *SMALL, "--output", str(tmp_path / "new")]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint
    assert not (tmp_path / "new").exists()


def test_sweeps_have_a_folder_of_their_own():
    assert request(options.Sweep, ["digits"]).options.output == "sweeps"
    assert request(options.Sweep, ["--output", "x"]).options.output == "x"
    assert request(options.Run, ["digits"]).options.output == "runs"


@pytest.mark.parametrize("method", ["fedprox", "fedprox:prox=0.5"])
def test_local_steps_replace_the_default_epochs(method):
    config, _, groups = plan_sweep(Config(methods=(method,)), {"steps": (2, 3)})
    assert (config.solver.steps, config.solver.epochs) == (None, 5)
    made = [round.solver for group in groups for round in group.rounds.values()]
    assert [(solver.steps, solver.epochs) for solver in made] == [(2, None), (3, None)]


def test_steps_and_epochs_are_not_varied_together():
    with pytest.raises(ValueError, match=r"expected exactly one of steps=2 and epochs=1\."):
        plan_sweep(Config(methods=("fedprox",)), {"steps": (2, 3), "epochs": (1, 2)})
