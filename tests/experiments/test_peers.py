"""Programs of other simulators start from the same network and the same clients as ours."""

import importlib
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.peers import environment, federations, interpreters
from experiments.benchmarks.peers.networks import CHARACTERS, NETWORKS
from experiments.benchmarks.peers.ours import started
from experiments.benchmarks.peers.programs.shared.workloads import WORKLOADS
from fedjax_fair.app.settings.presets import PRESETS


@pytest.fixture
def jax_networks(monkeypatch):
    """What programs import from the folder that they share."""
    monkeypatch.syspath_prepend(str(environment.PROGRAMS / "shared"))
    return importlib.import_module("jax_networks")


@pytest.fixture
def random_images(monkeypatch):
    """A tiny stand-in for the real data sets."""

    def load(name, data_dir):
        shape = (28, 28, 1) if name == "mnist" else (32, 32, 3)
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (2000, *shape), dtype=np.uint8)
        part = SimpleNamespace(features=images, labels=rng.integers(0, 10, 2000, dtype=np.int32))
        return SimpleNamespace(train=part, test=part)

    monkeypatch.setattr(federations.ff.data, "load", load)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_programs_start_from_the_network_that_ours_is(name, random_images, jax_networks, tmp_path):
    workload, file = WORKLOADS[name], tmp_path / "data.npz"
    federations.write(workload, file, "unused")
    arrays = dict(np.load(file))
    model, images = NETWORKS[workload.network](), jnp.asarray(arrays["test_x"][:7])
    other = jax.jit(model.init)(jax.random.key(1), images)
    variables = started(other, arrays)
    logits, _ = jax.jit(partial(model.apply, train=False, key=None))(*variables, images)
    # The program is written as its authors would, who broadcast silently.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        network = partial(jax_networks.NETWORKS[workload.network], key=None)
        scaled = np.asarray(images, np.float32) / 255
        theirs = jax.jit(network)(jax_networks.parameters(arrays), scaled)
    np.testing.assert_allclose(theirs, logits, rtol=1e-4, atol=1e-5)
    assert np.ptp(logits) > 0.01


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_every_client_owns_equally_many_images_and_none_is_shared(name, random_images, tmp_path):
    federations.write(WORKLOADS[name], tmp_path / "data.npz", "unused")
    parts = np.load(tmp_path / "data.npz")["parts"]
    assert parts.shape == (WORKLOADS[name].clients, 2000 // WORKLOADS[name].clients)
    assert len(np.unique(parts)) == parts.size


def test_every_program_has_a_file_and_pins_its_versions():
    from experiments.benchmarks.peers.__main__ import PEERS

    assert interpreters.ROWS.keys() <= set(PEERS["clients1000"])
    peers = {peer for peers in PEERS.values() for peer in peers} - interpreters.ROWS.keys()
    for peer in peers | {"blazefl_peer"}:
        assert (environment.PROGRAMS / f"{peer}.py").exists()
    for file in environment.PROGRAMS.glob("*.txt"):
        assert all("==" in line for line in file.read_text().splitlines()), file


def test_programs_import_nothing_of_ours():
    for file in [*environment.PROGRAMS.glob("*.py"), *environment.PROGRAMS.glob("shared/*.py")]:
        assert "fedjax_fair" not in Path(file).read_text(), file


def test_cohorts_of_all_sizes_train_for_one_epoch_of_the_same_clients():
    cohorts = {size: WORKLOADS[f"clients{size}"] for size in (10, 100, 1000)}
    for size, workload in cohorts.items():
        assert (workload.cohort_size, workload.clients) == (size, 1000)
        assert workload.steps * workload.batch_size == 60_000 // workload.clients
        assert workload.examples >= 6_000  # Enough to be timed.


@pytest.fixture
def only_rows(monkeypatch, tmp_path):
    """Runs the comparison of some peers without programs or data, and returns who took part."""
    module = importlib.import_module("experiments.benchmarks.peers.__main__")
    compared = []

    def compare(name, peers, *_):
        compared.extend(peers)
        return {}

    monkeypatch.setattr(module.federations, "write", lambda *_: None)
    for function in ("table", "record", "_check_close"):
        monkeypatch.setattr(module, function, lambda *_: None)
    monkeypatch.setattr(module, "compare", compare)
    for row in interpreters.ROWS.values():
        monkeypatch.delenv(row.variable, raising=False)

    def run(*peers):
        monkeypatch.setattr(sys, "argv", ["peers", "--only", "clients10", "--peers", *peers])
        module.main()
        return compared

    return run


def test_a_row_without_its_python_is_skipped_and_the_reason_printed(only_rows, capsys):
    assert only_rows("pytorch_loop", *interpreters.ROWS) == ["pytorch_loop"]
    printed = capsys.readouterr().out
    for peer, row in interpreters.ROWS.items():
        assert f"{peer}: skipped, because {row.variable} is not set" in printed
    assert "a free-threaded CPython, 3.14 or newer" in printed


@pytest.mark.parametrize("variable", ["PYTHON314T", "PYTHON314"])
@pytest.mark.parametrize("path", ["/no/such/python", sys.executable])
def test_a_wrong_python_ends_in_one_line(only_rows, variable, path, monkeypatch):
    if path == sys.executable and sys.version_info >= (3, 14):
        pytest.skip("this Python may be the right one")
    monkeypatch.setenv(variable, path)
    with pytest.raises(SystemExit) as stopped:
        only_rows(*interpreters.ROWS)
    message = str(stopped.value)
    assert message.startswith(f"{variable}={path}: expected the path of a")
    assert "\n" not in message


@pytest.mark.parametrize("peer", interpreters.ROWS)
@pytest.mark.parametrize("answer", ["True True", "True False", "False False", "no Python"])
def test_rows_take_a_python_that_is_new_and_free_threaded_or_not(
    peer, answer, tmp_path, monkeypatch
):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {answer}\n")
    python.chmod(0o700)
    row = interpreters.ROWS[peer]
    assert row.variable == ("PYTHON314T" if peer == "blazefl_threads" else "PYTHON314")
    assert row.free_threaded == (peer == "blazefl_threads")
    monkeypatch.setenv(row.variable, str(python))
    if answer == f"True {row.free_threaded}":
        assert interpreters.find_interpreter(peer) == str(python)
    else:
        with pytest.raises(ValueError, match=f"{row.variable}=.*: expected the path of"):
            interpreters.find_interpreter(peer)


@pytest.mark.parametrize("peer", interpreters.ROWS)
def test_the_python_named_runs_its_row(peer):
    row = interpreters.ROWS[peer]
    if not os.environ.get(row.variable):
        pytest.skip(f"{row.variable} is not set")
    assert interpreters.find_interpreter(peer) == os.environ[row.variable]


def test_environments_of_two_pythons_have_two_folders(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **_: made.append(command))
    monkeypatch.setattr(environment.Path, "touch", lambda path: None)
    requirements = tmp_path / "peer.txt"
    requirements.write_text("torch==2.13.0")
    pythons = [environment.environment(requirements, tmp_path, python) for python in ("a", "b")]
    assert pythons[0] != pythons[1]
    assert [command[0] for command in made[::2]] == ["a", "b"]
    assert [command[0] for command in made[1::2]] == pythons


def test_random_text_has_windows_of_the_sizes_of_the_preset(tmp_path):
    workload, file = WORKLOADS["shakespeare"], tmp_path / "data.npz"
    federations.write(workload, file, None)
    arrays = dict(np.load(file))
    config = PRESETS["shakespeare"].config
    assert (workload.clients, workload.cohort_size) == (
        config.data.clients,
        config.selector.cohort_size,
    )
    assert workload.batch_size * workload.steps == arrays["parts"].shape[1]  # One epoch.
    assert arrays["train_x"].shape[1] == config.data.length
    np.testing.assert_array_equal(arrays["train_x"][:, 1:], arrays["train_y"][:, :-1])
    assert set(np.unique(arrays["train_x"])) == set(range(CHARACTERS))
    assert arrays["layer02.kernel"].shape[1] == 4 * config.model.width
    # A few characters follow each one, which a network can learn.
    pairs = np.bincount(CHARACTERS * arrays["train_x"].ravel() + arrays["train_y"].ravel())
    table = np.pad(pairs, (0, CHARACTERS**2 - len(pairs))).reshape(CHARACTERS, -1)
    assert (table.max(axis=1) / table.sum(axis=1)).mean() > 0.2
