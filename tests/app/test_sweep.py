"""Sweeps: results of single runs with few compilations."""

import importlib
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from jax.sharding import Mesh

from fedjax_fair import data, simulate
from fedjax_fair.app import presets
from fedjax_fair.app.build import build
from fedjax_fair.app.config import Config, ModelConfig
from fedjax_fair.app.sweep import plan_sweep, sweep
from fedjax_fair.training.fit import Callback, MemoryLimitError, fit
from fedjax_fair.training.memory import Memory

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
    return fit(round, experiment.data, rounds=4, seeds=(seed,), eval_every=2, train_loss=False)


def test_a_sweep_equals_single_runs(base):
    together = sweep(base, lam=[0.0, 0.5, 2.0], learning_rate=[0.03, 0.1])
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
        base, methods=("fedavg",), communication=replace(base.communication, clipping_norm=0.01)
    )
    config = replace(config, aggregator=replace(base.aggregator, weights="uniform"))
    assert not module._is_traced(config, module._axis(config, "dropout", [0.0, 0.5]))
    runs = sweep(config, seeds=(0,), noise_multiplier=[0.0, 5.0])
    quiet, loud = runs["test_loss"].mean("client").isel(algorithm=0, seed=0, round=-1).values
    assert quiet != loud


def test_unused_settings_are_run_once(base, monkeypatch):
    fit_batch, sizes = module.fit_batch, []

    def counted(*arguments, **settings):
        sizes.append(len(settings["seeds"]))
        return fit_batch(*arguments, **settings)

    monkeypatch.setattr(module, "fit_batch", counted)
    config = replace(base, methods=("subtrunc", "unionfl", "q_fedavg"))
    runs = sweep(config, seeds=(0,), lam=[0.1, 0.2], mu=[1.0, 2.0, 3.0], learning_rate=[0.05, 0.1])
    assert sizes == [4, 6, 2]
    assert runs["test_loss"].notnull().all()


def test_numeric_settings_share_a_compilation(base, monkeypatch):
    traced = []
    run = simulate.run
    monkeypatch.setattr(simulate, "run", lambda *a, **k: traced.append(1) or run(*a, **k))
    config = replace(base, methods=("subtrunc",))
    sweep(config, lam=[0.1, 0.2, 0.3], prox=[0.0, 0.1], b=[1.0, 2.0])
    assert len(traced) == 1
    traced.clear()
    both = sweep(config, cohort_size=[2, 3], lam=[0.1, 0.2])
    assert len(traced) == 2
    assert both.sizes["cohort_size"] == 2
    assert np.isnan(both["cohort_clients"].sel(cohort_size=2, slot=2)).all()


def test_data_is_loaded_once(base, monkeypatch):
    load, read = data.load, []
    monkeypatch.setattr(data, "load", lambda *a, **k: read.append(1) or load(*a, **k))
    sweep(replace(base, methods=("fedavg",)), seeds=(0,), cohort_size=[2, 3])
    assert len(read) == 1


def test_batches_do_not_change_results(base, tmp_path):
    config = replace(base, methods=("subtrunc",), data=replace(base.data, partition_per_seed=True))
    whole = sweep(config, lam=[0.0, 1.0, 2.0], folder=tmp_path)
    assert whole["train_examples"].dims == ("seed", "client", "class")
    assert (tmp_path / "report.html").exists()
    parts = sweep(config, lam=[0.0, 1.0, 2.0], runs_per_batch=4)
    np.testing.assert_allclose(whole["test_loss"], parts["test_loss"], rtol=1e-5)
    assert (whole["train_examples"].sel(seed=0) != whole["train_examples"].sel(seed=5)).any()


def test_batches_fit_into_memory(base, monkeypatch):
    config = replace(base, methods=("fedprox",))
    settings: Any = {"prox": [0.0, 0.1, 0.2], "learning_rate": [0.05, 0.1]}
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
        rates = sweep(config, learning_rate=[0.05, 1e30])
    assert (rates["diverged"].sel(learning_rate=0.05) == -1).all()
    assert (rates["diverged"].sel(learning_rate=1e30) == 0).all()
    alone = sweep(config, learning_rate=[0.05])
    np.testing.assert_allclose(
        rates["test_loss"].sel(learning_rate=0.05), alone["test_loss"].sel(learning_rate=0.05)
    )


def test_an_interrupted_sweep_continues(base, tmp_path, monkeypatch):
    config = replace(base, methods=("fedprox",))
    whole = sweep(config, prox=[0.0, 0.1, 0.2], runs_per_batch=2)
    runs, calls = module.fit_batch, []

    def interrupted(*arguments, **settings):
        calls.append(settings["seeds"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return runs(*arguments, **settings)

    monkeypatch.setattr(module, "fit_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(config, folder=tmp_path, prox=[0.0, 0.1, 0.2], runs_per_batch=2)
    again = sweep(config, folder=tmp_path, prox=[0.0, 0.1, 0.2], runs_per_batch=2)
    assert len(calls) == 4
    np.testing.assert_array_equal(whole["test_loss"], again["test_loss"])
    with pytest.raises(ValueError, match=r"sweep\.json has another"):
        sweep(config, folder=tmp_path, prox=[0.0, 0.1], runs_per_batch=2)
    foreign = next(iter(tmp_path.glob("000-*.nc")))
    whole.to_netcdf(foreign, engine="h5netcdf")
    with pytest.raises(ValueError, match=rf"{foreign.name}': expected runs of this sweep"):
        sweep(config, folder=tmp_path, prox=[0.0, 0.1, 0.2], runs_per_batch=2)
    (tmp_path / "sweep.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"sweep\.json has another"):
        sweep(config, folder=tmp_path, prox=[0.0, 0.1, 0.2], runs_per_batch=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lamda": [1.0]}, "lamda.*did you mean 'lam'"),
        ({"lam": []}, r"lam=\[\].*one or more"),
        ({"lam": [0.1, 0.1]}, "different"),
        ({"lam": [0.1, -1.0]}, "lam=-1.0"),
        ({"learning_rate": [-0.1]}, "learning_rate=-0.1"),
        ({"alpha": [0.1]}, "alpha"),
        ({"mu": [1.0]}, "mu: expected a setting that one of subtrunc, fedprox uses"),
        ({"lam": [0.1], "runs_per_batch": 0}, "runs_per_batch=0"),
    ],
)
def test_invalid_settings_are_rejected_before_compilation(base, settings, message):
    with pytest.raises(ValueError, match=message):
        sweep(base, **settings)
