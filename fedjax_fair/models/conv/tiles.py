"""Convolution as one product of image tiles and a banded matrix of the kernel.

A tile contains the pixels under some neighboring outputs of a row. With one output per tile the
tiles are the usual patches; with a row per tile the matrix is Toeplitz. Narrow layers are fastest
between the two: wider tiles copy each pixel less often, but multiply more zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedjax_fair.models.conv import chunks
from fedjax_fair.models.conv.geometry import Padding, Pair, output_shape
from fedjax_fair.numerics import target

__all__ = ["convolve", "in_chunks", "vjp_in_chunks"]

# Target number of columns of the matrix product: on a CPU, 64 to 128 are equally fast.
_PRODUCT_COLUMNS = 96


def convolve(
    x: Array,
    kernel: Array,
    strides: Pair,
    padding: Padding,
    product: Callable[[Array, Array], Array] = jnp.matmul,
) -> Array:
    """Convolves by one product of ``[..., k]`` and ``[k, n]``: tiles and a banded matrix."""
    cut = _layout(x, kernel, strides, padding)
    tiles = _tiles(x, kernel.shape[0], cut, strides, padding)
    outputs = product(tiles, _banded(kernel, cut, strides[1]))
    # A tile's columns are its outputs, so that the tiles of a row make up the row.
    outputs = outputs.reshape(x.shape[0], cut.rows, cut.count * cut.width, kernel.shape[3])
    return outputs[:, :, : cut.columns]


def in_chunks(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    """Convolves in chunks of the batch."""
    convolve_fn = partial(convolve, kernel=kernel, strides=strides, padding=padding)
    return chunks.map_over(_num_chunks(x, kernel, strides, padding), convolve_fn, x)


def vjp_in_chunks(
    x: Array, kernel: Array, cotangent: Array, strides: Pair, padding: Padding
) -> tuple[Array, Array]:
    """Returns the gradients of ``in_chunks`` by images and kernel."""
    convolve_fn = partial(convolve, strides=strides, padding=padding, product=_narrow_gradient)
    num_chunks = _num_chunks(x, kernel, strides, padding)
    by_x, (by_kernel,) = chunks.vjp(num_chunks, convolve_fn, x, (kernel,), cotangent)
    return by_x, by_kernel


class _Layout(NamedTuple):
    """The division of images into tiles.

    Attributes:
        rows: Rows of outputs.
        columns: Columns of outputs.
        width: Outputs per tile.
        count: Tiles per row.
        span: Columns of the image under a tile.
    """

    rows: int
    columns: int
    width: int
    count: int
    span: int


def _layout(x: Array, kernel: Array, strides: Pair, padding: Padding) -> _Layout:
    rows, columns = output_shape(x, kernel, strides, padding)
    kernel_width, channels = kernel.shape[1], kernel.shape[3]
    width = _tile_width(columns, channels, kernel_width, strides[1])
    span = kernel_width + (width - 1) * strides[1]
    return _Layout(rows, columns, width, -(-columns // width), span)


def _tile_width(out_width: int, channels: int, kernel_width: int, stride: int) -> int:
    """Chooses the number of outputs per tile."""
    if kernel_width <= stride:  # Windows do not overlap, so a wider tile would only add zeros.
        return 1
    tiles = -(-out_width // max(1, _PRODUCT_COLUMNS // channels))
    return -(-out_width // tiles)


def _num_chunks(x: Array, kernel: Array, strides: Pair, padding: Padding) -> int:
    cut = _layout(x, kernel, strides, padding)
    tile = kernel.shape[0] * cut.span * x.shape[3] * x.dtype.itemsize
    return chunks.count(x.shape[0], cut.rows * cut.count * tile)


def _tiles(x: Array, height: int, cut: _Layout, strides: Pair, padding: Padding) -> Array:
    """Divides images into overlapping tiles ``[batch, rows, tiles, height * span * in]``.

    Tiles start ``block`` columns apart, so columns are grouped into blocks, which are concatenated
    to tiles. That takes few slices without strides along the row, and its gradient pads and adds,
    whereas the gradient of a gather scatters.
    """
    batch, _, width, channels = x.shape
    block = cut.width * strides[1]
    per_tile = -(-cut.span // block)
    blocks = cut.count + per_tile - 1
    left = padding[1][0]
    edges = ((0, 0, 0), (*padding[0], 0), (left, blocks * block - width - left, 0), (0, 0, 0))
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    x = x.reshape(batch, x.shape[1], blocks, block * channels)
    last_row = (cut.rows - 1) * strides[0] + 1
    # Row i of every tile, and block j of that row; the last block may be shorter.
    cuts = [
        lax.slice(
            x,
            (0, i, j, 0),
            (batch, i + last_row, j + cut.count, min(block, cut.span - j * block) * channels),
            (1, strides[0], 1, 1),
        )
        for i in range(height)
        for j in range(per_tile)
    ]
    return jnp.concatenate(cuts, axis=-1)


def _banded(kernel: Array, cut: _Layout, stride: int) -> Array:
    """Makes the matrix ``[kh * span * in, width * out]`` from a tile to its outputs."""
    height, width, inputs, outputs = kernel.shape
    if cut.width == 1:
        return kernel.reshape(-1, outputs)
    # connects[k, s, t] is 1 where tap k of a kernel's row connects column s and output t.
    tap, column, output = np.ogrid[:width, : cut.span, : cut.width]
    connects = jnp.asarray(column == output * stride + tap, kernel.dtype)
    if target.current().is_cpu:
        band = jnp.einsum("kst,hkio->hsito", connects, kernel)
    else:  # One pass, where a product would need its factors transposed before and after.
        band = (connects[None, :, :, None, :, None] * kernel[:, :, None, :, None]).sum(axis=1)
    return band.reshape(height * cut.span * inputs, cut.width * outputs)


@jax.custom_vjp
def _narrow_gradient(tiles: Array, band: Array) -> Array:
    """A product whose gradient by the matrix is computed transposed; not for forward mode.

    XLA's product on a CPU repacks its transposed left factor, which should be the narrower one: for
    layers of 1 to 128 channels that saves up to a third of a convolution's gradient.
    """
    return tiles @ band


def _narrow_gradient_forward(tiles, band):
    return tiles @ band, (tiles, band)


def _narrow_gradient_backward(residuals, cotangent):
    tiles, band = residuals
    by_row = cotangent.reshape(-1, band.shape[1])
    slope = by_row.T @ tiles.reshape(-1, band.shape[0])  # [width * out, kh * span * in]
    return cotangent @ band.T, slope.T


_narrow_gradient.defvjp(_narrow_gradient_forward, _narrow_gradient_backward)
