"""Programs of other simulators start from the same network and the same clients as ours."""

import importlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.peers import environment, federations, interpreters
from experiments.benchmarks.peers.networks import NETWORKS
from experiments.benchmarks.peers.ours import started
from experiments.benchmarks.peers.programs.shared.workloads import WORKLOADS


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
