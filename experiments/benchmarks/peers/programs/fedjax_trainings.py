"""FedAvg and FedProx with FedJAX's algorithms; run by its own Python.

FedJAX's minibatches all have the same size: they continue over the end of an epoch.
"""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from trainings import layers_of, serve, split_by_client


class Examples(fedjax.ClientDataset):
    """Examples of a client, in minibatches that are no larger than their number.

    Attributes:
        rng: Draws the seeds of the minibatches.
    """

    rng = np.random.default_rng(0)

    def shuffle_repeat_batch(self, hparams=None, **changes):
        """Draws minibatches."""
        size = min(hparams.batch_size, len(self))
        seed = int(self.rng.integers(2**31))
        return super().shuffle_repeat_batch(hparams, batch_size=size, seed=seed, **changes)


def losses(layers, batch, key):
    """Cross-entropy of each example."""
    x = batch["x"]
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    logits = jax.nn.log_softmax(x @ layers[-1]["kernel"] + layers[-1]["bias"])
    return -jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]


def gradient(layers, batch, key):
    """Gradient of the mean cross-entropy."""
    return jax.grad(lambda layers: losses(layers, batch, key).mean())(layers)


def train(arrays, settings):
    Examples.rng = np.random.default_rng(settings.seed)
    clients = [Examples({"x": x, "y": y}) for x, y in split_by_client(arrays)]
    common = {
        "client_optimizer": fedjax.optimizers.sgd(settings.learning_rate),
        "server_optimizer": fedjax.optimizers.sgd(1.0),
        "client_batch_hparams": fedjax.ShuffleRepeatBatchHParams(
            batch_size=settings.batch_size, num_epochs=None, num_steps=settings.steps
        ),
    }
    if settings.prox:
        algorithm = fedjax.algorithms.fed_prox.fed_prox(
            losses, proximal_weight=settings.prox, **common
        )
    else:
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(gradient, **common)
    jax.clear_caches()  # Each algorithm compiles anew.
    state = algorithm.init(jax.tree.map(jnp.asarray, layers_of(arrays)))
    for cohort in arrays["cohorts"]:
        key = jax.random.PRNGKey(0)  # Without dropout, nothing is drawn from it.
        state, _ = algorithm.apply(state, [(int(i), clients[i], key) for i in cohort])
    return state.params


serve(train)
