"""Runs with clients that are held out of training."""

import json

import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair import results
from fedjax_fair.app import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config, DataConfig
from fedjax_fair.report import page
from fedjax_fair.results.tables import final_tables

NAMES = ("unseen_accuracy", "unseen_loss", "adapted_accuracy", "adapted_loss")
METHODS = ("fedavg", "ditto:learning_rate=0.05,batch_size=7", "local")
SMALL = [
    "--data.clients=15",
    "--data.seed=3",
    "--model.name=logistic",
    "--solver.steps=2",
    "--training.rounds=4",
    "--training.eval-every=2",
    "--training.seeds=0,1",
    "--quiet",
]
UNSEEN = "--data.unseen-fraction=0.2"


def run(parent, *options, methods=METHODS):
    arguments = ["run", "digits", *SMALL, "--methods", *methods, *options, "--output", str(parent)]
    assert main(arguments) == 0
    (path,) = parent.iterdir()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unseen") / "runs", UNSEEN)


@pytest.fixture(scope="module")
def dataset(folder):
    return results.open(folder)


def test_results_are_those_of_the_functions_in_python(dataset):
    """With the clients of Python's split, and the rates and batches of each method."""
    whole = ff.data.load("digits", ff.data.classes_per_client(15), seed=3)
    seen, unseen = ff.data.hold_out_clients(whole, 0.2, seed=3)
    assert (dataset.sizes["client"], dataset.sizes["unseen_client"]) == (12, 3)
    sizes = dataset["train_examples"].sum("class")
    np.testing.assert_array_equal(sizes, seen.train.sizes)
    for name, rate, batch_size in zip(METHODS[:2], (0.1, 0.05), (10, 7), strict=True):
        sgd = ff.solvers.SGD(rate, batch_size, steps=2)
        solver = sgd if name == "fedavg" else ff.solvers.Ditto(sgd)
        aggregator = ff.aggregators.Mean("num_examples")
        method = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(10), solver, aggregator)
        fitted = ff.fit(method, seen, rounds=4, seeds=(0, 1))
        expected = ff.analysis.evaluate_unseen(
            fitted.model, fitted.variables, [rate] * 2, unseen, seeds=(0, 1), batch_size=batch_size
        )
        mine = dataset.sel(algorithm=name)
        for variable in NAMES:
            np.testing.assert_allclose(mine[variable], expected[variable], rtol=1e-4)
            means = expected[variable].mean("client")
            np.testing.assert_allclose(mine[f"{variable}_mean_clients"], means, rtol=1e-4)
    assert dataset["adapted_loss_mean_clients"].attrs["population"] == "unseen clients"


def test_methods_without_a_global_model_have_nan(dataset):
    for name in NAMES:
        assert dataset[name].sel(algorithm="local").isnull().all()
        assert dataset[name].sel(algorithm=list(METHODS[:2])).notnull().all()


def test_tables_and_report_have_the_means(folder, dataset, capsys):
    assert main(["show", str(folder)]) == 0
    assert "Test accuracy of 3 unseen clients (digits)" in capsys.readouterr().out
    (table,) = [table for table in final_tables(dataset) if "unseen" in table.title]
    assert [name for name, *_ in table.rows] == list(METHODS)
    assert table.rows[2][1:] == ("-", "-")
    for row, name in zip(table.rows[:2], METHODS, strict=False):
        for cell, variable in zip(row[1:], ("unseen", "adapted"), strict=True):
            mean = dataset[f"{variable}_accuracy"].sel(algorithm=name).mean()
            assert cell.split(" ")[0] == f"{100 * float(mean):.1f}"
    for html in ((folder / "report.html").read_text("utf8"), page(dataset)):
        _, heading, rest = html.partition("<h2>Test accuracy of 3 unseen clients (digits)</h2>")
        assert heading
        assert "ditto" in (shown := rest.partition("</table>")[0])
        assert "personalized" not in shown


def test_a_resumed_run_ends_with_the_same_results(folder, dataset, tmp_path, without_figures):
    path = run(tmp_path / "runs", UNSEEN, "--training.rounds=2")
    assert main(["resume", str(path), "--quiet", "--training.rounds=4"]) == 0
    assert results.open(path).drop_attrs().identical(dataset.drop_attrs())


def test_runs_without_unseen_clients_do_not_evaluate_any(tmp_path, without_figures):
    path = run(tmp_path / "runs", methods=("fedavg",))
    dataset = results.open(path)
    assert dataset.sizes["client"] == 15
    assert not {"unseen_client", *NAMES} & {*dataset.dims, *dataset}
    assert "unseen" not in dataset.attrs["settings"]
    assert json.loads((path / "config.json").read_text())["data"]["unseen_fraction"] is None


def test_each_seed_may_have_its_partition(tmp_path, without_figures):
    path = run(tmp_path / "runs", UNSEEN, "--data.partition-per-seed", methods=("fedavg",))
    dataset = results.open(path)
    assert dataset["train_examples"].sizes["seed"] == 2
    assert dataset["adapted_accuracy"].notnull().all()


def test_the_default_cohort_is_limited_by_the_clients_that_train(tmp_path, without_figures):
    """The recorded default fits the configuration when it is read again."""
    path = run(tmp_path / "runs", "--data.unseen-fraction=0.6", methods=("fedavg",))
    assert results.open(path).sizes["slot"] == 6
    written = json.loads((path / "config.json").read_text())
    assert written["defaults"]["selector"]["cohort_size"] == 6
    assert RunFolder(path).config().data.unseen_fraction == 0.6


def test_files_have_unseen_clients(tmp_path):
    total = 60
    arrays = {
        "features": np.arange(total, dtype=np.float32)[:, None] / total,
        "labels": np.arange(total) % 3,
        "client": np.arange(total) % 6,
    }
    np.savez(tmp_path / "own.npz", **arrays)
    part = DataConfig(file=str(tmp_path / "own.npz"), unseen_fraction=0.3)
    ready = build.build(presets.resolve(Config(methods=("fedavg",), data=part)))
    assert ready.unseen is not None
    assert (ready.data.num_clients, ready.unseen.num_clients) == (4, 2)


def test_a_partition_is_shown_with_its_unseen_clients(capsys):
    assert main(["data", "show", "--data.clients=20", "--data.unseen-fraction=0.1"]) == 0
    seen, _, unseen = capsys.readouterr().out.partition("Unseen clients")
    assert "clients            18" in seen
    assert "clients            2\n" in unseen


def test_clients_that_only_test_examples_have_are_unseen(tmp_path, capsys, without_figures):
    rng = np.random.default_rng(0)
    arrays = {"features": rng.normal(size=(40, 3)), "labels": np.arange(40) // 3 % 2}
    arrays |= {
        "client": np.repeat(["a", "b"], 20),
        "test_client": np.repeat(["a", "b", "c", "c"], 10),
    }
    arrays |= {f"test_{name}": arrays[name] for name in ("features", "labels")}
    np.savez(tmp_path / "a.npz", **arrays)
    small = ["--data.file", str(tmp_path / "a.npz"), *SMALL[2:], "--methods", "fedavg"]
    small += ["--selector.cohort-size=2", "--output", str(tmp_path / "runs")]
    assert main(["run", *small]) == 2
    assert "20 test examples are of 1 clients that lack" in capsys.readouterr().err
    unseen = "--data.unknown-clients=unseen"
    assert main(["run", *small, unseen, UNSEEN]) == 2
    assert "data.unseen_fraction=0.2: expected 0" in capsys.readouterr().err
    assert main(["data", "show", "--data.file", str(tmp_path / "a.npz"), unseen]) == 0
    assert "Unseen clients\n" in capsys.readouterr().out
    assert main(["run", *small, unseen]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    measured = results.open(path)
    assert measured.unseen_client.values.tolist() == ["c"]
    assert np.isfinite(measured.unseen_accuracy).all()
