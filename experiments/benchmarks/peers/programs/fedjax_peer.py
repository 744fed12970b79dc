"""Federated averaging with FedJAX, on its own loop over a jitted step; run by its own Python."""

from functools import partial

import fedjax
import jax
import numpy as np
from jax_networks import NETWORKS, loss, make_accuracy, parameters
from workloads import serve


def make(workload, path):
    arrays = dict(np.load(path))
    network = NETWORKS[workload.network]
    accuracy = make_accuracy(network, arrays)
    pixels, labels = arrays["train_x"].astype(np.float32), arrays["train_y"]
    data = fedjax.InMemoryFederatedData(
        {
            number: {"x": pixels[rows], "y": labels[rows]}
            for number, rows in enumerate(arrays["parts"])
        }
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, workload.cohort_size, seed=0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        lambda layers, batch, key: jax.grad(partial(loss, network))(
            layers, batch["x"], batch["y"], key
        ),
        client_optimizer=fedjax.optimizers.sgd(workload.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch_size, num_epochs=None, num_steps=workload.steps
        ),
    )
    state = algorithm.init(parameters(arrays))

    def train():
        nonlocal state
        for _ in range(workload.rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        if workload.evaluation:
            accuracy(state.params)
        jax.block_until_ready(state.params)

    return train, lambda: accuracy(state.params)


serve(make)
