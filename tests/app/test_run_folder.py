"""Run folders keep what a run has, and let it continue."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedjax_fair import report, results
from fedjax_fair.app import experiment, presets, settings
from fedjax_fair.app.build import build
from fedjax_fair.app.config import Config, DataConfig, ModelConfig, SolverConfig, TrainingConfig
from fedjax_fair.app.run_folder import MetricsLog, RunFolder, environment
from fedjax_fair.training.fit import Callback, Evaluation

SMALL = presets.resolve(
    Config(
        # The second remembers its cohorts, which a run that goes on must know.
        methods=("fedavg", "unionfl:window=2"),
        data=DataConfig(clients=10),
        model=ModelConfig(name="logistic"),
        solver=SolverConfig(steps=3),
        training=TrainingConfig(rounds=6, eval_every=2, seeds=(3, 1)),
    )
)


class Interrupt(Callback):
    """Stops the process, as far as a test can, in the middle of a run."""

    def __init__(self, round: int) -> None:
        self._round = round

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.round == self._round:
            raise KeyboardInterrupt


class Count(Callback):
    """Counts evaluations."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.rounds.append(evaluation.round)


def read_metrics(folder: RunFolder) -> list[dict]:
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    lines = folder.metrics.read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.fixture(scope="module")
def ready():
    return build(SMALL)


@pytest.fixture(scope="module")
def finished(ready, tmp_path_factory):
    config = replace(SMALL, output=str(tmp_path_factory.mktemp("runs")))
    folder = RunFolder.create(config, "small")
    experiment.execute(ready, folder)
    return folder


@hypothesis_settings(deadline=None)
@given(st.data())
def test_configurations_survive_the_file(tmp_path_factory, data):
    numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    config = Config(
        methods=tuple(data.draw(st.lists(st.text()))),
        data=DataConfig(name=data.draw(st.text()), alpha=data.draw(st.floats(0, 1))),
        solver=SolverConfig(learning_rate=data.draw(numbers), steps=data.draw(st.integers())),
        model=ModelConfig(hidden=tuple(data.draw(st.lists(st.integers())))),
    )
    path = tmp_path_factory.mktemp("config") / "config.json"
    settings.save(config, path)
    assert settings.load(path) == config


@pytest.mark.parametrize("content", ["{", '{"dta": {}}', '{"data": {"nme": "digits"}}'])
def test_a_damaged_configuration_is_refused(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"expected JSON|did you mean '(data|name)'"):
        settings.load(path)


def test_a_new_folder_never_takes_the_place_of_another(tmp_path):
    config = replace(SMALL, output=str(tmp_path / "deep" / "runs"))
    folders = [RunFolder.create(config, "small") for _ in range(3)]
    assert len({folder.path for folder in folders}) == 3
    assert all(RunFolder(folder.path).config() == config for folder in folders)


def test_a_folder_without_configuration_is_no_run(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        RunFolder(tmp_path)


def test_the_environment_is_recorded(finished):
    recorded = json.loads((finished.path / "env.json").read_text())
    assert recorded == environment()
    assert set(recorded["versions"]) >= {"jax", "jaxlib", "flax", "optax", "numpy", "fedjax-fair"}


def test_a_finished_run_has_everything(finished):
    assert {path.name for path in finished.path.iterdir()} == {
        "config.json", "env.json", "metrics.jsonl", "checkpoints", "results.nc", "plots",
        "report.html",
    }  # fmt: skip
    dataset = results.open(finished.path)
    figures = {f"{name}.png" for name in report.standard_figures(dataset)}
    assert {path.name for path in finished.plots.iterdir()} == figures
    assert dataset["algorithm"].values.tolist() == list(SMALL.methods)
    assert dataset["seed"].values.tolist() == [3, 1]
    assert dataset["round"].values.tolist() == [0, 2, 4, 6]


def test_the_log_says_what_the_results_say(finished):
    dataset, lines = results.open(finished.path), read_metrics(finished)
    assert len(lines) == 2 * 2 * 4
    names = set(lines[0]) - {"algorithm", "seed", "round", "seconds"}
    assert "accuracy_mean_clients" in names
    for line in lines:
        cell = dataset.sel({name: line[name] for name in ("algorithm", "seed", "round")})
        for name in names:
            expected = float(cell[name])
            assert line[name] == (expected if np.isfinite(expected) else None), name


@pytest.mark.parametrize(
    "stopped", [pytest.param(("fedavg", 0), marks=pytest.mark.slow), ("unionfl:window=2", 4)]
)
def test_an_interrupted_run_ends_like_an_uninterrupted_one(ready, finished, tmp_path, stopped):
    method, round = stopped
    folder = RunFolder.create(replace(SMALL, output=str(tmp_path)), "small")
    with pytest.raises(KeyboardInterrupt):
        experiment.execute(ready, folder, lambda name: Interrupt(round if name == method else -1))
    with folder.metrics.open("a") as file:
        file.write('{"algorithm": "fedp')  # What a kill may leave.

    counts = {name: Count() for name in SMALL.methods}
    resumed = experiment.execute(build(folder.config()), folder, counts.__getitem__)
    xr.testing.assert_identical(resumed, results.open(finished.path))

    def without_time(lines):
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert without_time(read_metrics(folder)) == without_time(read_metrics(finished))
    if method != "fedavg":
        assert counts["fedavg"].rounds == []
        # The checkpoint of the round that was interrupted had not been written.
        assert counts[method].rounds == [4, 6]


def test_what_is_not_a_number_is_null(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", "fedavg")
    summaries = {"a": np.array([np.nan, 1.5]), "b": np.array([np.inf, -np.inf])}
    evaluation = Evaluation(0, 5, (0, 1), summaries, clients=None, seconds=0.0)  # type: ignore
    log.on_evaluation(evaluation)
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["a"], first["b"], second["a"], second["b"]) == (None, None, 1.5, None)
