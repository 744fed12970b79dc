"""Convolution, max-pooling and ReLU as products of rows of images, for a TPU.

The matrix unit of a TPU multiplies 128 x 128 elements at once. Six channels use a small part of it,
a row of an image most. So the pairs of rows under a kernel are concatenated, and multiplied by
banded matrices of the kernel to rows of outputs, one matrix for each position in a 2 x 2 window.
Padding columns are left out of the matrices.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedjax_fair.models.conv.geometry import Padding, Pair, output_shape
from fedjax_fair.models.conv.pooling import divide_among_largest

__all__ = ["is_faster", "pooled"]

_LANES = 128


def is_faster(x: Array, kernel: Array, strides: Pair, padding: Padding) -> bool:
    """Returns whether it is fastest on a TPU: a row of pooled outputs fits into one tile."""
    rows, columns = output_shape(x, kernel, strides, padding)
    return strides == (1, 1) and min(rows, columns) > 1 and columns // 2 * kernel.shape[3] <= _LANES


def pooled(x: Array, kernel: Array, bias: Array, padding: Padding) -> Array:
    """Convolves, adds the bias, takes maxima of 2 x 2 windows and ReLU."""
    rows, columns = (count // 2 for count in output_shape(x, kernel, (1, 1), padding))
    outputs, left = kernel.shape[3], padding[1][0]
    pairs = kernel.shape[0] // 2 + 1  # Pairs of rows under a pair of rows of outputs.
    stacked = _stacked(x, pairs, rows, padding[0][0])
    bands = _banded(kernel, pairs, x.shape[2], columns, left)
    y = _largest(*(stacked @ band for band in bands))[..., : columns * outputs]
    y = jax.nn.relu(y + jnp.tile(bias, columns).reshape(1, 1, -1))
    return y.reshape(x.shape[0], rows, columns, outputs)


def _stacked(x: Array, pairs: int, rows: int, above: int) -> Array:
    """Concatenates pairs of rows, ``[batch, rows, pairs * 2 * width * in]``."""
    batch, height, width, channels = x.shape
    below = 2 * (rows + pairs - 1) - above - height
    x = x.reshape(batch, height, width * channels)
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (above, below, 0), (0, 0, 0)))
    x = x.reshape(batch, rows + pairs - 1, -1)
    return jnp.concatenate([x[:, i : i + rows] for i in range(pairs)], axis=-1)


def _banded(kernel: Array, pairs: int, width: int, columns: int, left: int) -> list[Array]:
    """Makes matrices from concatenated rows to outputs, one for each position in a window.

    They are ``[pairs * 2 * width * in, 128]``, with columns ordered by window and channel.
    """
    height, taps, channels, outputs = kernel.shape
    lane = np.arange(_LANES)
    used = lane < columns * outputs
    spread = jnp.asarray(used & (np.arange(outputs)[:, None] == lane % outputs), kernel.dtype)
    pixel, channel = np.divmod(np.arange(width * channels), channels)
    select = jnp.asarray(channel[:, None] == np.arange(channels), kernel.dtype)
    parts = []
    for tap in range(taps):
        # A column of the kernel, repeated for every pixel and every window: [kh, width * in, 128].
        # Sums over taps of arrays with a last axis of 128 have the fastest gradient.
        column = select @ kernel[:, tap] if channels > 1 else kernel[:, tap]
        repeated = column @ spread
        window = 2 * (lane // outputs) + tap - left
        leads = (used & (pixel[:, None] == window + place) for place in range(2))
        parts.append([repeated * jnp.asarray(each, kernel.dtype)[None] for each in leads])
    by_place = [reduce(jnp.add, part) for part in zip(*parts, strict=True)]
    zero, below = jnp.zeros((), kernel.dtype), 2 * pairs - height
    return [
        lax.pad(band, zero, ((row, below - row, 0), (0, 0, 0), (0, 0, 0))).reshape(-1, _LANES)
        for row in range(2)
        for band in by_place
    ]


@jax.custom_vjp
def _largest(*slabs: Array) -> Array:
    """The maximum of arrays, with a gradient divided among the largest entries."""
    return reduce(jnp.maximum, slabs)


def _largest_forward(*slabs):
    largest = reduce(jnp.maximum, slabs)
    return largest, (slabs, largest)


def _largest_backward(residuals, cotangent):
    slabs, largest = residuals
    return tuple(divide_among_largest(slabs, largest, cotangent))


_largest.defvjp(_largest_forward, _largest_backward)
