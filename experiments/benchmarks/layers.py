"""How fast convolutions train inside a simulation: the forms of one layer, side by side.

Ten clients take twenty SGD steps each on LeNet, as ``lax.map`` or ``vmap`` over clients of
``lax.scan`` over steps, on random images. Prints examples per second and the speed relative to the
library's own form.

    python -m experiments.benchmarks.layers --batch 50 --native
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.timing import alternate, environment
from fedjax_fair.models import Conv, from_flax, max_pool

CLIENTS, STEPS = 10, 20


class PatchConv(nn.Module):
    """The textbook form: patches of the image times the kernel as a matrix."""

    features: int
    kernel_size: tuple[int, int]
    padding: str = "VALID"

    @nn.compact
    def __call__(self, x):
        """Convolves with stride 1."""
        rows, columns = (n - k + 1 for n, k in zip(x.shape[1:3], self.kernel_size, strict=True))
        offsets = np.ndindex(*self.kernel_size)
        cut = [x[:, i : i + rows, j : j + columns] for i, j in offsets]
        return nn.Dense(self.features)(jnp.concatenate(cut, axis=-1))


class LeNet(nn.Module):
    """LeNet-5 on 28 x 28 images with the given layers."""

    layer: Callable[[int, Any], Any]

    @nn.compact
    def __call__(self, x):
        """Returns logits."""
        x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
        for channels in (6, 16):
            x = self.layer(channels, x)
        x = x.reshape(x.shape[0], -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


def at_once(channels, x):
    return Conv(channels, (5, 5), padding="VALID", relu_pool=True)(x)


def apart(convolution, pool, channels, x):
    return nn.relu(pool(convolution(channels, (5, 5), padding="VALID")(x)))


def flax_pool(x):
    return nn.max_pool(x, (2, 2), strides=(2, 2))


def make_training(layer, side_by_side, images, labels):
    """The local training of all clients, compiled, as a function without arguments."""
    model = from_flax(LeNet(layer))
    variables = model.init(jax.random.key(0), images[0, 0])

    def loss(params, x, y):
        logits, _ = model.apply(params, variables.state, x, train=True, key=None)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(params, batch):
        gradient = jax.grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), None

    def client(batches):
        return jax.lax.scan(step, variables.params, batches)[0]

    over_clients = jax.vmap(client) if side_by_side else partial(jax.lax.map, client)
    return partial(jax.jit(over_clients), (images, labels))


def main():
    parser = argparse.ArgumentParser(description="Forms of a convolution in local training.")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--native", action="store_true", help="also Flax's own (slow on CPU)")
    arguments = parser.parse_args()

    images = jax.random.normal(jax.random.key(1), (CLIENTS, STEPS, arguments.batch, 28, 28, 1))
    labels = jax.random.randint(jax.random.key(2), images.shape[:3], 0, 10)
    forms = {
        "at once (ours)": at_once,
        "tiles": partial(apart, Conv, max_pool),
        "tiles, reduce_window pool": partial(apart, Conv, flax_pool),
        "patches": partial(apart, PatchConv, max_pool),
    }
    if arguments.native:
        forms["flax.linen"] = partial(apart, nn.Conv, flax_pool)
    print(environment())
    print(f"LeNet, batch {arguments.batch}: examples/s, speed relative to ours")
    for axis in ("map", "vmap"):
        trainings = [make_training(form, axis == "vmap", images, labels) for form in forms.values()]
        times = alternate(*trainings, repeats=arguments.repeats)
        for name, time in zip(forms, times, strict=True):
            rate, relative = labels.size / time.median, times[0].ratio_to(time)
            print(f"  {axis:6s}{name:28s}{rate:9,.0f}{relative:8.2f}")


if __name__ == "__main__":
    main()
