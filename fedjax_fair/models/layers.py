"""Convolution and pooling that stay fast where a federated simulation runs them.

A simulation runs its layers inside ``lax.scan`` (local steps) and often inside ``vmap`` over the
parameters of each client. Two things go wrong there with XLA's own convolution: on CPU it is an
order of magnitude slower inside a loop, and on every device a convolution batched over kernels
becomes a grouped convolution, one group a client. A matrix product has neither problem. So `Conv`
cuts the image into tiles and multiplies, and uses the native convolution only where it is good: on
an accelerator, for a kernel that all examples share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import lax
from jaxtyping import Array, Float

__all__ = ["Conv", "max_pool"]

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]

# Columns of the matrix product that a tile aims at: measured optimum on CPU is broad, 64 to 128.
_PRODUCT_COLUMNS = 96


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


def _tiled(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    """Convolves by one matrix product: tiles of a row times a banded matrix of the kernel.

    With one output a tile this is the textbook product of patches and kernel; with a whole row a
    tile it is a Toeplitz matrix. Skinny layers are fastest between the two: wider tiles copy each
    pixel less often and give the product enough columns, but multiply more zeros.
    """
    batch, height, width, _ = x.shape
    kernel_height, kernel_width, _, channels = kernel.shape
    rows = (height + sum(padding[0]) - kernel_height) // strides[0] + 1
    columns = (width + sum(padding[1]) - kernel_width) // strides[1] + 1
    tile = _tile_width(columns, channels, kernel_width, strides[1])
    count, span = -(-columns // tile), kernel_width + (tile - 1) * strides[1]
    layout = (count, tile * strides[1])
    tiles = _tiles(x, rows, (kernel_height, span), strides, padding, layout)
    outputs = tiles @ _banded(kernel, tile, strides[1])
    return outputs.reshape(batch, rows, count * tile, channels)[:, :, :columns]


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
    tiled = partial(_tiled, strides=strides, padding=padding)
    native = _native_if_shared(strides, padding)
    return lax.platform_dependent(x, kernel, cpu=tiled, default=native)


def _forward_with_residuals(x, kernel, strides, padding):
    return _forward(x, kernel, strides, padding), (x, kernel)


def _backward(strides, padding, residuals, cotangent):
    tiled = partial(_pull_back, partial(_tiled, strides=strides, padding=padding))
    native = _native_pull_back_if_alone(strides, padding)
    return lax.platform_dependent(*residuals, cotangent, cpu=tiled, default=native)


# The gradient is defined by hand because `custom_vmap` has none in reverse mode, and around the
# choice of platform rather than inside it: differentiating the choice itself would make every
# platform carry the residuals of all the others.
_convolve = jax.custom_vjp(_forward, nondiff_argnums=(2, 3))
_convolve.defvjp(_forward_with_residuals, _backward)


def _explicit_padding(
    padding: str | int | Sequence[int | Pair], shape: Pair, window: Pair, strides: Pair
) -> Padding:
    """Turns any accepted way to write a padding into two pairs."""
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ValueError(f"{padding=}: expected 'SAME', 'VALID', an int, ints or pairs.")
        rows, columns = lax.padtype_to_pads(shape, window, strides, padding)
        return (rows[0], rows[1]), (columns[0], columns[1])
    sides = (padding, padding) if isinstance(padding, int) else tuple(padding)
    if len(sides) != 2:
        raise ValueError(f"{padding=}: expected one entry for rows and one for columns.")
    rows, columns = ((side, side) if isinstance(side, int) else side for side in sides)
    return (rows[0], rows[1]), (columns[0], columns[1])


class Conv(nn.Module):
    """Two-dimensional convolution with the parameters and results of ``flax.linen.Conv``.

    Images are ``[batch, height, width, channels]``, parameters are ``kernel [kh, kw, in, out]`` and
    ``bias [out]``, initialised as Flax does, so variables move freely between the two classes.

    On CPU, and under a ``vmap`` over kernels on any device, it is a product of image tiles and a
    banded matrix of the kernel; elsewhere XLA's convolution. Reverse mode works once, under any
    nesting of ``vmap``, ``scan`` and ``jit``; forward mode works only over that gradient.

    Attributes:
        features: Output channels.
        kernel_size: Height and width of the kernel.
        strides: Step between windows, along height and width.
        padding: "SAME", "VALID", an int for all sides, an int per axis or a pair per axis.
        use_bias: Whether a bias is added.
        kernel_init: Initialiser of the kernel.
        bias_init: Initialiser of the bias.

    Raises:
        ValueError: If the input is not a batch of images, the padding is none of the above or the
            kernel does not fit into the padded image.

    Examples:
        >>> layer = Conv(features=6, kernel_size=(5, 5), padding="VALID")
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 28, 28, 1)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((2, 24, 24, 6), (5, 5, 1, 6))
    """

    features: int
    kernel_size: Pair
    strides: Pair = (1, 1)
    padding: str | int | Sequence[int | Pair] = "SAME"
    use_bias: bool = True
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch rows columns features"]:
        """Convolves a batch of images."""
        shape = (x.shape[1], x.shape[2])
        padding = _explicit_padding(self.padding, shape, self.kernel_size, self.strides)
        if any(n + sum(p) < k for n, p, k in zip(shape, padding, self.kernel_size, strict=True)):
            raise ValueError(
                f"kernel_size={self.kernel_size}: expected at most the image {shape} "
                f"with its padding {padding}."
            )
        kernel = self.param(
            "kernel", self.kernel_init, (*self.kernel_size, x.shape[-1], self.features)
        )
        bias = self.param("bias", self.bias_init, (self.features,)) if self.use_bias else None
        x, kernel, bias = promote_dtype(x, kernel, bias)
        y = _convolve(x, kernel, self.strides, padding)
        return y if bias is None else y + bias.reshape(1, 1, 1, -1)


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
