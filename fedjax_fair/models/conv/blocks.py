"""Convolution, ReLU and max-pooling as one product of a banded matrix and blocks of an image.

The image is divided into square blocks of pixels. A block of outputs depends on a few neighboring
blocks of inputs, so it is a banded matrix of the kernel times these blocks stacked. Outputs of a
block are ordered by their position in a 2 x 2 window first, so that max-pooling is a maximum of
four slabs, which are again blocks. The batch is the last axis, which makes rows long.

XLA removes the transpositions between two layers whose blocks match, as in LeNet.
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

__all__ = ["in_chunks", "is_faster", "vjp_in_chunks"]

# Maximum number of rows of the matrix product: more rows multiply more zeros.
_MAX_PRODUCT_ROWS = 128


def is_faster(x: Array, kernel: Array, strides: Pair, padding: Padding) -> bool:
    """Returns whether it is fastest on a CPU: blocks match the kernel, windows fit the image."""
    if strides != (1, 1) or min(output_shape(x, kernel, strides, padding)) < 2:
        return False
    return _side(kernel) > 0


def in_chunks(
    x: Array, kernel: Array, bias: Array, padding: Padding
) -> tuple[Array, dict[str, Array]]:
    """Convolves, adds the bias, takes maxima of 2 x 2 windows and ReLU, in chunks of the batch.

    The kernel's banded matrix is kept for the gradient: XLA does not detect that another is equal.
    """
    cut = _layout(x, kernel, padding)
    band = _banded(kernel, cut)
    convolve = partial(_convolve, band=band, bias=bias, cut=cut, stack=_stack, largest=_largest)
    return chunks.map_over(_num_chunks(x, band, cut), convolve, x), {"band": band}


def vjp_in_chunks(
    x: Array,
    kernel: Array,
    bias: Array,
    residuals: dict[str, Array],
    cotangent: Array,
    padding: Padding,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of ``in_chunks`` by images, kernel and bias."""
    cut, band = _layout(x, kernel, padding), residuals["band"]
    convolve = partial(_convolve, cut=cut, stack=_stack_by_hand, largest=_largest_by_hand)
    num_chunks = _num_chunks(x, band, cut)
    by_x, (by_band, by_bias) = chunks.vjp(num_chunks, convolve, x, (band, bias), cotangent)
    (by_kernel,) = jax.vjp(partial(_banded, cut=cut), kernel)[1](by_band)
    return by_x, by_kernel, by_bias


def _side(kernel: Array) -> int:
    """Returns the side of a block of outputs: an even divisor of both kernel sides less one, or 0.

    Neighboring blocks then cover exactly the pixels under their kernels. It is 0 if the product
    would be too wide.
    """
    height, width, _, outputs = kernel.shape
    reach = math.gcd(height - 1, width - 1)
    fits = (
        side
        for side in range(2, reach + 1, 2)
        if reach % side == 0 and side**2 * outputs <= _MAX_PRODUCT_ROWS
    )
    return max(fits, default=0)


class _Layout(NamedTuple):
    """The division of an image into blocks.

    Attributes:
        side: Side of a block of outputs, before pooling.
        near: Rows and columns of input blocks under one block of outputs.
        rows: Rows of pooled outputs.
        columns: Columns of pooled outputs.
        corner: Rows and columns of zeros before the image.
    """

    side: int
    near: Pair
    rows: int
    columns: int
    corner: Pair


def _layout(x: Array, kernel: Array, padding: Padding) -> _Layout:
    side = _side(kernel)
    below, right = ((taps - 1) // side + 1 for taps in kernel.shape[:2])
    rows, columns = (count // 2 for count in output_shape(x, kernel, (1, 1), padding))
    return _Layout(side, (below, right), rows, columns, (padding[0][0], padding[1][0]))


def _num_blocks(cut: _Layout) -> Pair:
    """Numbers of rows and columns of output blocks; the last may extend beyond the image."""
    half = cut.side // 2
    return -(-cut.rows // half), -(-cut.columns // half)


def _num_chunks(x: Array, band: Array, cut: _Layout) -> int:
    bytes_of_one = math.prod(_num_blocks(cut)) * sum(band.shape) * x.dtype.itemsize
    return chunks.count(x.shape[0], bytes_of_one)


def _banded(kernel: Array, cut: _Layout) -> Array:
    """Makes the matrix ``[4 * windows * out, near * block]`` from input blocks to an output block.

    Rows are ordered by position in a window, window and channel; columns as the stacked blocks.
    """

    def connections(taps: int, near: int) -> Array:
        """1 where a tap connects a pixel and an output: ``[taps, near, side, side // 2, 2]``."""
        tap, pixel, output = np.ogrid[:taps, : near * cut.side, : cut.side]
        connects = pixel == output + tap
        return jnp.asarray(connects.reshape(taps, near, cut.side, cut.side // 2, 2), kernel.dtype)

    rows, columns = (connections(*sizes) for sizes in zip(kernel.shape[:2], cut.near, strict=True))
    # By rows and columns: taps h and w; input blocks n and m, pixels b and c in them; windows t and
    # u of the output block, positions p and q in them. Channels i and o.
    band = jnp.einsum("hnbtp,wmcuq,hwio->pqtuonmbci", rows, columns, kernel)
    return band.reshape(cut.side**2 * kernel.shape[3], -1)


def _convolve(
    x: Array,
    band: Array,
    bias: Array,
    cut: _Layout,
    stack: Callable[[Array, Pair], Array],
    largest: Callable[[Array], Array],
) -> Array:
    batch, _, _, channels = x.shape
    side, half, outputs = cut.side, cut.side // 2, bias.shape[0]
    num_rows, num_columns = _num_blocks(cut)
    x = _pad(x, (num_rows + cut.near[0] - 1) * side, (num_columns + cut.near[1] - 1) * side, cut)
    # From [batch, block row, row, block column, column, channels] to [block, block rows, block
    # columns, batch]: the product sums over the first axis.
    x = x.reshape(batch, x.shape[1] // side, side, x.shape[2] // side, side, channels)
    blocks = x.transpose(2, 4, 5, 1, 3, 0).reshape(side * side * channels, *x.shape[1:4:2], batch)
    stacked = stack(blocks, cut.near).reshape(band.shape[1], num_rows * num_columns * batch)
    # The four slabs are the positions in a window.
    y = largest((band @ stacked).reshape(4, half * half * outputs, stacked.shape[1]))
    # From [row, column, out, block row, block column, batch] back to images.
    y = y.reshape(half, half, outputs, num_rows, num_columns, batch)
    y = jax.nn.relu(y + bias.reshape(1, 1, -1, 1, 1, 1)).transpose(5, 3, 0, 4, 1, 2)
    y = y.reshape(batch, num_rows * half, num_columns * half, outputs)
    return y[:, : cut.rows, : cut.columns]


def _pad(x: Array, height: int, width: int, cut: _Layout) -> Array:
    """Pads images with zeros, or crops them, to a height and width."""
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
    # [rows near, columns near, block, rows, columns, batch]: entry i, j starts i rows and j columns
    # later. Summed over the first axis with shifted rows, then likewise with shifted columns.
    parts = cotangent.reshape(*near, -1, *cotangent.shape[1:])
    rows = _sum_of_shifted(list(parts), axis=2)
    return (_sum_of_shifted(list(rows), axis=2),)


def _sum_of_shifted(parts: Sequence[Array], axis: int) -> Array:
    """Sums arrays, each shifted by one position relative to the previous one."""
    count, length = len(parts), parts[0].shape[axis]
    # Between two bounds the same arrays overlap.
    bounds = sorted({*range(count), *range(length, length + count)})
    sums = []
    for start, stop in itertools.pairwise(bounds):
        overlapping = [
            lax.slice_in_dim(part, start - i, stop - i, axis=axis)
            for i, part in enumerate(parts)
            if 0 <= start - i < length
        ]
        sums.append(sum(overlapping[1:], start=overlapping[0]))
    return jnp.concatenate(sums, axis)


def _largest(values: Array) -> Array:
    """Maximum over the leading axis; XLA's reductions over few long rows are much slower."""
    return reduce(jnp.maximum, values)


def _largest_forward(values):
    largest = _largest(values)
    return largest, (values, largest)


def _largest_backward(residuals, cotangent):
    values, largest = residuals
    count = reduce(jnp.add, [(slab == largest).astype(slab.dtype) for slab in values])
    return (jnp.where(values == largest[None], (cotangent / count)[None], 0),)


# Gradients by hand: a few sums of slices, where XLA would pad every slice to full size, and equal
# shares for the largest entries. Forward mode does not support them, so they are used only in
# gradients.
_stack_by_hand = jax.custom_vjp(_stack, nondiff_argnums=(1,))
_stack_by_hand.defvjp(_stack_forward, _stack_backward)
_largest_by_hand = jax.custom_vjp(_largest)
_largest_by_hand.defvjp(_largest_forward, _largest_backward)
