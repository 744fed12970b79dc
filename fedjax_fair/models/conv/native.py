"""XLA's convolution, except under a ``vmap`` over kernels, where it would be grouped."""

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

# Number of input and output channels from which a convolution uses a matrix unit fully.
_WIDE = 64


def convolve(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    """Computes XLA's convolution, without a gradient.

    Under a ``vmap`` over kernels, a narrow layer uses `tiles`; a wide one, or any on a TPU, is
    computed sequentially by kernel.
    """

    @jax.custom_batching.custom_vmap
    def shared(x, kernel):
        return _convolve(x, kernel, strides, padding)

    @shared.def_vmap
    def _(axis_size, batched, x, kernel):
        if batched[1]:
            tiled = partial(tiles.convolve, strides=strides, padding=padding)
            return _map_batched(kernel, shared, tiled, batched, (x, kernel)), True
        y = shared(x.reshape(-1, *x.shape[2:]), kernel)  # One larger batch.
        return y.reshape(axis_size, -1, *y.shape[1:]), True

    return shared(x, kernel)


def vjp(
    x: Array, kernel: Array, cotangent: Array, strides: Pair, padding: Padding
) -> tuple[Array, Array]:
    """Returns the gradients by images and kernel, implemented as `convolve`.

    Even if the kernel is shared, a ``vmap`` needs a gradient by it per element.
    """
    sizes = {"strides": strides, "padding": padding}
    alone = jax.custom_batching.custom_vmap(_vjp_of(partial(_convolve, **sizes)))

    @alone.def_vmap
    def _(_axis_size, batched, *args):
        tiled = _vjp_of(partial(tiles.convolve, **sizes))
        return _map_batched(kernel, alone, tiled, batched, args), (True, True)

    return alone(x, kernel, cotangent)


def _vjp_of(convolve_fn: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    return lambda x, kernel, cotangent: jax.vjp(convolve_fn, x, kernel)[1](cotangent)


def _map_batched(
    kernel: Array,
    alone: Callable[..., Any],
    tiled: Callable[..., Any],
    batched: Sequence[bool],
    args: Sequence[Array],
) -> Any:
    """Maps over the leading axis of the batched arguments, in parallel or sequentially."""
    # A TPU takes eight times the cycles for tiles of rows of 448 elements, as for FEMNIST.
    if min(kernel.shape[2:]) < _WIDE and target.current().platform != "tpu":
        return jax.vmap(tiled, tuple(0 if yes else None for yes in batched))(*args)

    def one(slices):
        remaining = iter(slices)
        return alone(
            *(next(remaining) if yes else arg for yes, arg in zip(batched, args, strict=True))
        )

    return lax.map(one, [arg for yes, arg in zip(batched, args, strict=True) if yes])


def _convolve(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=names)
