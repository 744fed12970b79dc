"""The networks in plain JAX with XLA's own convolution, for programs that bring no layers."""

import jax
import jax.numpy as jnp
import numpy as np
from workloads import TEST_BATCH


def parameters(arrays):
    """The layers of the file, in order."""
    layers = {}
    for name in sorted(key for key in arrays if key.startswith("layer")):
        layer, kind = name.split(".")
        layers.setdefault(layer, {})[kind] = jnp.asarray(arrays[name])
    return list(layers.values())


def convolve(layer, x, padding):
    names = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, layer["kernel"], (1, 1), padding, dimension_numbers=names)
    return y + layer["bias"]


def pool(x):
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def dense(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def drop(key, rate, x):
    """Dropout; without a key, nothing."""
    if key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0.0)


def lenet(layers, x, key):
    x = pool(jax.nn.relu(convolve(layers[0], x, ((2, 2), (2, 2)))))
    x = pool(jax.nn.relu(convolve(layers[1], x, "VALID")))
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(dense(layers[2], x))
    return dense(layers[4], jax.nn.relu(dense(layers[3], x)))


def cnn(layers, x, key):
    keys = (None, None) if key is None else jax.random.split(key)
    x = jax.nn.relu(convolve(layers[0], x, "VALID"))
    x = drop(keys[0], 0.25, pool(jax.nn.relu(convolve(layers[1], x, "VALID"))))
    x = jax.nn.relu(dense(layers[2], x.reshape(x.shape[0], -1)))
    return dense(layers[3], drop(keys[1], 0.5, x))


NETWORKS = {"lenet": lenet, "cnn": cnn}


def loss(network, layers, x, y, key):
    """Mean cross-entropy of a batch in training."""
    logits = jax.nn.log_softmax(network(layers, x / jnp.float32(255), key))
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], axis=1))


def make_accuracy(network, arrays):
    """A function from layers to the fraction of test images that they classify correctly."""
    correct = jax.jit(lambda layers, x, y: (network(layers, x / 255, None).argmax(1) == y).sum())
    test_x, test_y = arrays["test_x"].astype(np.float32), arrays["test_y"]
    starts = range(0, len(test_y), TEST_BATCH)

    def accuracy(layers):
        chunks = (slice(start, start + TEST_BATCH) for start in starts)
        return sum(int(correct(layers, test_x[c], test_y[c])) for c in chunks) / len(test_y)

    return accuracy
