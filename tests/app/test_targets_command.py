"""Runs and sweeps of regressions and several labels on the command line."""

import json

import numpy as np
import pandas as pd
import pytest

import fedjax_fair as ff
from fedjax_fair.app.cli import main

ERROR = "mean_absolute_error"
SMALL = ["--training.rounds=2", "--training.eval-every=1", "--training.seeds", "0", "1"]


pytestmark = pytest.mark.usefixtures("wide_terminal", "without_figures")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng, number = np.random.default_rng(0), 240
    rows = pd.DataFrame({"town": np.array(list("abcdef"))[np.arange(number) % 6]})
    rows["sex"], rows["hours"] = rng.choice(["f", "m"], number), rng.integers(10, 60, number)
    rows["age"] = np.clip(rows.hours + rng.integers(10, 30, number), 17, 90)
    rows["ill"], rows["old"] = rng.integers(0, 2, number), (rows.age > 50).astype(int)
    path = tmp_path_factory.mktemp("tables") / "ages.csv"
    rows.to_csv(path, index=False)
    return path


def arguments(path, tmp_path, *more, label=("age",), command=("run",)):
    return [
        *command, "--data.file", str(path), "--data.label", *label, "--data.client", "town",
        "--output", str(tmp_path / "runs"), "--quiet", *SMALL, *more,
    ]  # fmt: skip


def run_of(tmp_path):
    (folder,) = (tmp_path / "runs").iterdir()
    return folder, ff.results.open(folder)


def test_a_label_of_many_numbers_needs_a_target(table, tmp_path, capsys):
    assert main(arguments(table, tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "label 'age'" in error
    assert "--data.target regression" in error
    assert "--data.target classification" in error
    assert main(arguments(table, tmp_path, "--data.target", "classification", "--dry-run")) == 0


def test_a_regression_has_tables_of_errors(table, tmp_path, capsys):
    methods = ["--methods", "fedavg", "q_fedavg", "ditto"]
    options = ["--data.target", "regression", "--data.sensitive-features", "sex", *methods]
    options += ["--data.unseen-fraction", "0.2"]
    assert main(arguments(table, tmp_path, *options)) == 0
    text = capsys.readouterr().out
    folder, run = run_of(tmp_path)
    for line in (
        "Mean absolute error of 5 clients (ages)",
        "Mean absolute error of 1 unseen clients (ages)",
        "Clients with the highest MAE (ages)",
        "Mean absolute error by sex (ages)",
        "In unit of age; of MAE, lower is better",
    ):
        assert line in text
    mean = run[f"{ERROR}_mean_clients"].sel(algorithm="fedavg").isel(round=-1).mean().item()
    assert f"{mean:.1f}" in text
    assert run[f"test_{ERROR}"].units == "unit of age"
    assert run.test_loss.units == "(unit of age)^2"
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out.strip() in text
    assert main(["compare", str(folder), "--baseline", "q_fedavg"]) == 0
    text = capsys.readouterr().out
    assert "Mean absolute error of test examples, mean over clients, in unit of age" in text
    assert "Lower is better." in text
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = run[f"{ERROR}_worst_10pct"].sel(algorithm="fedavg", seed=0).values
    of_fedavg = [one for one in logged if (one["algorithm"], one["seed"]) == ("fedavg", 0)]
    np.testing.assert_allclose([one[f"{ERROR}_worst_10pct"] for one in of_fedavg], values)
    fitted = ff.load_model(folder, "fedavg", seed=1)
    assert fitted.model.task == "regression"
    assert fitted.predict(np.zeros((3, 5), np.float32)).shape == (1, 3, 1)


def test_an_unfinished_regression_shows_its_errors(table, tmp_path, capsys):
    assert main(arguments(table, tmp_path, "--data.target=regression", "--methods=fedavg")) == 0
    folder, _ = run_of(tmp_path)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:-2]) + "\n")
    capsys.readouterr()
    assert main(["show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "Evaluations so far" in text
    assert "MAE" in text
    assert "1 of 2" in text
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert (folder / "metrics.jsonl").read_text().count("\n") == len(lines)


def test_several_labels_have_a_table_of_each(table, tmp_path, capsys):
    options = ["--data.target", "multi_label", "--data.exclude", "age", "--methods", "fedavg"]
    assert main(arguments(table, tmp_path, *options, label=("ill", "old"))) == 0
    text = capsys.readouterr().out
    folder, run = run_of(tmp_path)
    assert "F1 score of 6 clients (ages)" in text
    assert "Each target (ages)" in text
    assert run.output.values.tolist() == ["ill", "old"]
    assert ff.load_model(folder, "fedavg").model.task == "multi_label"


@pytest.mark.parametrize(
    ("names", "options", "primary"),
    [
        (["r2"], ["--data.target=regression"], "r2"),
        (["macro_f1", "auc"], ["--data.target=classification"], "macro_f1"),
    ],
)
def test_named_metrics_come_first(names, options, primary, table, tmp_path, capsys):
    options += ["--methods", "fedavg", "--training.metrics", *names]
    label = ("age",) if "r2" in names else ("ill",)
    assert main(arguments(table, tmp_path, *options, label=label)) == 0
    text = capsys.readouterr().out
    _, run = run_of(tmp_path)
    quantities = ff.results.task_metrics.quantities(run)
    assert [each.name for each in quantities][: len(names)] == names
    assert f"{quantities[0].description} of 6 clients" in text
    assert f"{primary}_worst_10pct" in run


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("macro_f1", "regression", "such as mean_absolute_error"),
        ("label_f1", "classification", "--data.target multi_label"),
        ("mean_error", "regression", "mean_squared_error"),
        ("r2 r2", "regression", "each once"),
    ],
)
def test_metrics_of_another_task_are_refused(name, target, message, table, tmp_path, capsys):
    options = [f"--data.target={target}", "--training.metrics", *name.split()]
    assert main(arguments(table, tmp_path, *options)) == 2
    error = capsys.readouterr().err
    assert "training.metrics=" in error
    assert message in error


def test_a_sweep_ranks_by_the_smallest_validation_error(table, tmp_path, capsys):
    options = ["--data.target=regression", "--methods=fedavg"]
    command = ("sweep", "learning_rate=0.001,0.05")
    assert main(arguments(table, tmp_path, *options, command=command)) == 0
    text = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    swept = ff.results.open(folder / "results.nc")
    errors = swept[f"validation_{ERROR}_mean_clients"].isel(round=-1).mean("seed").values.ravel()
    assert errors[1] < errors[0]
    rows = [line for line in text.splitlines() if "learning_rate=" in line]
    assert ["0.05" in rows[0], "0.001" in rows[1]] == [True, True]
    assert "In unit of age" in text


def test_arrays_of_a_file_need_a_fitting_target(tmp_path, capsys):
    x, clients = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    np.savez(tmp_path / "y.npz", features=x, labels=x[:, :2], client=clients)
    np.savez(tmp_path / "c.npz", features=x, labels=clients % 2, client=clients)
    base = ["run", "--output", str(tmp_path / "runs"), "--quiet", *SMALL, "--methods", "fedavg"]
    base += ["--model.name", "logistic", "--data.file"]
    assert main([*base, str(tmp_path / "y.npz")]) == 2
    assert "--data.target classification for integers, regression" in capsys.readouterr().err
    assert main([*base, str(tmp_path / "c.npz"), "--data.target", "regression"]) == 2
    assert "floats [total, outputs]" in capsys.readouterr().err
    assert main([*base, str(tmp_path / "y.npz"), "--data.target", "regression"]) == 0
    assert "Mean absolute error of 4 clients (y)" in capsys.readouterr().out
    assert run_of(tmp_path)[1].sizes["output"] == 2
