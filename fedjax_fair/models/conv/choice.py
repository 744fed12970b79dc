"""Convolution that stays fast where a federated simulation runs it.

A simulation convolves inside ``lax.scan`` (local steps) and often inside ``vmap`` over the
parameters of each client. Two things go wrong there with XLA's own convolution: on CPU its gradient
is one or two orders of magnitude slower inside a loop, and on every device a convolution batched
over kernels becomes a grouped convolution, one group a client. Matrix products have neither
problem. So images are cut into tiles and multiplied, by a banded matrix of the kernel or, where
that saves most of the multiplications, after Winograd; and the native convolution is used only
where it is good: on an accelerator, for a kernel that all examples share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
from jax import lax
from jaxtyping import Array

from fedjax_fair.models.conv import tiles, winograd
from fedjax_fair.models.conv.geometry import Padding, Pair

__all__ = ["convolve"]


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
            return jax.vmap(partial(tiles.convolve, **settings), axes)(x, kernel), True
        y = convolve(x.reshape(-1, *x.shape[2:]), kernel)  # a shared kernel: one larger batch
        return y.reshape(axis_size, -1, *y.shape[1:]), True

    return convolve


def _native_pull_back_if_alone(strides: Pair, padding: Padding) -> Callable:
    """The native gradient, except under any ``vmap``: it gives a kernel gradient per element."""
    settings = {"strides": strides, "padding": padding}

    @jax.custom_batching.custom_vmap
    def vjp(x, kernel, cotangent):
        return jax.vjp(partial(_native, **settings), x, kernel)[1](cotangent)

    @vjp.def_vmap
    def _(_axis_size, batched, *args):
        axes = tuple(0 if yes else None for yes in batched)
        tiled = partial(tiles.vjp, **settings)
        return jax.vmap(tiled, axes)(*args), (True, True)

    return vjp


def _forward(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Array:
    on_cpu = partial(tiles.in_chunks, strides=strides, padding=padding)
    if winograd.is_faster(x, kernel, strides, padding):
        on_cpu = partial(winograd.in_chunks, padding=padding)
    native = _native_if_shared(strides, padding)
    return lax.platform_dependent(x, kernel, cpu=on_cpu, default=native)


def _forward_with_residuals(x, kernel, strides, padding):
    return _forward(x, kernel, strides, padding), (x, kernel)


def _backward(strides, padding, residuals, cotangent):
    x, kernel = residuals
    on_cpu = partial(tiles.vjp_in_chunks, strides=strides, padding=padding)
    if winograd.is_faster(x, kernel, strides, padding):
        on_cpu = partial(winograd.vjp_in_chunks, padding=padding)
    native = _native_pull_back_if_alone(strides, padding)
    return lax.platform_dependent(x, kernel, cotangent, cpu=on_cpu, default=native)


# The gradient is defined by hand because `custom_vmap` has none in reverse mode, and around the
# choice of platform rather than inside it: differentiating the choice itself would make every
# platform carry the residuals of all the others.
convolve = jax.custom_vjp(_forward, nondiff_argnums=(2, 3))
convolve.defvjp(_forward_with_residuals, _backward)
