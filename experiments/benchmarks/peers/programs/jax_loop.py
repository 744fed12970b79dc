"""Federated averaging as one writes it first in JAX: a Python loop around a jitted step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax_networks import NETWORKS, loss, make_accuracy, parameters
from workloads import serve


def make(workload, path):
    arrays = dict(np.load(path))
    features, labels = jnp.asarray(arrays["train_x"]), jnp.asarray(arrays["train_y"])
    network = NETWORKS[workload.network]
    accuracy = make_accuracy(network, arrays)
    rng, layers = np.random.default_rng(0), parameters(arrays)

    @jax.jit
    def step(layers, features, labels, rows, key):
        x = features[rows].astype(jnp.float32)
        slope = jax.grad(partial(loss, network))(layers, x, labels[rows], key)
        return jax.tree.map(lambda w, g: w - workload.learning_rate * g, layers, slope)

    def train_client(layers, part, key):
        orders = [
            rng.permutation(part)
            for _ in range(-(-workload.steps * workload.batch_size // len(part)))
        ]
        order = np.concatenate(orders).astype(np.int32)
        for number in range(workload.steps):
            rows = order[number * workload.batch_size :][: workload.batch_size]
            layers = step(layers, features, labels, rows, jax.random.fold_in(key, number))
        return layers

    def train():
        nonlocal layers
        for _ in range(workload.rounds):
            chosen = rng.choice(workload.clients, workload.cohort_size, replace=False)
            keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), len(chosen))
            trained = [
                train_client(layers, arrays["parts"][client], key)
                for client, key in zip(chosen, keys, strict=True)
            ]
            layers = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trained)
        if workload.evaluation:
            accuracy(layers)
        jax.block_until_ready(layers)

    return train, lambda: accuracy(layers)


serve(make)
