"""Sweeps: results of single runs with few compilations."""

import importlib
import json
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
import xarray as xr
from jax.sharding import Mesh

from fedjax_fair import data, results, selectors
from fedjax_fair.app.build import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.run_groups import plan_sweep
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config, ModelConfig
from fedjax_fair.app.settings.registry import METHODS
from fedjax_fair.app.sweep import sweep
from fedjax_fair.results.files import locked
from fedjax_fair.rounds import round
from fedjax_fair.training import fingerprint
from fedjax_fair.training.fit import fit
from fedjax_fair.training.loop import Callback, MemoryLimitError
from fedjax_fair.training.memory_estimate import Memory

# The package has the function by this name.
module = importlib.import_module("fedjax_fair.app.sweep")


@pytest.fixture(scope="module")
def base():
    config = Config(methods=("subtrunc", "fedprox"), model=ModelConfig(name="logistic"))
    return replace(
        config,
        data=replace(config.data, clients=12),
        selector=replace(config.selector, cohort_size=3),
        training=replace(config.training, rounds=4, eval_every=2, seeds=(0, 5)),
    )


def one_by_one(base, name, seed, **settings):
    """Runs one configuration of a sweep."""
    written = ",".join(f"{setting}={value}" for setting, value in settings.items())
    # A sweep holds out a tenth of training examples.
    data = replace(base.data, validation_fraction=0.1)
    config = replace(base, methods=(f"{name}:{written}",), data=data)
    experiment = build(presets.resolve(config))
    (round,) = experiment.rounds.values()
    return fit(
        round, experiment.data, rounds=4, seeds=(seed,), eval_every=2, train_loss=False
    ).dataset


@pytest.mark.smoke
def test_a_sweep_equals_single_runs(base, monkeypatch):
    traced = []
    step = round.Round.step
    monkeypatch.setattr(round.Round, "step", lambda *a, **k: traced.append(1) or step(*a, **k))
    together = sweep(base, lam=[0.0, 0.5, 2.0], learning_rate=[0.03, 0.1])
    assert len(traced) == len(base.methods)  # Numeric settings share a compiled function.
    assert together.test_accuracy.dims == (
        "algorithm", "lam", "learning_rate", "seed", "round", "client",
    )  # fmt: skip
    for seed, lam, rate in ((0, 0.0, 0.1), (5, 2.0, 0.03)):
        alone = one_by_one(base, "subtrunc", seed, lam=lam, learning_rate=rate)
        configuration = {"algorithm": "subtrunc", "seed": seed, "lam": lam, "learning_rate": rate}
        own = together.sel(configuration)
        np.testing.assert_array_equal(own["cohort_clients"], alone["cohort_clients"][0])
        for metric in ("test_loss", "validation_loss", "validation_accuracy_mean_clients"):
            np.testing.assert_allclose(own[metric], alone[metric][0], rtol=1e-4)
    # A setting that a method does not read changes nothing.
    fedprox = together.sel(algorithm="fedprox")["test_loss"]
    np.testing.assert_array_equal(fedprox.sel(lam=0.0), fedprox.sel(lam=2.0))


def test_communication_and_faults_can_be_varied(base):
    config = replace(
        base,
        methods=("fedavg",),
        communication=replace(base.communication, clipping_norm=0.01),
        aggregator=replace(base.aggregator, weights="uniform"),
    )
    varied = {"noise_multiplier": [0.0, 5.0], "dropout": [0.0, 0.5]}
    _, _, groups = plan_sweep(config, varied, seeds=(0,))
    rounds = [group.rounds[()] for group in groups]
    assert [group.labels for group in groups] == [
        {"noise_multiplier": noise, "dropout": dropout}
        for noise in (0.0, 5.0)
        for dropout in (0, 0.5)
    ]
    assert [round.privacy.noise_multiplier for round in rounds] == [0.0, 0.0, 5.0, 5.0]
    assert [len(round.faults) for round in rounds] == [0, 1, 0, 1]


def test_unused_settings_are_run_once(base, monkeypatch):
    sizes = []

    def fit(method, seeds, data, **settings):
        sizes.append(len(seeds))
        loss = [float(method.solver.learning_rate) for method in method]
        dataset = xr.Dataset({"test_loss": ("seed", loss)}, {"seed": list(seeds)})
        return SimpleNamespace(dataset=dataset)

    monkeypatch.setattr(module, "fit", fit)
    config = replace(base, methods=("subtrunc", "unionfl", "q_fedavg"))
    runs = sweep(config, seeds=(0,), lam=[0.1, 0.2], mu=[1.0, 2.0, 3.0], learning_rate=[0.05, 0.1])
    assert sizes == [4, 6, 2]
    assert runs["test_loss"].dims == ("algorithm", "lam", "mu", "learning_rate", "seed")
    expected = runs["learning_rate"].broadcast_like(runs["test_loss"])
    np.testing.assert_allclose(runs["test_loss"], expected, rtol=1e-6)


def test_data_is_loaded_once_for_all_compiled_functions(base, monkeypatch):
    load, read = data.load, []
    monkeypatch.setattr(data, "load", lambda *a, **k: read.append(1) or load(*a, **k))
    both = sweep(replace(base, methods=("fedavg",)), seeds=(0,), cohort_size=[2, 3])
    assert len(read) == 1
    assert both.sizes["cohort_size"] == 2
    assert np.isnan(both["cohort_clients"].sel(cohort_size=2, slot=2)).all()


def test_batches_do_not_change_results(base):
    config = replace(base, methods=("fedprox",), data=replace(base.data, partition_per_seed=True))
    whole = sweep(config, prox=[0.0, 1.0])
    assert whole["train_examples"].dims == ("seed", "client", "class")
    parts = sweep(config, prox=[0.0, 1.0], runs_per_batch=2)
    np.testing.assert_allclose(whole["test_loss"], parts["test_loss"], rtol=1e-5)
    assert (whole["train_examples"].sel(seed=0) != whole["train_examples"].sel(seed=5)).any()


def test_batches_fit_into_memory(base, monkeypatch):
    config = replace(base, methods=("fedprox",))
    settings: Any = {"prox": [0.0, 0.1], "learning_rate": [0.05, 0.1]}
    bytes_needed = []

    class RecordMemory(Callback):
        def on_compiled(self, num_bytes):
            bytes_needed.append(num_bytes)

    def callback_fn(runs):
        assert runs.startswith("fedprox, ")
        return [RecordMemory()]

    whole = sweep(config, callback_fn=callback_fn, **settings)
    sweep(config, seeds=(0,), prox=[0.1], callback_fn=callback_fn)
    all_runs, one = bytes_needed
    limit = (one + all_runs) // 2
    monkeypatch.setattr(module, "free_memory", lambda: limit)
    bytes_needed.clear()
    parts = sweep(config, callback_fn=callback_fn, **settings)
    assert 2 <= len(bytes_needed) <= 4
    assert max(bytes_needed) <= limit
    np.testing.assert_allclose(whole["test_loss"], parts["test_loss"], rtol=1e-5)
    # A single run is tried, whatever it takes.
    monkeypatch.setattr(module, "free_memory", lambda: 1)
    alone = sweep(config, seeds=(0,), prox=[0.1])
    np.testing.assert_allclose(
        alone["test_loss"].isel(prox=0, seed=0),
        whole["test_loss"].sel(prox=0.1, learning_rate=0.1, seed=0),
        rtol=1e-5,
    )


def test_groups_of_devices_get_equally_many_runs(base, monkeypatch):
    """With memory for two runs per group, four groups make ten runs in batches of eight and two."""
    config = replace(base, methods=("fedavg",))
    _, _, (group,) = plan_sweep(config, {"learning_rate": [0.1]}, seeds=range(10))
    devices = np.array(8 * jax.devices()[:1]).reshape(4, 2)  # Nothing runs on them.
    group = group._replace(mesh=Mesh(devices, ("runs", "clients")))
    tried = []

    def run(group, numbers, limit, callback):
        tried.append(len(numbers))
        assert len(tried) < 9  # A size that never fits would be tried for ever.
        needed = -(-len(numbers) // 4)
        if limit is not None and needed > limit:
            raise MemoryLimitError(Memory(0, needed, 0), limit)
        return xr.Dataset(coords={"run": numbers})

    monkeypatch.setattr(module, "_run", run)
    for limit, sizes in ((2, [10, 8, 2]), (0, [10, 4, 4, 2])):
        monkeypatch.setattr(module, "free_memory", lambda limit=limit: limit)
        tried.clear()
        module._finish(group, None, "000", None, lambda runs: ())
        assert tried == sizes


def test_a_run_that_diverges_does_not_change_others(base):
    config = replace(base, methods=("fedavg",), model=ModelConfig(hidden=(8,)))
    with pytest.warns(UserWarning, match="round 0, seed .*: the update is not finite"):
        rates = sweep(config, seeds=(0,), learning_rate=[0.05, 1e30])
    assert (rates["diverged"].sel(learning_rate=0.05) == -1).all()
    assert (rates["diverged"].sel(learning_rate=1e30) == 0).all()
    alone = sweep(config, seeds=(0,), learning_rate=[0.05])
    np.testing.assert_allclose(
        rates["test_loss"].sel(learning_rate=0.05), alone["test_loss"].sel(learning_rate=0.05)
    )


PROX = [0.0, 0.1, 0.2]


@pytest.fixture(scope="module")
def fedprox(base):
    return replace(base, methods=("fedprox",))


@pytest.fixture(scope="module")
def whole(fedprox):
    return sweep(fedprox, prox=PROX, runs_per_batch=2)


@pytest.fixture(scope="module")
def finished(fedprox, whole, tmp_path_factory):
    """A sweep that was interrupted before its last batch, and continued."""
    folder, calls, fit = tmp_path_factory.mktemp("sweep"), [], module.fit

    def interrupted(*arguments, **settings):
        calls.append(settings["seeds"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fit(*arguments, **settings)

    with mock.patch.object(module, "fit", interrupted):
        with pytest.raises(KeyboardInterrupt):
            sweep(fedprox, folder=folder, prox=PROX, runs_per_batch=2)
        again = sweep(fedprox, folder=folder, prox=PROX, runs_per_batch=2)
    assert len(calls) == 4
    np.testing.assert_array_equal(whole["test_loss"], again["test_loss"])
    assert "sweep" not in again.attrs
    return folder


def test_an_interrupted_sweep_continues(fedprox, finished):
    assert (finished / "report.html").exists()
    before = results.open(finished)
    again = sweep(fedprox, folder=finished, prox=PROX, runs_per_batch=2)  # Nothing is left to run.
    assert again.identical(before)


def test_a_sweep_records_what_its_results_depend_on(fedprox, finished, copied):
    record = json.loads((finished / "env.json").read_text())
    assert {"versions", "git_commit", "device", "data", "command"} <= record.keys()
    again = partial(sweep, fedprox, folder=copied, prox=PROX, runs_per_batch=2)
    again()  # Nothing has changed, and nothing is written.
    assert json.loads((copied / "env.json").read_text()) == record
    versions = record["versions"] | {"numpy": "0.1"}
    (copied / "env.json").write_text(json.dumps(record | {"versions": versions}))
    with pytest.warns(UserWarning, match=r"what the sweep started with: numpy 0\.1"):
        again()
    (copied / "env.json").write_text(json.dumps(record | {"data": "0" * 64}))
    with pytest.raises(ValueError, match="the data have changed since the sweep started"):
        again()
    (copied / "env.json").write_text("{")
    with pytest.warns(UserWarning, match=r"env\.json is missing or damaged"):
        again()


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def test_the_folder_of_another_sweep_is_refused(fedprox, whole, copied):
    again = partial(sweep, fedprox, folder=copied, runs_per_batch=2)
    with pytest.raises(ValueError, match=r"sweep\.json has another; use another folder"):
        again(prox=PROX[:2])
    content = (copied / "sweep.json").read_bytes()
    for damage in (b"\xff\xfe", b"[]", b"{}", content[:-9], content + b" "):
        (copied / "sweep.json").write_bytes(damage)
        with pytest.raises(ValueError, match=r"sweep\.json has another or is damaged"):
            again(prox=PROX)
    # Without it, batches are still known.
    (copied / "sweep.json").unlink()
    with pytest.raises(ValueError, match=r"000-00000.nc': expected runs of this sweep"):
        again(prox=PROX[:2])
    (copied / "sweep.json").write_bytes(content)
    foreign = copied / "000-00002.nc"
    whole.to_netcdf(foreign, engine="h5netcdf")
    with pytest.raises(ValueError, match=rf"{foreign.name}': expected runs of this sweep"):
        again(prox=PROX)


@pytest.mark.parametrize("changed", ["code", "data", "JAX"])
def test_a_sweep_of_other_code_or_data_is_refused(changed, fedprox, copied, monkeypatch):
    """Finished batches would be those of the former code or data."""
    before = {path: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    if changed == "code":
        method = METHODS["fedprox"]._replace(selector=FromLocals)
        monkeypatch.setitem(METHODS, "fedprox", method)
        difference = "selector"
    elif changed == "data":
        load = data.load

        def edited(*arguments, **settings):
            federation = load(*arguments, **settings)
            features = np.array(federation.train.features)
            features[0] += 1
            return federation._replace(train=federation.train._replace(features=features))

        monkeypatch.setattr(data, "load", edited)
        difference = "data.train.features"
    else:
        settings = {"JAX_THREEFRY_PARTITIONABLE": "other"}
        monkeypatch.setattr(fingerprint, "numeric_settings", lambda: settings)
        difference = "JAX_"
    with pytest.raises(ValueError, match=rf"sweep\.json has another with .*{difference}.*, now"):
        sweep(fedprox, folder=copied, prox=PROX, runs_per_batch=2)
    assert before == {path: path.read_bytes() for path in before}


class FromLocals(selectors.Uniform):
    """Selector whose code is not installed."""

    def select(self, key, state, context):
        return super().select(jax.random.fold_in(key, 1), state, context)


def test_the_folder_of_a_run_is_refused(fedprox, tmp_path):
    folder = RunFolder.create(presets.resolve(replace(fedprox, output=str(tmp_path))), "own").path
    before = sorted(folder.iterdir())
    with pytest.raises(ValueError, match="expected the folder of a sweep, not a run"):
        sweep(fedprox, folder=folder, prox=PROX)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("inside", ["", "deep/er", "../link"])
@pytest.mark.parametrize("command", ["run", "sweep prox=0,1", "benchmark", "maximize exemplars"])
def test_no_command_writes_into_a_run_or_a_sweep(command, inside, fedprox, tmp_path, capsys):
    made = RunFolder.create(presets.resolve(replace(fedprox, output=str(tmp_path))), "own").path
    (tmp_path / "link").symlink_to(made)
    before = sorted(tmp_path.rglob("*"))
    options = [] if command.startswith(("b", "m")) else ["--methods=fedprox", "--data.clients=4"]
    assert main([*command.split(), *options, "--output", str(made / inside)]) == 2
    assert f"expected a folder outside of the run '{made}'" in capsys.readouterr().err
    (made / "config.json").rename(made / "sweep.json")
    assert main([*command.split(), *options, "--output", str(made / inside / "new")]) == 2
    assert f"expected a folder outside of the sweep '{made}'" in capsys.readouterr().err
    (made / "sweep.json").rename(made / "config.json")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_sweep_describes_its_folder_once_it_has_locked_it(fedprox, tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="is used by another process"):
        sweep(fedprox, folder=tmp_path, prox=PROX)
    assert not (tmp_path / "sweep.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lamda": [1.0]}, "lamda.*did you mean 'lam'"),
        ({"lam": []}, r"lam=\[\].*one or more"),
        ({"lam": [0.1, 0.1]}, "different"),
        ({"lam": [0.1, -1.0]}, "lam=-1.0"),
        ({"learning_rate": [-0.1]}, "learning_rate=-0.1"),
        ({"alpha": [0.1]}, "alpha"),
        ({"lam": [0.1], "selector.lam": [0.2]}, "lam, selector.lam: expected each setting once"),
        ({"mu": [1.0]}, "mu: expected a setting that one of subtrunc, fedprox uses"),
        ({"lam": [0.1], "runs_per_batch": 0}, "runs_per_batch=0"),
    ],
)
def test_invalid_settings_are_rejected_before_compilation(base, settings, message):
    with pytest.raises(ValueError, match=message):
        sweep(base, **settings)
