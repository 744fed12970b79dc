"""Convolution, ReLU and max-pooling as one product of a banded matrix and blocks of an image.

The image is cut into square blocks of pixels. A block of outputs depends on a few neighboring
blocks of inputs, so that its values are a banded matrix of the kernel times those blocks stacked.
Two choices make all that surrounds this product cheap on a CPU:

* outputs of a block are ordered by their place in a 2 x 2 window first, so that max-pooling is a
  maximum of four slabs, and what comes out is again in blocks, of half the side;
* images of a batch are neighbors in memory, which leaves long rows to copy, compare and add.

A layer takes and returns ``[batch, height, width, channels]``; between two such layers XLA removes
the transpositions where the blocks of one are those of the other, as LeNet's are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedjax_fair.models.conv import chunks
from fedjax_fair.models.conv.geometry import Padding, Pair, output_shape

__all__ = ["Layout", "banded", "in_chunks", "layout", "side_of_blocks", "vjp_in_chunks"]

# Rows of the matrix product that a block aims at: more of them multiply more zeros.
_PRODUCT_ROWS = 128


def side_of_blocks(kernel: Array, strides: Pair) -> int:
    """Outputs a side of a block: an even divisor of both sides of the kernel less one, or 0.

    With such a side, neighboring blocks cover exactly what their kernels reach. It is 0 where no
    such side leaves the product narrow: the form is not for these layers.
    """
    height, width, _, outputs = kernel.shape
    if strides != (1, 1):
        return 0
    reach = math.gcd(height - 1, width - 1)
    fits = (
        side
        for side in range(2, reach + 1, 2)
        if reach % side == 0 and side**2 * outputs <= _PRODUCT_ROWS
    )
    return max(fits, default=0)


class Layout(NamedTuple):
    """How an image is cut.

    Attributes:
        side: Outputs a side of a block, before pooling.
        near: Blocks under those of one block of outputs: that many rows, that many columns.
        rows: Rows of pooled outputs.
        columns: Columns of pooled outputs.
        corner: Rows and columns of zeros in front of the image.
    """

    side: int
    near: Pair
    rows: int
    columns: int
    corner: Pair


def layout(x: Array, kernel: Array, padding: Padding) -> Layout:
    """How to cut images ``[batch, height, width, in]`` for a kernel ``[kh, kw, in, out]``."""
    side = side_of_blocks(kernel, (1, 1))
    below, right = ((taps - 1) // side + 1 for taps in kernel.shape[:2])
    rows, columns = (count // 2 for count in output_shape(x, kernel, (1, 1), padding))
    return Layout(side, (below, right), rows, columns, (padding[0][0], padding[1][0]))


def banded(kernel: Array, cut: Layout) -> Array:
    """The matrix ``[4 * windows * out, near * block]`` from stacked blocks to a block of outputs.

    Rows are ordered by place in a window, window and channel; columns as blocks are stacked.
    """

    def leads(taps: int, near: int) -> Array:
        """Which tap leads from a pixel to an output: ``[taps, near, side, side // 2, 2]``."""
        tap, pixel, output = np.ogrid[:taps, : near * cut.side, : cut.side]
        places = pixel == output + tap
        return jnp.asarray(places.reshape(taps, near, cut.side, cut.side // 2, 2), kernel.dtype)

    rows, columns = (leads(*sizes) for sizes in zip(kernel.shape[:2], cut.near, strict=True))
    band = jnp.einsum("hnbtp,wmcuq,hwio->pqtuonmbci", rows, columns, kernel)
    return band.reshape(cut.side**2 * kernel.shape[3], -1)


def in_chunks(x: Array, band: Array, bias: Array, cut: Layout) -> Array:
    """Convolves, adds the bias, takes ReLU and the maxima of 2 x 2 windows.

    Args:
        x: Images, ``[batch, height, width, in]``.
        band: The kernel's matrix, from ``banded``.
        bias: ``[out]``.
        cut: Its layout.

    Returns:
        ``[batch, rows, columns, out]``.
    """
    form = partial(_convolve, band=band, bias=bias, cut=cut, stack=_stack, largest=_largest)
    return chunks.over(_number(x, band, cut), form, x)


def vjp_in_chunks(
    x: Array, band: Array, bias: Array, cotangent: Array, cut: Layout
) -> tuple[Array, tuple[Array, Array]]:
    """Gradients by images, and by matrix and bias."""
    form = partial(_convolve, cut=cut, stack=_stack_by_hand, largest=_largest_by_hand)

    def piece(x, cotangent):
        by_x, *by_parameters = jax.vjp(form, x, band, bias)[1](cotangent)
        return by_x, tuple(by_parameters)

    zero = jax.tree.map(jnp.zeros_like, (band, bias))
    return chunks.over_and_sum(_number(x, band, cut), piece, zero, x, cotangent)


def _convolve(
    x: Array,
    band: Array,
    bias: Array,
    cut: Layout,
    stack: Callable[[Array, Pair], Array],
    largest: Callable[[Array], Array],
) -> Array:
    batch, _, _, channels = x.shape
    side, half, outputs = cut.side, cut.side // 2, bias.shape[0]
    num_rows, num_columns = _num_blocks(cut)
    x = _pad(x, (num_rows + cut.near[0] - 1) * side, (num_columns + cut.near[1] - 1) * side, cut)
    x = x.reshape(batch, x.shape[1] // side, side, x.shape[2] // side, side, channels)
    blocks = x.transpose(2, 4, 5, 1, 3, 0).reshape(side * side * channels, *x.shape[1:4:2], batch)
    stacked = stack(blocks, cut.near).reshape(band.shape[1], num_rows * num_columns * batch)
    y = largest((band @ stacked).reshape(4, half * half * outputs, stacked.shape[1]))
    y = y.reshape(half, half, outputs, num_rows, num_columns, batch)
    y = jax.nn.relu(y + bias.reshape(1, 1, -1, 1, 1, 1)).transpose(5, 3, 0, 4, 1, 2)
    y = y.reshape(batch, num_rows * half, num_columns * half, outputs)
    return y[:, : cut.rows, : cut.columns]


def _num_blocks(cut: Layout) -> Pair:
    """Blocks of outputs in rows and columns; the last may reach beyond the image."""
    half = cut.side // 2
    return -(-cut.rows // half), -(-cut.columns // half)


def _pad(x: Array, height: int, width: int, cut: Layout) -> Array:
    """Adds the zeros in front, and behind as many as make up the sides, or cuts what exceeds."""
    above, left = cut.corner
    edges = ((above, height - above - x.shape[1], 0), (left, width - left - x.shape[2], 0))
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *edges, (0, 0, 0)))


def _stack(blocks: Array, near: Pair) -> Array:
    """Stacks every block on those below and right: ``[near * block, rows, columns, batch]``."""
    rows, columns = (n - m + 1 for n, m in zip(blocks.shape[1:3], near, strict=True))
    cuts = [blocks[:, i : i + rows, j : j + columns] for i, j in np.ndindex(*near)]
    return jnp.concatenate(cuts)


def _stack_forward(blocks, near):
    return _stack(blocks, near), None


def _stack_backward(near, _, cotangent):
    parts = cotangent.reshape(*near, -1, *cotangent.shape[1:])
    rows = _sum_of_shifted(list(parts), axis=2)
    return (_sum_of_shifted(list(rows), axis=2),)


def _sum_of_shifted(parts: Sequence[Array], axis: int) -> Array:
    """Sums arrays of which each starts one place after the one before."""
    count, length = len(parts), parts[0].shape[axis]
    bounds = sorted({*range(count), *range(length, length + count)})
    sums = []
    for start, stop in itertools.pairwise(bounds):
        there = [
            lax.slice_in_dim(part, start - i, stop - i, axis=axis)
            for i, part in enumerate(parts)
            if 0 <= start - i < length
        ]
        sums.append(sum(there[1:], start=there[0]))
    return jnp.concatenate(sums, axis)


def _largest(values: Array) -> Array:
    """Maxima over the leading axis.

    Slab by slab, as in the gradient: XLA's reductions over few long rows take times as long.
    """
    return reduce(jnp.maximum, values)


def _largest_forward(values):
    largest = _largest(values)
    return largest, (values, largest)


def _largest_backward(residuals, cotangent):
    values, largest = residuals
    number = reduce(jnp.add, [(slab == largest).astype(slab.dtype) for slab in values])
    return (jnp.where(values == largest[None], (cotangent / number)[None], 0),)


# Gradients by hand: a few sums of slices, where XLA would pad every slice to the whole, and equal
# shares for the largest entries. Forward mode does not pass through them, so they stand only in
# what is itself a gradient.
_stack_by_hand = jax.custom_vjp(_stack, nondiff_argnums=(1,))
_stack_by_hand.defvjp(_stack_forward, _stack_backward)
_largest_by_hand = jax.custom_vjp(_largest)
_largest_by_hand.defvjp(_largest_forward, _largest_backward)


def _number(x: Array, band: Array, cut: Layout) -> int:
    bytes_of_one = math.prod(_num_blocks(cut)) * sum(band.shape) * x.dtype.itemsize
    return chunks.number(x.shape[0], bytes_of_one)
