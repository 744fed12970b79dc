"""Lower bounds of local training: ``python -m experiments.benchmarks.floors``.

For each network of ``experiments.benchmarks.peers``: XLA's count of operations and bytes of a local
SGD step, the minimum time of either on this machine, and the time of the step in a compiled loop.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.peers.networks import NETWORKS
from experiments.benchmarks.timing import alternate, print_header, start
from fedjax_fair.models.conv import chunks, winograd
from fedjax_fair.roles import Model

SHAPES = {"lenet": (50, 28, 28, 1), "cnn": (10, 32, 32, 3), "resnet18": (32, 32, 32, 3)}
STEPS = {"lenet": 50, "cnn": 20, "resnet18": 2}


class Counts(NamedTuple):
    """Floating-point operations, and bytes read and written, by XLA's count."""

    operations: float
    traffic: float


def sgd_step(model: Model, params, images, labels, key):
    def loss(params):
        logits, _ = model.apply(params, {}, images, train=True, key=key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return jax.tree.map(lambda value, slope: value - 0.01 * slope, params, jax.grad(loss)(params))


def count(model: Model, shape: tuple[int, ...]) -> Counts:
    images, labels = jnp.zeros(shape, jnp.uint8), jnp.zeros(shape[0], jnp.int32)
    params = model.init(jax.random.key(0), images).params
    step = jax.jit(partial(sgd_step, model))
    # XLA counts the body of a loop once, so the loops over chunks of a batch are left out. So are
    # the multiplications that convolutions save: rates are those of a plain one.
    whole = patch.object(chunks, "CACHE", 2**62)
    plain = patch.object(winograd, "is_faster", lambda *layer: False)
    with whole, plain:
        cost: Any = step.lower(params, images, labels, jax.random.key(1)).compile().cost_analysis()
    return Counts(cost["flops"], cost["bytes accessed"])


def machine_rates(repeats: int) -> tuple[float, float]:
    """Operations a second of a matrix product, bytes a second of a sum of two arrays."""
    square = jnp.ones((2048, 2048))
    long = jnp.ones(2**26)
    product = jax.jit(lambda a: a @ a)
    add = jax.jit(lambda a, b: a + 2 * b)
    times = alternate(lambda: product(square), lambda: add(long, long), repeats=repeats)
    return 2 * 2048**3 / times[0].median, 3 * long.nbytes / times[1].median


def seconds_of_a_step(model: Model, shape: tuple[int, ...], steps: int, repeats: int) -> float:
    """Median time of a step between others in one compiled loop, on minibatches that differ."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (steps, *shape), dtype=np.uint8))
    labels = jnp.asarray(rng.integers(0, 10, (steps, shape[0]), dtype=np.int32))
    keys = jax.random.split(jax.random.key(1), steps)
    params = model.init(jax.random.key(0), images[0]).params

    @jax.jit
    def train(params, batches):
        return jax.lax.scan(lambda p, batch: (sgd_step(model, p, *batch), None), params, batches)[0]

    [times] = alternate(lambda: train(params, (images, labels, keys)), repeats=repeats)
    return times.median / steps


def main() -> None:
    about = "Where the time of local training goes"
    options = start(about, {"only": SHAPES}, only=list(SHAPES), repeats=5)
    product, traffic = machine_rates(options.repeats)
    print(f"matrix product {product / 1e9:.0f} GFLOP/s, memory {traffic / 1e9:.0f} GB/s")
    print_header(
        "| GFLOP a step | MB a step | ms by products | ms by memory | ms measured | images/s"
    )
    for network in options.only:
        model, shape = NETWORKS[network](), SHAPES[network]
        own = count(model, shape)
        seconds = seconds_of_a_step(model, shape, STEPS[network], options.repeats)
        print(
            f"| {network}, batch {shape[0]} | {own.operations / 1e9:.2f} | "
            f"{own.traffic / 1e6:.0f} | {1e3 * own.operations / product:.2f} | "
            f"{1e3 * own.traffic / traffic:.2f} | {1e3 * seconds:.2f} | "
            f"{shape[0] / seconds:,.0f} |"
        )


if __name__ == "__main__":
    main()
