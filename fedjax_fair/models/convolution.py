"""Convolution that stays fast where a federated simulation runs it.

A simulation convolves inside ``lax.scan`` (local steps) and often inside ``vmap`` over the
parameters of each client. Two things go wrong there with XLA's own convolution: on CPU its gradient
is one or two orders of magnitude slower inside a loop, and on every device a convolution batched
over kernels becomes a grouped convolution, one group a client. A matrix product has neither
problem. So the image is cut into tiles and multiplied, and the native convolution used only where
it is good: on an accelerator, for a kernel that all examples share.
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

__all__ = ["Padding", "Pair", "convolve"]

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]

# Columns of the matrix product that a tile aims at: measured optimum on CPU is broad, 64 to 128.
_PRODUCT_COLUMNS = 96
# Bytes of tiles that a CPU cuts out at a time, so that they are still in its cache when they are
# multiplied; of images with much larger tiles one at a time.
_CACHE = 5 * 2**19


def _tile_width(out_width: int, channels: int, kernel_width: int, stride: int) -> int:
    """Chooses how many neighbouring outputs of a row come out of one row of the product."""
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
    pieces = [
        lax.slice(
            x,
            (0, i, j, 0),
            (batch, i + last_row, j + count, min(block, span - j * block) * channels),
            (1, strides[0], 1, 1),
        )
        for i in range(height)
        for j in range(blocks)
    ]
    return jnp.concatenate(pieces, axis=-1)


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
    rows, columns = (
        (side + sum(edges) - window) // stride + 1
        for side, edges, window, stride in zip(
            x.shape[1:3], padding, kernel.shape[:2], strides, strict=True
        )
    )
    kernel_width, channels = kernel.shape[1], kernel.shape[3]
    width = _tile_width(columns, channels, kernel_width, strides[1])
    span = kernel_width + (width - 1) * strides[1]
    return _Layout(rows, columns, width, -(-columns // width), span)


def _tiled(
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


def _pieces(x: Array, kernel: Array, strides: Pair, padding: Padding) -> int:
    """In how many parts a CPU goes through a batch: the fewest whose tiles fit into its cache."""
    cut = _layout(x, kernel, strides, padding)
    tile = kernel.shape[0] * cut.span * x.shape[3] * x.dtype.itemsize
    batch = x.shape[0]
    wanted = min(batch, -(-batch * cut.rows * cut.count * tile // _CACHE))
    return next(number for number in range(max(1, wanted), batch + 1) if batch % number == 0)


def _in_pieces(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    form = partial(_tiled, strides=strides, padding=padding)
    number = _pieces(x, kernel, strides, padding)
    if number == 1:
        return form(x, kernel)
    y = lax.map(lambda part: form(part, kernel), x.reshape(number, -1, *x.shape[1:]))
    return y.reshape(-1, *y.shape[2:])


def _pull_back_in_pieces(
    x: Array, kernel: Array, cotangent: Array, strides: Pair, padding: Padding
) -> tuple[Array, Array]:
    form = partial(_tiled, strides=strides, padding=padding, product=_narrow_gradient)
    number = _pieces(x, kernel, strides, padding)
    if number == 1:
        return _pull_back(form, x, kernel, cotangent)

    def piece(total, part):
        by_x, by_kernel = _pull_back(form, part[0], kernel, part[1])
        return total + by_kernel, by_x

    parts = [array.reshape(number, -1, *array.shape[1:]) for array in (x, cotangent)]
    by_kernel, by_x = lax.scan(piece, jnp.zeros_like(kernel), tuple(parts))
    return by_x.reshape(x.shape), by_kernel


def _native(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=names)


def _native_if_shared(strides: Pair, padding: Padding) -> Callable:
    """The native convolution, except under a ``vmap`` over kernels, where it would be grouped."""
    settings = {"strides": strides, "padding": padding}

    @jax.custom_batching.custom_vmap
    def convolve(x, kernel):
        return _native(x, kernel, **settings)

    @convolve.def_vmap
    def _(axis_size, batched, x, kernel):
        if batched[1]:
            axes = (0 if batched[0] else None, 0)
            return jax.vmap(partial(_tiled, **settings), axes)(x, kernel), True
        y = convolve(x.reshape(-1, *x.shape[2:]), kernel)  # a shared kernel: one larger batch
        return y.reshape(axis_size, -1, *y.shape[1:]), True

    return convolve


def _pull_back(form: Callable, x: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
    return jax.vjp(form, x, kernel)[1](cotangent)


def _native_pull_back_if_alone(strides: Pair, padding: Padding) -> Callable:
    """The native gradient, except under any ``vmap``: it gives a kernel gradient per element."""
    settings = {"strides": strides, "padding": padding}

    @jax.custom_batching.custom_vmap
    def pull_back(x, kernel, cotangent):
        return _pull_back(partial(_native, **settings), x, kernel, cotangent)

    @pull_back.def_vmap
    def _(_axis_size, batched, *args):
        axes = tuple(0 if yes else None for yes in batched)
        tiled = partial(_pull_back, partial(_tiled, **settings))
        return jax.vmap(tiled, axes)(*args), (True, True)

    return pull_back


def _forward(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    tiled = partial(_in_pieces, strides=strides, padding=padding)
    native = _native_if_shared(strides, padding)
    return lax.platform_dependent(x, kernel, cpu=tiled, default=native)


def _forward_with_residuals(x, kernel, strides, padding):
    return _forward(x, kernel, strides, padding), (x, kernel)


def _backward(strides, padding, residuals, cotangent):
    tiled = partial(_pull_back_in_pieces, strides=strides, padding=padding)
    native = _native_pull_back_if_alone(strides, padding)
    return lax.platform_dependent(*residuals, cotangent, cpu=tiled, default=native)


# The gradient is defined by hand because `custom_vmap` has none in reverse mode, and around the
# choice of platform rather than inside it: differentiating the choice itself would make every
# platform carry the residuals of all the others.
convolve = jax.custom_vjp(_forward, nondiff_argnums=(2, 3))
convolve.defvjp(_forward_with_residuals, _backward)
