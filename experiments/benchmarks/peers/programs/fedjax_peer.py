"""Federated averaging with FedJAX, on its own loop over a jitted step; run by its own Python."""

from functools import partial

import fedjax
import fedjax_characters
import jax
import numpy as np
from jax_networks import NETWORKS, loss, make_accuracy, parameters
from workloads import serve


def make(workload, path):
    arrays = dict(np.load(path))
    kind = fedjax_characters.make if workload.network == "char_lstm" else images
    start, gradient, features, labels, accuracy, *loss_of = kind(workload, arrays)
    data = fedjax.InMemoryFederatedData(
        {
            number: {"x": features[rows], "y": labels[rows]}
            for number, rows in enumerate(arrays["parts"])
        }
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, workload.cohort_size, seed=0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient,
        client_optimizer=fedjax.optimizers.sgd(workload.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch_size, num_epochs=None, num_steps=workload.steps
        ),
    )
    state = algorithm.init(start)

    def train():
        nonlocal state
        for _ in range(workload.rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        if workload.evaluation:
            accuracy(state.params)
        jax.block_until_ready(state.params)

    return train, *(lambda f=f: f(state.params) for f in (accuracy, *loss_of))


def images(workload, arrays):
    """Parameters, gradient, images, labels and accuracy of a network for images."""
    network = NETWORKS[workload.network]

    def gradient(layers, batch, key):
        return jax.grad(partial(loss, network))(layers, batch["x"], batch["y"], key)

    pixels = arrays["train_x"].astype(np.float32)
    accuracy = make_accuracy(network, arrays)
    return parameters(arrays), gradient, pixels, arrays["train_y"], accuracy


serve(make)
