"""Max-pooling, and convolutions that ReLU and max-pooling follow."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_fair.models.conv import blocks
from fedjax_fair.models.conv.choice import convolve
from fedjax_fair.models.conv.geometry import Padding, Pair, output_shape

__all__ = ["convolve_relu_pool", "max_pool"]


def max_pool(
    x: Float[Array, "batch height width channels"],
) -> Float[Array, "batch rows columns channels"]:
    """Takes the maximum over 2 x 2 windows, stride 2.

    Equals ``flax.linen.max_pool(x, (2, 2), (2, 2))``: the last row or column of an odd side is
    dropped. On CPU it costs half of ``reduce_window`` with its gradient. The one difference is the
    gradient where entries of a window are equal: each comparison halves it, whereas Flax gives all
    of it to one entry. On a constant background the parameters' gradients agree all the same.

    Args:
        x: Images, ``[batch, height, width, channels]``.

    Returns:
        The pooled images, ``[batch, height // 2, width // 2, channels]``.

    Examples:
        >>> max_pool(jnp.arange(9.0).reshape(1, 3, 3, 1)).ravel().tolist()
        [4.0]
    """
    batch, height, width, channels = x.shape
    rows, columns = height // 2, width // 2
    x = x[:, : 2 * rows, : 2 * columns].reshape(batch, rows, 2, columns, 2, channels)
    x = jnp.maximum(x[:, :, 0], x[:, :, 1])
    return jnp.maximum(x[:, :, :, 0], x[:, :, :, 1])


def convolve_relu_pool(
    x: Array, kernel: Array, bias: Array | None, strides: Pair, padding: Padding
) -> Array:
    """ReLU of the pooled sum of a convolution and a bias; ``[batch, rows, columns, out]``."""
    if bias is None:
        bias = jnp.zeros(kernel.shape[3], kernel.dtype)
    no_window = min(output_shape(x, kernel, strides, padding)) < 2
    if no_window or blocks.side_of_blocks(kernel, strides) == 0:
        return _one_by_one(x, kernel, bias, strides, padding)
    return _in_blocks(x, kernel, bias, padding)


def _one_by_one(x: Array, kernel: Array, bias: Array, strides: Pair, padding: Padding) -> Array:
    # ReLU stands after max-pooling, where it is the same function of a quarter of the elements.
    y = convolve(x, kernel, strides, padding) + bias.reshape(1, 1, 1, -1)
    return jax.nn.relu(max_pool(y))


def _forward(x: Array, kernel: Array, bias: Array, padding: Padding) -> Array:
    return _forward_with_residuals(x, kernel, bias, padding)[0]


def _forward_with_residuals(x, kernel, bias, padding):
    cut = blocks.layout(x, kernel, padding)
    # Kept for the gradient, where XLA does not find that a second matrix would be the same.
    band = blocks.banded(kernel, cut)

    def on_cpu(x, _kernel, bias, band):
        return blocks.in_chunks(x, band, bias, cut)

    def elsewhere(x, kernel, bias, _band):
        return _one_by_one(x, kernel, bias, (1, 1), padding)

    residuals = (x, kernel, bias, band)
    return lax.platform_dependent(*residuals, cpu=on_cpu, default=elsewhere), residuals


def _backward(padding, residuals, cotangent):
    def on_cpu(x, kernel, bias, band, cotangent):
        cut = blocks.layout(x, kernel, padding)
        by_x, (by_band, by_bias) = blocks.vjp_in_chunks(x, band, bias, cotangent, cut)
        (by_kernel,) = jax.vjp(partial(blocks.banded, cut=cut), kernel)[1](by_band)
        return by_x, by_kernel, by_bias

    def elsewhere(x, kernel, bias, _band, cotangent):
        form = partial(_one_by_one, strides=(1, 1), padding=padding)
        return jax.vjp(form, x, kernel, bias)[1](cotangent)

    return lax.platform_dependent(*residuals, cotangent, cpu=on_cpu, default=elsewhere)


# By hand, around the choice of platform, for the reason given in `convolution`.
_in_blocks = jax.custom_vjp(_forward, nondiff_argnums=(3,))
_in_blocks.defvjp(_forward_with_residuals, _backward)
