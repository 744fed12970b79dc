"""The choice of the implementation of a convolution.

Inside ``lax.scan`` (local steps) the gradient of XLA's convolution is 10 to 100 times slower on a
CPU, and inside ``vmap`` over the parameters of each client it is a grouped convolution on every
device. So on a CPU a convolution is a matrix product:

* `tiles` of images times a banded matrix of the kernel, for any layer;
* `winograd`, if it saves most of the multiplications;
* square `blocks` of images, for a narrow layer with ReLU and max-pooling.

On a TPU such a layer is a product of `rows` of images, up to a width. Otherwise an accelerator uses
the `native` convolution if all examples share the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_fair.models.conv import blocks, native, pooling, rows, tiles, winograd
from fedjax_fair.models.conv.geometry import Padding, Pair
from fedjax_fair.numerics import target

__all__ = ["choose"]


def choose(
    x: Array, kernel: Array, strides: Pair, padding: Padding, relu_pool: bool
) -> Callable[..., Array]:
    """Chooses the fastest implementation of a layer on the `target`, by shapes and types.

    Args:
        x: Images ``[batch, height, width, in]``.
        kernel: Kernel ``[kh, kw, in, out]``.
        strides: Steps between windows.
        padding: Zeros before and after rows and columns.
        relu_pool: Whether a bias, ReLU and max-pooling follow.

    Returns:
        A function of ``(x, kernel)``, and of ``bias`` if ``relu_pool``, with a gradient.
    """
    here, sizes = target.current(), {"strides": strides, "padding": padding}
    # Six channels leave 122 of 128 lanes of a TPU empty; as products of rows, a step of LeNet takes
    # a seventh of the cycles that its compiler estimates. On a GPU nothing was measured.
    if here.platform == "tpu" and relu_pool and rows.is_faster(x, kernel, **sizes):
        return partial(rows.pooled, padding=padding)
    # Blocks halve the time of a step of LeNet.
    if here.is_cpu and relu_pool and blocks.is_faster(x, kernel, **sizes):
        forward = partial(blocks.in_chunks, padding=padding)
        return _differentiable(forward, partial(blocks.vjp_in_chunks, padding=padding))
    if not here.is_cpu:
        convolve, vjp = partial(native.convolve, **sizes), partial(native.vjp, **sizes)
    # 1.2 to 2.2 times as fast on one core with gradients, with ten times the rounding errors.
    elif winograd.is_faster(x, kernel, **sizes):
        convolve = partial(winograd.in_chunks, padding=padding)
        vjp = partial(winograd.vjp_in_chunks, padding=padding)
    else:
        convolve, vjp = partial(tiles.in_chunks, **sizes), partial(tiles.vjp_in_chunks, **sizes)
    return _differentiable(*(_with_relu_pool if relu_pool else _alone)(convolve, vjp))


def _alone(convolve: Callable, vjp: Callable) -> tuple[Callable, Callable]:
    return (
        lambda x, kernel: (convolve(x, kernel), {}),
        lambda x, kernel, _residuals, cotangent: vjp(x, kernel, cotangent),
    )


def _with_relu_pool(convolve: Callable, vjp: Callable) -> tuple[Callable, Callable]:
    # Bias and ReLU commute with max-pooling, after which they have a quarter of the elements.
    if target.current().platform == "tpu":
        pool, vjp_of_pool = pooling.windows_max, pooling.vjp_of_windows
    else:
        pool, vjp_of_pool = pooling.max_pool, pooling.shared_by_largest

    def forward(x, kernel, bias):
        y = convolve(x, kernel)
        return jax.nn.relu(pool(y) + bias.reshape(1, 1, 1, -1)), {"convolved": y}

    def backward(x, kernel, bias, residuals, cotangent):
        y = residuals["convolved"]
        largest = pool(y)
        by_largest = jnp.where(largest + bias.reshape(1, 1, 1, -1) > 0, cotangent, 0)
        by_y = vjp_of_pool(y, largest, by_largest)
        return *vjp(x, kernel, by_y), by_largest.sum(axis=(0, 1, 2))

    return forward, backward


# A custom gradient cannot be differentiated twice in reverse mode.
def _differentiable(forward: Callable, backward: Callable) -> Callable[..., Array]:
    """Makes a layer of its two directions.

    Args:
        forward: ``forward(*operands) -> (outputs, residuals)``, with residuals by name.
        backward: ``backward(*operands, residuals, cotangent)``, the gradients by operands.
    """

    @jax.custom_vjp
    def layer(*operands):
        return forward(*operands)[0]

    def save(*operands):
        y, residuals = forward(*operands)
        return y, (operands, residuals)

    layer.defvjp(save, lambda saved, cotangent: backward(*saved[0], saved[1], cotangent))
    return layer
