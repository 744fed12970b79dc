"""Convolutions on a core: ``taskset -c 0 python -m experiments.benchmarks.convolutions``.

Forward and backward passes of single layers in a compiled loop: products of tiles with a banded
matrix of the kernel against Winograd's form, and separate against fused convolution, ReLU and
pooling. Prints milliseconds, and which form the library uses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks.timing import alternate, print_header, start
from fedjax_fair.models import Conv, max_pool
from fedjax_fair.models.conv import blocks, tiles, winograd

# Images, output channels, side of the kernel, padding.
LAYERS = {
    "cifar10, 32 to 64": ((10, 30, 30, 32), 64, 3, 0),
    "ResNet-18, 64 to 64": ((32, 32, 32, 64), 64, 3, 1),
    "ResNet-18, 128 to 128": ((32, 16, 16, 128), 128, 3, 1),
    "ResNet-18, 256 to 256": ((32, 8, 8, 256), 256, 3, 1),
    "ResNet-18, 512 to 512": ((32, 4, 4, 512), 512, 3, 1),
    "CIFAR-100, 192 to 384": ((10, 8, 8, 192), 384, 3, 1),
    "FEMNIST, 32 to 64": ((50, 12, 12, 32), 64, 5, 0),
    "LeNet, 6 to 16": ((50, 14, 14, 6), 16, 5, 0),
    "ResNet-18, 3 to 64": ((32, 32, 32, 3), 64, 3, 1),
}
POOLED = {
    "LeNet, 1 to 6": ((50, 32, 32, 1), 6, 5, 0),
    "LeNet, 6 to 16": ((50, 14, 14, 6), 16, 5, 0),
    "LeNet on CIFAR, 3 to 6": ((50, 32, 32, 3), 6, 5, 0),
    "FEMNIST, 1 to 32": ((32, 28, 28, 1), 32, 5, 0),
    "8 to 16": ((50, 14, 14, 8), 16, 3, 0),
    "16 to 32": ((50, 14, 14, 16), 32, 3, 0),
}
STEPS = 5


def training(form: Any, image: tuple[int, ...], features: int, side: int, padding: int):
    """Steps along both gradients of a layer, compiled, as a function without arguments."""
    edges = ((padding, padding), (padding, padding))
    banded: dict[str, Any] = {"strides": (1, 1)} if form is tiles else {}
    x = jax.random.normal(jax.random.key(0), image)
    kernel = 0.05 * jax.random.normal(jax.random.key(1), (side, side, image[3], features))

    def slopes(carry):
        outputs = form.in_chunks(*carry, padding=edges, **banded)
        return form.vjp_in_chunks(*carry, jnp.cos(outputs), padding=edges, **banded)

    return steps(slopes, (x, kernel)), winograd.is_faster(x, kernel, (1, 1), edges)


def pooled(at_once: bool, image: tuple[int, ...], features: int, side: int, padding: int):
    """The same of a layer with ReLU and pooling."""
    layer = Conv(features, (side, side), padding=padding, relu_pool=at_once)
    x = jax.random.normal(jax.random.key(0), image)
    variables: Any = layer.init(jax.random.key(1), x)

    def objective(carry):
        outputs: Any = layer.apply(*carry)
        return jnp.sum(jnp.sin(outputs if at_once else jax.nn.relu(max_pool(outputs))))

    edges = ((padding, padding), (padding, padding))
    used = blocks.is_faster(x, variables["params"]["kernel"], (1, 1), edges)
    return steps(jax.grad(objective), (variables, x)), used


def steps(slopes: Callable, start: Any) -> Callable:
    """Small steps along a gradient, in one compiled loop, as a function without arguments."""

    def step(carry, _):
        return jax.tree.map(lambda value, slope: value - 1e-6 * slope, carry, slopes(carry)), None

    return partial(jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS)[0]), start)


def main() -> None:
    options = start("Implementations of a convolution on a core", repeats=7)
    compare("banded, ms | Winograd, ms", LAYERS, training, (tiles, winograd), options.repeats)
    compare("separate, ms | fused, ms", POOLED, pooled, (False, True), options.repeats)


def compare(titles: str, layers: dict, make: Callable, forms: tuple, repeats: int) -> None:
    print_header(f"layer | images | kernel | {titles} | | used")
    for name, layer in layers.items():
        (former, _), (latter, used) = (make(form, *layer) for form in forms)
        own, other = alternate(former, latter, repeats=repeats)
        image, _, side, _ = layer
        print(
            f"| {name} | {' x '.join(map(str, image[:3]))} | {side} x {side} | "
            f"{1e3 * own.median / STEPS:.1f} | {1e3 * other.median / STEPS:.1f} | "
            f"{own.ratio_to(other):.2f} | {'yes' if used else 'no'} |"
        )


if __name__ == "__main__":
    main()
