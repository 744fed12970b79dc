"""XLA's convolution and its rules for ``vmap``, on any platform."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.models.conv import native

STRIDES, PADDING = (2, 1), ((1, 1), (0, 2))


def normal(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reference(x, kernel):
    names = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, STRIDES, PADDING, dimension_numbers=names)


@pytest.mark.parametrize(("channels", "features"), [(2, 5), (64, 64)])  # Narrow and wide.
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_vmapped_convolution_equals_a_loop(axes, channels, features):
    # Nested in a second vmap over kernels.
    x = normal(0, (2, 1, 7, 6, channels))
    kernel = normal(1, (2, 2, 3, 3, channels, features)) / np.float32(channels**0.5)
    x = x if axes[0] == 0 else x[0]
    kernel = kernel if axes[1] == 0 else kernel[:, 0]

    def results(forward, backward):
        def both(x, kernel):
            y = forward(x, kernel)
            return y, backward(x, kernel, jnp.cos(y))

        return jax.vmap(jax.vmap(both, axes), (None, 0))

    def vjp(x, kernel, cotangent):
        return jax.vjp(reference, x, kernel)[1](cotangent)

    ours = results(
        partial(native.convolve, strides=STRIDES, padding=PADDING),
        partial(native.vjp, strides=STRIDES, padding=PADDING),
    )
    theirs = results(reference, vjp)
    got, expected = jax.jit(lambda *args: (ours(*args), theirs(*args)))(x, kernel)
    # Sums of up to 42 products of size one in another order, or 576 of a size of an eighth.
    atol = 2e-5 if channels < 64 else 7e-5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), got, expected)
