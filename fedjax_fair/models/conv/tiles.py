"""Convolution as one product of image tiles and a banded matrix of the kernel."""

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

__all__ = ["convolve", "in_chunks", "vjp", "vjp_in_chunks"]

# Columns of the matrix product that a tile aims at: measured optimum on CPU is broad, 64 to 128.
_PRODUCT_COLUMNS = 96


def _tile_width(out_width: int, channels: int, kernel_width: int, stride: int) -> int:
    """Chooses how many neighboring outputs of a row come out of one row of the product."""
    if kernel_width <= stride:  # windows do not overlap: a tile would multiply by zeros only
        return 1
    tiles = -(-out_width // max(1, _PRODUCT_COLUMNS // channels))
    return -(-out_width // tiles)


def _tiles(x: Array, rows: int, shape: Pair, strides: Pair, padding: Padding, tile: Pair) -> Array:
    """Cuts an image into overlapping tiles ``[batch, rows, tiles, height * width * channels]``.

    Tiles start ``block`` columns apart, so the columns are first grouped into blocks and a tile is
    put together from whole blocks: few slices, none of them strided along the row, and a gradient
    that pads and adds where a gather would scatter.
    """
    batch, _, width, channels = x.shape
    (count, block), (height, span) = tile, shape
    blocks = -(-span // block)
    right = (count + blocks - 1) * block - width - padding[1][0]
    edges = ((0, 0, 0), (*padding[0], 0), (padding[1][0], right, 0), (0, 0, 0))
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    x = x.reshape(batch, x.shape[1], count + blocks - 1, block * channels)
    last_row = (rows - 1) * strides[0] + 1
    cuts = [
        lax.slice(
            x,
            (0, i, j, 0),
            (batch, i + last_row, j + count, min(block, span - j * block) * channels),
            (1, strides[0], 1, 1),
        )
        for i in range(height)
        for j in range(blocks)
    ]
    return jnp.concatenate(cuts, axis=-1)


def _banded(kernel: Array, tile: int, stride: int) -> Array:
    """Lays a kernel out as the matrix ``[kh * span * in, tile * out]`` from tile to outputs."""
    height, width, inputs, outputs = kernel.shape
    if tile == 1:
        return kernel.reshape(-1, outputs)
    span = width + (tile - 1) * stride
    tap, column, output = np.ogrid[:width, :span, :tile]
    place = jnp.asarray(column == output * stride + tap, kernel.dtype)
    band = jnp.einsum("kst,hkio->hsito", place, kernel)
    return band.reshape(height * span * inputs, tile * outputs)


@jax.custom_vjp
def _narrow_gradient(tiles: Array, band: Array) -> Array:
    """A product whose gradient by the matrix is computed transposed.

    XLA's product on a CPU repacks its transposed left factor, which should be the narrower of the
    two: for layers of 1 to 128 channels that saves up to a third of a convolution's gradient.
    Forward mode does not pass through it, so it stands only in what is itself a gradient.
    """
    return tiles @ band


def _narrow_gradient_forward(tiles, band):
    return tiles @ band, (tiles, band)


def _narrow_gradient_backward(residuals, cotangent):
    tiles, band = residuals
    by_row = cotangent.reshape(-1, band.shape[1])
    slope = by_row.T @ tiles.reshape(-1, band.shape[0])
    return cotangent @ band.T, slope.T


_narrow_gradient.defvjp(_narrow_gradient_forward, _narrow_gradient_backward)


class _Layout(NamedTuple):
    """How images are cut into tiles.

    Attributes:
        rows: Rows of outputs.
        columns: Columns of outputs.
        width: Outputs of a tile.
        count: Tiles of a row.
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


def convolve(
    x: Array,
    kernel: Array,
    strides: Pair,
    padding: Padding,
    product: Callable[[Array, Array], Array] = jnp.matmul,
) -> Array:
    """Convolves by one matrix product: tiles of a row times a banded matrix of the kernel.

    With one output a tile this is the textbook product of patches and kernel; with a whole row a
    tile it is a Toeplitz matrix. Skinny layers are fastest between the two: wider tiles copy each
    pixel less often and give the product enough columns, but multiply more zeros.
    """
    cut = _layout(x, kernel, strides, padding)
    blocks = (cut.count, cut.width * strides[1])
    tiles = _tiles(x, cut.rows, (kernel.shape[0], cut.span), strides, padding, blocks)
    outputs = product(tiles, _banded(kernel, cut.width, strides[1]))
    shape = (x.shape[0], cut.rows, cut.count * cut.width, kernel.shape[3])
    return outputs.reshape(shape)[:, :, : cut.columns]


def in_chunks(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    """``convolve``, a part of the batch at a time."""
    number = _number(x, kernel, strides, padding)
    form = partial(convolve, kernel=kernel, strides=strides, padding=padding)
    return chunks.over(number, form, x)


def vjp(
    x: Array,
    kernel: Array,
    cotangent: Array,
    strides: Pair,
    padding: Padding,
    product: Callable[[Array, Array], Array] = jnp.matmul,
) -> tuple[Array, Array]:
    """Gradients by images and kernel."""
    form = partial(convolve, strides=strides, padding=padding, product=product)
    return jax.vjp(form, x, kernel)[1](cotangent)


def vjp_in_chunks(
    x: Array, kernel: Array, cotangent: Array, strides: Pair, padding: Padding
) -> tuple[Array, Array]:
    """``vjp``, a part of the batch at a time."""

    def piece(x, cotangent):
        return vjp(x, kernel, cotangent, strides, padding, _narrow_gradient)

    number = _number(x, kernel, strides, padding)
    return chunks.over_and_sum(number, piece, jnp.zeros_like(kernel), x, cotangent)


def _number(x: Array, kernel: Array, strides: Pair, padding: Padding) -> int:
    cut = _layout(x, kernel, strides, padding)
    tile = kernel.shape[0] * cut.span * x.shape[3] * x.dtype.itemsize
    return chunks.number(x.shape[0], cut.rows * cut.count * tile)
