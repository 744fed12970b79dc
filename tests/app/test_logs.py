"""Experiment trackers."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app.cli import main
from fedjax_fair.app.terminal import logs
from fedjax_fair.training.loop import Evaluation

pytestmark = pytest.mark.usefixtures("without_figures")

SMALL = ["--data.clients=10", "--model.name=logistic", "--selector.cohort-size=3"]
SMALL += ["--solver.steps=1", "--training.rounds=2", "--training.eval-every=1"]
SMALL += ["--methods=fedavg", "--training.seeds", "3", "5", "--quiet"]


def test_tensorboard_reads_what_was_measured(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    make_ndarray = pytest.importorskip("tensorboard.util.tensor_util").make_ndarray
    assert main(["run", *SMALL, "--log", "tensorboard", "--output", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    run = results.open(folder).sel(algorithm="fedavg")
    for seed in (3, 5):
        events = accumulator.EventAccumulator(str(folder / "tensorboard" / "fedavg" / str(seed)))
        events.Reload()
        read = events.Tensors("accuracy_mean_clients")
        assert [event.step for event in read] == [0, 1, 2]
        np.testing.assert_array_equal(
            [make_ndarray(event.tensor_proto).item() for event in read],
            run["accuracy_mean_clients"].sel(seed=seed),
        )


def test_mlflow_reads_what_was_measured(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    assert main(["run", *SMALL, "--log", "mlflow", "--output", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    run = results.open(folder).sel(algorithm="fedavg")
    client = mlflow.MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name(folder.name).experiment_id])
    assert {one.info.run_name for one in found} == {"fedavg, seed 3", "fedavg, seed 5"}
    assert {one.info.status for one in found} == {"FINISHED"}
    for one in found:
        own = run.sel(seed=int(one.info.run_name.rpartition(" ")[2]))
        read = client.get_metric_history(one.info.run_id, "client_dissimilarity")
        values = {metric.step: metric.value for metric in read}
        np.testing.assert_array_equal(
            [values[done] for done in (0, 1, 2)], own["client_dissimilarity"]
        )


def test_weights_and_biases_keeps_runs_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["run", *SMALL, "--log", "wandb", "--output", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    assert len(list((folder / "wandb").glob("offline-run-*/*.wandb"))) == 2


def test_a_logger_without_its_package_is_rejected_before_a_folder_is_made(
    tmp_path, monkeypatch, capsys
):
    def missing(name):
        raise ImportError

    monkeypatch.setattr(logs, "import_module", missing)
    assert main(["run", *SMALL, "--log", "mlflow", "--output", str(tmp_path / "runs")]) == 2
    assert 'pip install "fedjax-fair[mlflow]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_non_finite_values_are_not_logged(tmp_path):
    class Kept:
        def __init__(self):
            self.written = []

        def write(self, round, values):
            self.written.append((round, values))

        def close(self):
            self.written.append("closed")

    kept = Kept()
    logged = logs.LoggerCallback("tensorboard", tmp_path, "fedavg")
    logged._open = lambda seed: kept
    logged.on_start(1, (0,))
    summaries = {"a": np.array([0.5]), "b": np.array([np.nan])}
    logged.on_evaluation(Evaluation(1, 1, (0,), summaries, None, 0.0))  # type: ignore
    logged.on_end(xr.Dataset())
    assert kept.written == [(1, {"a": 0.5}), "closed"]
