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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_fair.models.conv import blocks, native, rows, tiles, winograd
from fedjax_fair.models.conv.geometry import Padding, Pair
from fedjax_fair.models.conv.pooling import (
    max_pool,
    shared_by_largest,
    vjp_of_windows,
    windows_max,
)
from fedjax_fair.numerics import target

__all__ = ["ConvImpl", "choose"]


class ConvImpl(NamedTuple):
    """An implementation of a layer and its gradient.

    The operands are ``(x, kernel)`` for a convolution, and ``(x, kernel, bias)`` for a convolution
    with bias, ReLU and max-pooling.

    Attributes:
        forward: ``forward(*operands) -> (outputs, residuals)``, with residuals by name.
        backward: ``backward(*operands, residuals, cotangent)``, gradients by operands.
    """

    forward: Callable[..., tuple[Array, dict[str, Array]]]
    backward: Callable[..., tuple[Array, ...]]


def choose(
    x: Array, kernel: Array, strides: Pair, padding: Padding, relu_pool: bool
) -> Callable[..., Array]:
    """Chooses the fastest implementation of a layer on the `target`.

    Args:
        x: Images ``[batch, height, width, in]``, or their shape and type.
        kernel: Kernel ``[kh, kw, in, out]``, or its shape and type.
        strides: Steps between windows.
        padding: Zeros before and after rows and columns.
        relu_pool: Whether a bias, ReLU and max-pooling follow.

    Returns:
        The layer, a function of the operands of a `ConvImpl`, with a reverse-mode gradient.
    """
    here, sizes = target.current(), {"strides": strides, "padding": padding}
    if here.platform == "tpu" and relu_pool and rows.is_faster(x, kernel, strides, padding):
        return partial(rows.pooled, padding=padding)
    if not here.is_cpu:
        pair = partial(native.convolve, **sizes), partial(native.vjp, **sizes)
    elif relu_pool and blocks.is_faster(x, kernel, strides, padding):
        forward = partial(blocks.in_chunks, padding=padding)
        return _differentiable(ConvImpl(forward, partial(blocks.vjp_in_chunks, padding=padding)))
    elif winograd.is_faster(x, kernel, strides, padding):
        pair = (
            partial(winograd.in_chunks, padding=padding),
            partial(winograd.vjp_in_chunks, padding=padding),
        )
    else:
        pair = partial(tiles.in_chunks, **sizes), partial(tiles.vjp_in_chunks, **sizes)
    return _differentiable(_with_relu_pool(*pair) if relu_pool else _alone(*pair))


def _alone(convolve: Callable, vjp: Callable) -> ConvImpl:
    def forward(x, kernel):
        return convolve(x, kernel), {}

    def backward(x, kernel, _residuals, cotangent):
        return vjp(x, kernel, cotangent)

    return ConvImpl(forward, backward)


def _with_relu_pool(convolve: Callable, vjp: Callable) -> ConvImpl:
    # Bias and ReLU commute with max-pooling, after which they have a quarter of the elements.
    if target.current().platform == "tpu":
        pool, vjp_of_pool = windows_max, vjp_of_windows
    else:
        pool, vjp_of_pool = max_pool, shared_by_largest

    def forward(x, kernel, bias):
        y = convolve(x, kernel)
        return jax.nn.relu(pool(y) + bias.reshape(1, 1, 1, -1)), {"convolved": y}

    def backward(x, kernel, bias, residuals, cotangent):
        y = residuals["convolved"]
        largest = pool(y)
        by_largest = jnp.where(largest + bias.reshape(1, 1, 1, -1) > 0, cotangent, 0)
        by_y = vjp_of_pool(y, largest, by_largest)
        return *vjp(x, kernel, by_y), by_largest.sum(axis=(0, 1, 2))

    return ConvImpl(forward, backward)


def _differentiable(impl: ConvImpl) -> Callable[..., Array]:
    @jax.custom_vjp
    def layer(*operands):
        return impl.forward(*operands)[0]

    def forward(*operands):
        y, residuals = impl.forward(*operands)
        return y, (operands, residuals)

    def backward(saved, cotangent):
        operands, residuals = saved
        return impl.backward(*operands, residuals, cotangent)

    layer.defvjp(forward, backward)
    return layer
