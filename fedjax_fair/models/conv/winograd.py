"""Convolution by Winograd's algorithm, with fewer multiplications.

Six neighboring inputs and a kernel of ``r`` taps determine ``7 - r`` outputs. As polynomials they
are multiplied by their values at six points: six multiplications instead of ``r (7 - r)``, and for
images 36 instead of 144 (3 x 3) or 100 (5 x 5). Sums over channels are 36 matrix products. The
transforms round: errors are 1e-6 to 4e-6 of the result in single precision.

References:
    Lavin and Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016,
    https://arxiv.org/abs/1509.09308
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedjax_fair.models.conv import chunks
from fedjax_fair.models.conv.geometry import Padding, Pair, output_shape

__all__ = ["in_chunks", "is_faster", "vjp_in_chunks"]

_SIDE = 6  # Height and width of a tile of inputs.
_VALUES = _SIDE**2
_TAPS = range(2, 6)
_MIN_CHANNELS = 8  # With fewer, products are too narrow to be fast.
_POINTS = (0, 1, -1, 2, -2)  # In addition to infinity.


class _Transforms(NamedTuple):
    """The matrices of one direction, in the literature B transposed, G and A transposed.

    Attributes:
        inputs: From inputs to values, ``[6, 6]``.
        kernel: From taps to values, ``[6, taps]``.
        outputs: From products of values to outputs, ``[7 - taps, 6]``.
    """

    inputs: np.ndarray
    kernel: np.ndarray
    outputs: np.ndarray


@cache
def _transforms(taps: int) -> _Transforms:
    # A product of polynomials is evaluated at points, then interpolated (Lagrange). Correlation is
    # the transpose of multiplication: inputs are interpolated first, and outputs evaluated last.
    # Lagrange's denominators are included in the kernel.
    inputs = np.zeros((_SIDE, _SIDE))
    kernel, outputs = np.zeros((_SIDE, taps)), np.zeros((_SIDE + 1 - taps, _SIDE))
    for i, point in enumerate(_POINTS):
        others = [other for other in _POINTS if other != point]
        inputs[i, : _SIDE - 1] = np.poly(others)[::-1]
        kernel[i] = point ** np.arange(taps) / np.prod(np.subtract(point, others))
        outputs[:, i] = point ** np.arange(_SIDE + 1 - taps)
    # The value at infinity is the leading coefficient.
    inputs[-1] = np.poly(_POINTS)[::-1]
    kernel[-1, -1] = outputs[-1, -1] = 1
    return _Transforms(inputs, kernel, outputs)


def is_faster(x: Array, kernel: Array, strides: Pair, padding: Padding) -> bool:
    """Returns whether it is faster than `tiles` on a CPU, and accurate.

    It must save at least half of the multiplications, including those of tiles that extend beyond
    the edge, and have enough of them for the transform of the kernel to be negligible.
    """
    batch, (*taps, inputs, outputs) = x.shape[0], kernel.shape
    if strides != (1, 1) or x.dtype.itemsize < 4 or any(count not in _TAPS for count in taps):
        return False
    rows, columns = output_shape(x, kernel, strides, padding)
    tiles = math.prod(_num_tiles(taps, (rows, columns)))
    saved = 2 * tiles * _VALUES <= rows * columns * taps[0] * taps[1]
    return saved and batch * tiles >= _VALUES and min(inputs, outputs) >= _MIN_CHANNELS


def in_chunks(x: Array, kernel: Array, padding: Padding) -> Array:
    """Correlates images with a kernel of 2 to 5 taps a side, stride 1, in chunks of the batch."""
    taps, values = kernel.shape[:2], _kernel_values(kernel)
    low, shape = (padding[0][0], padding[1][0]), output_shape(x, kernel, (1, 1), padding)

    def of_chunk(x):
        products = _values(x, taps, low, shape) @ values  # [36, tiles, out]
        return _outputs(products, taps, x.shape[0], shape)

    return chunks.map_over(_num_chunks(x, kernel, shape), of_chunk, x)


def vjp_in_chunks(
    x: Array, kernel: Array, cotangent: Array, padding: Padding
) -> tuple[Array, Array]:
    """Returns the gradients of ``in_chunks`` by images and kernel.

    The first correlates the cotangent with the mirrored kernel.
    """
    taps, shape = kernel.shape[:2], x.shape[1:3]
    low = padding[0][0], padding[1][0]
    mirrored = taps[0] - 1 - low[0], taps[1] - 1 - low[1]
    values = _kernel_values(jnp.flip(kernel, (0, 1)))

    def of_chunk(x, cotangent):
        products = _values(cotangent, taps, mirrored, shape) @ values.swapaxes(1, 2)
        by_x = _outputs(products, taps, x.shape[0], shape)
        return by_x, _values_gradient(x, cotangent, taps, low)

    zero = jnp.zeros((_VALUES, *kernel.shape[2:]), x.dtype)
    num_chunks = _num_chunks(x, kernel, shape)
    by_x, by_values = chunks.map_and_sum(num_chunks, of_chunk, zero, x, cotangent)
    return by_x, _kernel_gradient(by_values, taps)


def _num_tiles(taps: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Numbers of rows and columns of tiles; the last may extend beyond the edge."""
    return [-(-side // (_SIDE + 1 - count)) for side, count in zip(shape, taps, strict=True)]


def _num_chunks(x: Array, kernel: Array, shape: Sequence[int]) -> int:
    """Number of chunks whose values fit into the cache, or have the size of the kernel's."""
    *taps, inputs, outputs = kernel.shape
    values = _VALUES * x.dtype.itemsize
    of_image = math.prod(_num_tiles(taps, shape)) * (inputs + outputs) * values
    return chunks.count(x.shape[0], of_image, room=inputs * outputs * values)


def _kernel_values(kernel: Array) -> Array:
    """Returns the values ``[36, in, out]`` of a kernel ``[kh, kw, in, out]``."""
    rows, columns = (_transforms(taps).kernel for taps in kernel.shape[:2])
    along = _combined(rows, kernel)  # [6, kw, in, out]
    # Columns come first, as in `_values`: [6 columns, 6 rows, in, out].
    return _combined(columns, along.swapaxes(0, 1)).reshape(_VALUES, *kernel.shape[2:])


def _kernel_gradient(by_values: Array, taps: Sequence[int]) -> Array:
    """Returns the gradient by a kernel from that by its values."""
    rows, columns = (_transforms(count).kernel.T for count in taps)
    along = _combined(columns, by_values.reshape(_SIDE, _SIDE, *by_values.shape[1:]))
    return _combined(rows, along.swapaxes(0, 1))  # From [kw, 6, in, out] to [kh, kw, in, out].


def _values_gradient(x: Array, cotangent: Array, taps: Sequence[int], low: Sequence[int]) -> Array:
    """Returns the gradient by the values ``[36, in, out]`` of a kernel."""
    by_input = _values(x, taps, low, cotangent.shape[1:3])  # [36, tiles, in]
    by_output = _cotangent_values(cotangent, taps)  # [36, tiles, out]
    # XLA's product repacks a transposed left factor, which should be the narrower of the two.
    if x.shape[3] <= cotangent.shape[3]:
        return jnp.einsum("ptc,pto->pco", by_input, by_output)
    return jnp.einsum("pto,ptc->poc", by_output, by_input).swapaxes(1, 2)


def _values(x: Array, taps: Sequence[int], low: Sequence[int], shape: Sequence[int]) -> Array:
    """Returns the values of overlapping tiles of images, ``[36, tiles, channels]``, columns first.

    Args:
        x: Images.
        taps: Height and width of the kernel.
        low: Zeros before the first row and column; negative to crop.
        shape: Rows and columns of the outputs.
    """
    steps, tiles = [_SIDE + 1 - count for count in taps], _num_tiles(taps, shape)
    totals = [count * step + _SIDE - step for count, step in zip(tiles, steps, strict=True)]
    edges = [
        (before, total - side - before, 0)
        for before, total, side in zip(low, totals, x.shape[1:3], strict=True)
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])

    def windows(x, axis, step, count):
        return [
            lax.slice_in_dim(x, i, i + step * (count - 1) + 1, step, axis) for i in range(_SIDE)
        ]

    rows, columns = (_transforms(count).inputs for count in taps)
    # [6 rows, batch, tile rows, width, channels], then the same of columns in front:
    # [6 columns, 6 rows, batch, tile rows, tile columns, channels].
    along = _combined(rows, windows(x, 1, steps[0], tiles[0]))
    values = _combined(columns, windows(along, 3, steps[1], tiles[1]))
    return values.reshape(_VALUES, -1, x.shape[3])


def _outputs(products: Array, taps: Sequence[int], batch: int, shape: Sequence[int]) -> Array:
    """Converts products of values ``[36, tiles, channels]`` to images."""
    rows, columns = (_transforms(count).outputs for count in taps)
    tiles = _num_tiles(taps, shape)
    products = products.reshape(_SIDE, _SIDE, batch, *tiles, -1)
    along = _combined(columns, products)  # [columns of a tile, 6 rows, batch, ...]
    outputs = _combined(rows, [along[:, i] for i in range(_SIDE)])
    # From [row, column, batch, tile row, tile column, channels], with positions in a tile first, to
    # [batch, tile row, row, tile column, column, channels], an image.
    outputs = outputs.transpose(2, 3, 0, 4, 1, 5)
    outputs = outputs.reshape(batch, tiles[0] * len(rows), tiles[1] * len(columns), -1)
    return outputs[:, : shape[0], : shape[1]]


def _cotangent_values(cotangent: Array, taps: Sequence[int]) -> Array:
    """The transpose of ``_outputs``: ``[36, tiles, channels]``."""
    rows, columns = (_transforms(count).outputs.T for count in taps)
    batch, *shape, channels = cotangent.shape
    steps, tiles = (rows.shape[1], columns.shape[1]), _num_tiles(taps, shape)
    edges = [(0, -side % step, 0) for side, step in zip(shape, steps, strict=True)]
    zero = jnp.zeros((), cotangent.dtype)
    padded = lax.pad(cotangent, zero, [(0, 0, 0), *edges, (0, 0, 0)])
    parts = padded.reshape(batch, tiles[0], steps[0], tiles[1], steps[1], channels)
    # [6 rows, batch, tile rows, tile columns, column, channels], then [6 columns, 6 rows, ...].
    along = _combined(rows, [parts[:, :, i] for i in range(steps[0])])
    values = _combined(columns, [along[:, :, :, :, j] for j in range(steps[1])])
    return values.reshape(_VALUES, -1, channels)


def _combined(weights: np.ndarray, parts: Iterable[Array]) -> Array:
    """Returns weighted sums of arrays, one per row of weights, without terms of weight zero."""
    parts = list(parts)
    # Stacked for the transform of the other direction, because XLA would compute the inner sums of
    # 36 separate expressions 36 times.
    return jnp.stack([_sum(row, parts) for row in weights])


def _sum(weights: np.ndarray, parts: Sequence[Array]) -> Array:
    terms = [
        part if weight == 1 else part * np.asarray(weight, part.dtype)
        for weight, part in zip(weights, parts, strict=True)
        if weight != 0
    ]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
