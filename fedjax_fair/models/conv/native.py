"""XLA's own convolution, wherever it is not grouped: for a kernel that all examples share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax
from jaxtyping import Array

from fedjax_fair.models.conv import tiles
from fedjax_fair.models.conv.geometry import Padding, Pair
from fedjax_fair.numerics import target

__all__ = ["convolve", "vjp"]

# Channels on both sides from which a convolution fills a matrix unit by itself.
_WIDE = 64


def convolve(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    """XLA's convolution, in a form of its own under a ``vmap`` over kernels.

    There, `tiles` take its place if the layer is narrow, and a wide one, or any on a TPU, is
    computed for one kernel after another. It has no gradient of its own: reverse mode does not pass
    through a rule for ``vmap``.

    Args:
        x: Images ``[batch, height, width, in]``.
        kernel: ``[kh, kw, in, out]``.
        strides: Steps between windows.
        padding: Zeros before and after rows and columns.

    Returns:
        ``[batch, rows, columns, out]``.
    """

    @jax.custom_batching.custom_vmap
    def shared(x, kernel):
        return _convolve(x, kernel, strides, padding)

    @shared.def_vmap
    def _(axis_size, batched, x, kernel):
        if batched[1]:
            tiled = partial(tiles.convolve, strides=strides, padding=padding)
            return _of_each(kernel, shared, tiled, batched, (x, kernel)), True
        y = shared(x.reshape(-1, *x.shape[2:]), kernel)  # One larger batch.
        return y.reshape(axis_size, -1, *y.shape[1:]), True

    return shared(x, kernel)


def vjp(
    x: Array, kernel: Array, cotangent: Array, strides: Pair, padding: Padding
) -> tuple[Array, Array]:
    """Gradients by images and kernel: XLA's, in forms of their own under any ``vmap``.

    Even where the kernel is shared, a ``vmap`` asks for a gradient by it per element.
    """

    @jax.custom_batching.custom_vmap
    def alone(x, kernel, cotangent):
        form = partial(_convolve, strides=strides, padding=padding)
        return jax.vjp(form, x, kernel)[1](cotangent)

    @alone.def_vmap
    def _(_axis_size, batched, *args):
        tiled = partial(tiles.vjp, strides=strides, padding=padding)
        return _of_each(kernel, alone, tiled, batched, args), (True, True)

    return alone(x, kernel, cotangent)


def _of_each(
    kernel: Array,
    alone: Callable[..., Any],
    tiled: Callable[..., Any],
    batched: Sequence[bool],
    args: Sequence[Array],
) -> Any:
    """Maps over the leading axis of the arguments that have one."""
    # A TPU takes eight times the cycles for tiles of rows of 448 numbers, as for FEMNIST.
    if min(kernel.shape[2:]) < _WIDE and target.current().platform != "tpu":
        return jax.vmap(tiled, tuple(0 if yes else None for yes in batched))(*args)

    def one(own):
        of_one = iter(own)
        return alone(
            *(next(of_one) if yes else arg for yes, arg in zip(batched, args, strict=True))
        )

    return lax.map(one, [arg for yes, arg in zip(batched, args, strict=True) if yes])


def _convolve(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=names)
