"""Federations of the benchmark as files for other libraries, and the same trainings here."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

import fedjax_fair as ff
from experiments.benchmarks.peers.federations import initial_layers
from experiments.benchmarks.peers.ours import started
from experiments.benchmarks.peers.programs.shared.trainings import Settings
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.roles import Cohort, Model, Selector

__all__ = ["GivenCohorts", "client_accuracies", "train", "write"]

Arrays = dict[str, np.ndarray]

_STREAM = 20
"""Stream of the random cohorts, which differs from those of the partition."""


class GivenCohorts(Selector):
    """Selects given clients in each round. The cohort has uniform weights.

    Args:
        cohorts: Clients of each round, ``[rounds, cohort]``.
    """

    cohorts: Int[Array, "rounds cohort"]

    def select(self, key, state, context):
        """Returns the cohort of the round."""
        clients = self.cohorts[context.round]
        size = clients.shape[0]
        return Cohort(clients, jnp.full(size, 1 / size, jnp.float32)), state, {}


def write(federation: str, seed: int, file: Path) -> None:
    """Writes examples, partition, initial model and cohorts of one seed.

    Features are vectors of floats, images scaled as `models.mlp` scales them.

    Args:
        federation: Name of a federation whose model is a multilayer perceptron.
        seed: Seed of the partition, the initial model and the cohorts.
        file: The file to write, ``.npz``.
    """
    config = FEDERATIONS[federation].config
    data = FEDERATIONS[federation].load(None, (seed,)).seen
    features = np.asarray(data.train.features)
    if features.dtype == np.uint8:
        features = features.astype(np.float32) / 255
    rng = np.random.default_rng((seed, _STREAM))
    cohorts = [
        rng.choice(data.num_clients, config.selector.cohort_size, replace=False)
        for _ in range(config.training.rounds or 0)
    ]
    arrays: dict[str, Any] = {
        "features": features.reshape(len(features), -1),
        "labels": np.asarray(data.train.labels),
        "cohorts": np.array(cohorts, np.int32),
    }
    for prefix, part in {"": data.train, "test_": data.test}.items():
        sizes = np.asarray(part.sizes)[0]
        arrays[f"{prefix}sizes"] = sizes
        arrays[f"{prefix}rows"] = np.asarray(part.order)[0, : sizes.sum()]
    model = ff.models.mlp(data.num_classes, config.model.hidden or ())
    layers = initial_layers(model, jax.random.key(seed), jnp.asarray(arrays["features"][:1]))
    np.savez(file, **arrays, **layers)


def train(arrays: Arrays, settings: Settings) -> Arrays:
    """Returns the layers after the last round, trained with this library."""
    model, data = _model(arrays), _data(arrays)
    round = ff.Round(
        model,
        GivenCohorts(jnp.asarray(arrays["cohorts"])),
        ff.solvers.SGD(
            settings.learning_rate, settings.batch_size, steps=settings.steps, prox=settings.prox
        ),
        ff.aggregators.Mean(weights="num_examples"),
    )
    layers = {name: values for name, values in arrays.items() if name.startswith("layer")}
    key = jax.random.key(settings.seed)
    trained = _run(round, key, data, layers, num_rounds=len(arrays["cohorts"]))
    leaves = jax.tree.leaves(trained.params)
    return dict(zip(sorted(layers), map(np.asarray, leaves), strict=True))


@partial(jax.jit, static_argnames="num_rounds")
def _run(round, key, data, layers, num_rounds):
    state = round.init(key, data)
    state = state._replace(variables=started(state.variables, layers))
    return ff.run(round, state, data, num_rounds)[0].variables


def client_accuracies(arrays: Arrays, layers: Arrays) -> np.ndarray:
    """Returns the test accuracy of each client, ``[clients]``."""
    model, data = _model(arrays), _data(arrays)
    return np.asarray(_accuracies(model, layers, data.test))


@partial(jax.jit, static_argnums=0)
def _accuracies(model, layers, examples):
    variables = model.init(jax.random.key(0), examples.features[:1])
    return client_performance(model, started(variables, layers), examples).accuracy


def _model(arrays: Arrays) -> Model:
    """Returns the multilayer perceptron whose layers the arrays are."""
    widths = [len(arrays[name]) for name in sorted(arrays) if name.endswith(".bias")]
    return ff.models.mlp(widths[-1], hidden=widths[:-1])


def _data(arrays: Arrays) -> ff.data.FederatedData:
    """Returns the federated dataset of the arrays."""

    def parts(prefix: str) -> list[np.ndarray]:
        return np.split(arrays[f"{prefix}rows"], np.cumsum(arrays[f"{prefix}sizes"])[:-1])

    return ff.data.from_arrays(
        arrays["features"],
        arrays["labels"],
        parts(""),
        test_features=arrays["features"],
        test_labels=arrays["labels"],
        test_client_indices=parts("test_"),
        num_classes=len(arrays[max(name for name in arrays if name.endswith(".bias"))]),
    )
