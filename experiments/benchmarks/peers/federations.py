"""The data of a workload as one file that every program can read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.peers.networks import CHARACTERS, NETWORKS
from experiments.benchmarks.peers.programs.shared.workloads import Workload
from fedjax_fair.roles import Model

__all__ = ["initial_layers", "write"]

_SETS = {"lenet": "mnist", "cnn": "cifar10", "resnet18": "cifar10"}
# pfl's benchmark evaluates all 10,000 images after every 10 rounds. A repetition is 2 rounds and a
# fifth of the images. ResNet-18 would need a minute for all.
_TEST_IMAGES = {"cnn": 2000, "resnet18": 1000}
# Of each client: about the mean of Shakespeare's roles, and their length in preset shakespeare.
_WINDOWS, _TEST_WINDOWS, _LENGTH = 140, 30, 40


def write(workload: Workload, file: Path, tfds_dir: str | None) -> None:
    """Writes examples, labels, the examples of each client, and the initial parameters.

    Examples are assigned to clients at random, equally many to each. The layers of the network are
    numbered in the order of Flax's variables.

    Args:
        workload: The workload.
        file: The file to write, ``.npz``.
        tfds_dir: Folder of prepared image data sets, for workloads with images.
    """
    if workload.network == "char_lstm":
        data = _random_text(workload.clients)
    else:
        data = ff.data.load(_SETS[workload.network], data_dir=tfds_dir)
    train, test = data.train, data.test
    tested = slice(_TEST_IMAGES.get(workload.network))
    owned = np.random.default_rng(0).permutation(len(train.labels))
    size = len(train.labels) // workload.clients
    arrays: dict[str, Any] = {
        "train_x": train.features,
        "train_y": train.labels,
        "parts": owned[: workload.clients * size].reshape(workload.clients, size).astype(np.int32),
        "test_x": test.features[tested],
        "test_y": test.labels[tested],
    }
    model, key = NETWORKS[workload.network](), jax.random.key(0)
    np.savez(file, **arrays, **initial_layers(model, key, jnp.asarray(train.features[:1])))


def _random_text(clients: int) -> SimpleNamespace:
    """Draws windows of a Markov chain of characters, in which a few often follow each other."""
    rng = np.random.default_rng(1)
    following = rng.dirichlet(np.full(CHARACTERS, 0.05), CHARACTERS).cumsum(axis=1)
    total = clients * (_WINDOWS + _TEST_WINDOWS)
    text = np.empty((total, _LENGTH + 1), np.int32)
    text[:, 0] = rng.integers(CHARACTERS, size=total)
    for position in range(_LENGTH):
        drawn = rng.uniform(size=(total, 1)) > following[text[:, position]]
        text[:, position + 1] = np.minimum(drawn.sum(axis=1), CHARACTERS - 1)
    train, test = np.split(text, [clients * _WINDOWS])
    return SimpleNamespace(
        **{
            name: SimpleNamespace(features=part[:, :-1], labels=part[:, 1:])
            for name, part in {"train": train, "test": test}.items()
        }
    )


def initial_layers(model: Model, key: jax.Array, examples: jax.Array) -> dict[str, Any]:
    """Returns initial parameters by the number and the kind of their layer."""
    params = jax.jit(model.init)(key, examples).params
    leaves = [(path[:-1], path[-1].key, leaf) for path, leaf in jax.tree.leaves_with_path(params)]
    layers = list(dict.fromkeys(layer for layer, _, _ in leaves))
    return {
        f"layer{layers.index(layer):02d}.{kind}": np.asarray(leaf) for layer, kind, leaf in leaves
    }
