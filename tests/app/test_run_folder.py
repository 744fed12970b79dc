"""Run folders and their continuation."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedjax_fair import load_model, report, results
from fedjax_fair.analysis.simulate import expected_parity
from fedjax_fair.app import experiment
from fedjax_fair.app.build import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.run_folder import MetricsLog, RunFolder
from fedjax_fair.app.run_record import command, data_digest, environment
from fedjax_fair.app.settings import config_files, presets
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.app.terminal.termination import Terminated, Termination
from fedjax_fair.results.files import locked
from fedjax_fair.schedules import Synchronous
from fedjax_fair.timing import ClientTimes
from fedjax_fair.training.loop import Callback, Evaluation

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
    """Raises an interruption in the middle of a run."""

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


@hypothesis_settings(deadline=None, max_examples=50)
@given(st.data())
def test_configurations_are_saved_and_loaded(tmp_path_factory, data):
    numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    config = Config(
        methods=tuple(data.draw(st.lists(st.text()))),
        data=DataConfig(name=data.draw(st.text()), alpha=data.draw(st.floats(0, 1))),
        solver=SolverConfig(learning_rate=data.draw(numbers), steps=data.draw(st.integers())),
        model=ModelConfig(hidden=tuple(data.draw(st.lists(st.integers())))),
    )
    path = tmp_path_factory.mktemp("config") / "config.json"
    config_files.save(config, path)
    assert config_files.load(path) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "Expecting property name"),
        (b"null", "expected settings by name, got None"),
        (b"[1]", r"expected settings by name, got \[1\]"),
        (b"\xff\xfe", "can't decode"),
        (b"[" * 100_000, "maximum recursion depth exceeded"),
        (b'{"dta": {}}', "did you mean 'data'"),
        (b'{"data": {"nme": "digits"}}', "did you mean 'name'"),
        (b'{"data": null}', "data=None: expected settings by name"),
        (b'{"methods": 3}', "methods=3: expected"),
        (b'{"methods": ["fedavg", 3]}', "methods=.*3.*: expected"),
        (b'{"training": {"rounds": "ten"}}', "rounds='ten': expected an integer"),
        (b'{"command": "maximise"}', "xpected one of maximize exemplars"),
        (b'{"command": "maximize exemplars", "k": "all"}', "k='all': expected an integer"),
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"config\.json'.*{message}"):
        RunFolder(tmp_path).config()


def test_a_folder_appears_with_its_configuration_or_not_at_all(tmp_path, monkeypatch):
    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(config_files, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        RunFolder.create(replace(SMALL, output=str(tmp_path)), "small")
    assert all(path.name.startswith(".") for path in tmp_path.iterdir())


def test_a_folder_is_locked_by_one_process(tmp_path):
    with locked(tmp_path):
        with (
            pytest.raises(
                ValueError, match=rf"used by another process or thread \({os.getpid()} on "
            ),
            locked(tmp_path),
        ):
            pass
        assert (tmp_path / ".holder").exists()  # The other left it alone.
    with locked(tmp_path):
        pass


def test_a_crash_releases_the_folder(tmp_path):
    program = f"""
import os, pathlib
from fedjax_fair.results.files import locked
with locked(pathlib.Path({str(tmp_path)!r})):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    assert (tmp_path / ".holder").exists()
    with locked(tmp_path):
        pass


def test_folders_have_unique_names(tmp_path):
    config = replace(SMALL, output=str(tmp_path / "deep" / "runs"))
    folders = [RunFolder.create(config, "small") for _ in range(3)]
    assert len({folder.path for folder in folders}) == 3
    assert all(RunFolder(folder.path).config() == config for folder in folders)


def test_a_folder_without_configuration_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        RunFolder(tmp_path)


def test_the_environment_is_recorded(finished, ready):
    recorded = json.loads((finished.path / "env.json").read_text())
    of_run = {"command": command(), "data": data_digest(data=ready.data, unseen=None)}
    assert recorded == environment() | of_run
    assert set(recorded["versions"]) >= {"jax", "jaxlib", "flax", "optax", "numpy", "fedjax-fair"}


def test_figures_are_drawn_once_as_savefig_would(finished, tmp_path, monkeypatch):
    dataset = results.open(finished.path)
    for name, figure in report.standard_figures(dataset).items():
        figure.savefig(tmp_path / f"{name}.png", dpi=150)
    drawn, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, r: drawn.append(self) or draw(self, r))
    finished.write_figures(figures := report.standard_figures(dataset), "")
    assert drawn == list(figures.values())
    assert len(figures) > 3
    for name in figures:
        files = (folder / f"{name}.png" for folder in (tmp_path, finished.plots))
        assert len({file.read_bytes() for file in files}) == 1


def test_a_finished_run_has_all_files(finished):
    assert {path.name for path in finished.path.iterdir()} == {
        ".lock", "config.json", "env.json", "metrics.jsonl", "checkpoints", "models", "results.nc",
        "plots", "report.html",
    }  # fmt: skip
    dataset = results.open(finished.path)
    figures = {f"{name}.png" for name in report.standard_figures(dataset)}
    assert {path.name for path in finished.plots.iterdir()} == figures
    assert dataset["algorithm"].values.tolist() == list(SMALL.methods)
    assert dataset["seed"].values.tolist() == [3, 1]
    assert dataset["round"].values.tolist() == [0, 2, 4, 6]


def test_the_log_agrees_with_the_results(finished):
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
@pytest.mark.usefixtures("without_figures")
def test_an_interrupted_run_ends_like_an_uninterrupted_one(ready, finished, tmp_path, stopped):
    method, round = stopped
    folder = RunFolder.create(replace(SMALL, output=str(tmp_path)), "small")
    with pytest.raises(KeyboardInterrupt):
        experiment.execute(ready, folder, lambda name: [Interrupt(round if name == method else -1)])
    with folder.metrics.open("a") as file:
        file.write('{"algorithm": "fedp')  # What a kill may leave.

    counts = {name: Count() for name in SMALL.methods}
    config = folder.config()
    assert isinstance(config, Config)
    resumed = experiment.execute(build(config), folder, lambda name: [counts[name]])
    xr.testing.assert_identical(resumed, results.open(finished.path))

    def without_time(lines):
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert without_time(read_metrics(folder)) == without_time(read_metrics(finished))
    if method != "fedavg":
        assert counts["fedavg"].rounds == []
        # The checkpoint of the round that was interrupted had not been written.
        assert counts[method].rounds == [4, 6]


def test_loaded_models_reproduce_the_results(ready, finished):
    dataset = results.open(finished.path).isel(round=-1)
    for method in SMALL.methods:
        fitted = load_model(finished.path, method)
        assert fitted.rounds.tolist() == [6, 6]
        measured = fitted.evaluate(ready.data)
        assert measured.seed.values.tolist() == [3, 1]
        for name in ("test_accuracy", "test_loss", "sigma_acc"):
            expected = dataset[name].sel(algorithm=method)
            np.testing.assert_allclose(measured[name], expected, rtol=1e-4, atol=1e-5)
        one = load_model(finished.path, method, seed=1)
        assert one.dataset.seed.values.tolist() == [1]
        params = one.variables_for(1).params["head"]
        np.testing.assert_array_equal(
            params["kernel"], fitted.variables_for(1).params["head"]["kernel"]
        )
        x = ready.data.test.features[:9]
        logits = x.reshape(9, -1) / np.float32(255) @ params["kernel"] + params["bias"]
        np.testing.assert_allclose(one.outputs(x)[0], logits, rtol=1e-4, atol=1e-4)


def test_missing_models_are_reported(finished, tmp_path):
    with pytest.raises(ValueError, match="method='divfl': expected one of 'fedavg', 'unionfl"):
        load_model(finished.path, "divfl")
    with pytest.raises(ValueError, match="seed=2: expected one of 3, 1"):
        load_model(finished.path, "fedavg", seed=2)
    with pytest.raises(ValueError, match=r"expected a run folder"):
        load_model(tmp_path, "fedavg")
    copy = shutil.copytree(finished.path, tmp_path / "copy")
    largest = max((copy / "models" / "fedavg").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    with pytest.raises(ValueError, match=r"model in .* is damaged \(its files have changed"):
        load_model(copy, "fedavg")
    shutil.rmtree(copy / "models")
    with pytest.raises(ValueError, match=r"no model in .*fedjax-fair resume"):
        load_model(copy, "fedavg")


@pytest.mark.usefixtures("without_figures")
def test_runs_with_a_schedule_have_the_parity_that_chance_allows(ready, tmp_path):
    config = replace(SMALL, methods=("fedavg",), output=str(tmp_path))
    clients = np.arange(ready.data.num_clients)
    times = ClientTimes(1.0 + clients, device_class=clients % 2, class_names=("one", "two"))
    round = ready.rounds["fedavg"].replace(schedule=Synchronous(times, num_responses=2))
    timed = ready._replace(config=config, rounds={"fedavg": round})
    found = experiment.execute(timed, RunFolder.create(config, "timed")).isel(algorithm=0)
    rounds, every = found.sizes["training_round"], config.training.eval_every
    expected = expected_parity(round, ready.data, rounds=rounds, eval_every=every)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    assert 0 < expected.weight_parity_expected[-1] < 1


def test_a_run_that_depends_on_the_number_of_rounds_is_not_extended(tmp_path, capsys):
    config = replace(SMALL, methods=("fedavg", "fair_fate"), output=str(tmp_path))
    folder = RunFolder.create(config, "fair")
    assert main(["resume", str(folder.path), "--training.rounds", "7"]) == 2
    error = capsys.readouterr().err
    assert "training.rounds: expected the 6 of the run, on which all rounds of fair_fate" in error
    assert folder.config() == config


@pytest.mark.usefixtures("without_figures")
def test_a_finished_run_is_extended(ready, finished, tmp_path, capsys):
    """It has ended between two evaluations of the longer run."""
    name = "unionfl:window=2"
    short = replace(SMALL, methods=(name,), output=str(tmp_path))
    begun = replace(short, training=replace(SMALL.training, rounds=3))
    folder = RunFolder.create(begun, "short")
    only = ready._replace(config=begun, rounds={name: ready.rounds[name]})
    experiment.execute(only, folder)
    assert {line["round"] for line in read_metrics(folder)} == {0, 2, 3}
    assert main(["resume", str(folder.path), "--training.rounds", "2"]) == 2
    assert "training.rounds=2: expected at least the 3 of the run" in capsys.readouterr().err
    assert main(["resume", str(folder.path), "--training.rounds", "6"]) == 0
    extended, whole = results.open(folder.path), results.open(finished.path)
    for column in extended:
        expected = whole[column]
        if "algorithm" in expected.dims:
            expected = expected.sel(algorithm=[name])
        xr.testing.assert_identical(extended[column], expected)
    models = [load_model(path.path, name).variables for path in (folder, finished)]
    jax.tree.map(np.testing.assert_array_equal, *models)
    assert folder.config() == short
    logged = [line for line in read_metrics(finished) if line["algorithm"] == name]
    assert [line | {"seconds": 0} for line in read_metrics(folder)] == [
        line | {"seconds": 0} for line in logged
    ]


class Kill(Callback):
    """Sends this process a signal after a round."""

    def __init__(self, round: int) -> None:
        self._round = round

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.round == self._round:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("without_figures")
def test_sigterm_ends_after_the_checkpoint(ready, finished, tmp_path):
    config = replace(SMALL, methods=("fedavg",), output=str(tmp_path))
    folder = RunFolder.create(config, "small")
    only = ready._replace(config=config, rounds={"fedavg": ready.rounds["fedavg"]})
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), Termination() as end:
        experiment.execute(only, folder, lambda method: [Kill(2), end])
    assert signal.getsignal(signal.SIGTERM) is before
    assert not folder.results.exists()
    kept = [path.name for path in (folder.checkpoints / "fedavg").iterdir()]
    assert "2" in kept
    assert "4" not in kept

    # What else may have been lost or torn until it goes on.
    (folder.path / "env.json").write_text('{"versions')
    lines = folder.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(lines[1:]))
    with pytest.warns(UserWarning, match=r"env\.json is missing or damaged"):
        resumed = experiment.execute(only, folder)
    whole = results.open(finished.path).sel(algorithm=["fedavg"])
    for name in ("test_accuracy", "cohort_clients", "accuracy_mean_clients"):
        np.testing.assert_array_equal(resumed[name], whole[name])
    assert folder.environment() == environment() | {"data": finished.environment()["data"]}
    written = sorted((line["round"], line["seed"]) for line in read_metrics(folder))
    assert written == [(round, seed) for round in (0, 2, 4, 6) for seed in (1, 3)]
    again = {(line["round"], line["seed"]): line for line in read_metrics(folder)}
    first = json.loads(lines[0])
    assert again[0, first["seed"]] == first | {"seconds": None}


def test_a_second_sigterm_ends_at_once():
    with Termination() as end:
        os.kill(os.getpid(), signal.SIGTERM)
        assert end.requested
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    "line",
    [
        *("[1]", "null", '{"algorithm": "fedavg"}', "{", "\x00", "[" * 100_000),
        '{"algorithm": [], "seed": 0, "round": 1}',
        '{"algorithm": "fedavg", "seed": "0", "round": 1}',
        '{"algorithm": "fedavg", "seed": 0, "round": 1e400}',
        '{"algorithm": "fedavg", "seed": true, "round": 1}',
    ],
)
def test_damaged_lines_of_metrics_are_rejected(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    good = '{"algorithm": "fedavg", "seed": 0, "round": 0}'
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl': line 2 is damaged"):
        MetricsLog(path, "fedavg", ["fedavg"])
    assert path.read_text() == f"{good}\n{line}\n"


def test_non_finite_metrics_are_null(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", "fedavg", ["fedavg"])
    summaries = {"a": np.array([np.nan, 1.5]), "b": np.array([np.inf, -np.inf])}
    evaluation = Evaluation(0, 5, (0, 1), summaries, clients=None, seconds=0.0)  # type: ignore
    log.on_evaluation(evaluation)
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["a"], first["b"], second["a"], second["b"]) == (None, None, 1.5, None)
