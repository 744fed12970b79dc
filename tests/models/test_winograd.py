"""Winograd's convolution against sums of products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.models.conv import winograd


def normal(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
def test_values_multiply_like_polynomials(taps):
    transforms = winograd._transforms(taps)
    rng = np.random.default_rng(taps)
    inputs, kernel = rng.normal(size=6), rng.normal(size=taps)
    products = (transforms.kernel @ kernel) * (transforms.inputs @ inputs)
    expected = np.correlate(inputs, kernel, mode="valid")
    np.testing.assert_allclose(transforms.outputs @ products, expected, rtol=1e-12)


def plain(x, kernel, padding):
    names = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=names)


def assert_near(ours, theirs):
    # The transforms lose a digit: 4e-6 of the length, and single entries a few times that.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("image", "kernel", "padding"),
    [
        ((2, 12, 16, 8), (3, 3, 8, 9), ((1, 1), (1, 1))),
        ((2, 13, 11, 4), (3, 3, 4, 3), ((0, 0), (0, 0))),  # tiles stick out over the edge
        ((3, 9, 10, 2), (5, 5, 2, 6), ((2, 2), (2, 2))),
        ((1, 10, 12, 3), (2, 4, 3, 5), ((1, 0), (0, 2))),
        ((2, 7, 8, 3), (3, 2, 3, 4), ((4, 0), (0, 3))),  # wider than the kernel
        ((1, 3, 3, 2), (3, 3, 2, 2), ((0, 0), (0, 0))),  # one output
        ((4, 32, 32, 64), (3, 3, 64, 32), ((1, 1), (1, 1))),  # two chunks of two images
        ((3, 30, 30, 96), (3, 3, 96, 64), ((0, 1), (1, 0))),  # three of one
    ],
)
def test_outputs_and_gradients_equal_a_plain_convolution(image, kernel, padding):
    x, weights = normal(0, image), normal(1, kernel)

    @jax.jit
    def both(x, weights):
        expected, vjp = jax.vjp(lambda *args: plain(*args, padding), x, weights)
        cotangent = jnp.cos(jnp.arange(expected.size, dtype=x.dtype)).reshape(expected.shape)
        ours = winograd.in_chunks(x, weights, padding)
        gradients = winograd.vjp_in_chunks(x, weights, cotangent, padding)
        return (ours, *gradients), (expected, *vjp(cotangent))

    jax.tree.map(assert_near, *both(x, weights))


def test_vmap_over_kernels():
    padding = ((1, 1), (1, 1))
    x, weights = normal(0, (3, 2, 8, 8, 8)), normal(1, (3, 3, 3, 8, 8))

    @jax.jit
    def both(*operands):
        theirs = jax.lax.map(lambda each: plain(*each, padding), operands)
        return jax.vmap(lambda *each: winograd.in_chunks(*each, padding))(*operands), theirs

    assert_near(*both(x, weights))


def is_faster(image, kernel, strides=(1, 1), padding=1, dtype=jnp.float32):
    x, weights = (jax.ShapeDtypeStruct(shape, dtype) for shape in (image, kernel))
    return winograd.is_faster(x, weights, strides, ((padding, padding), (padding, padding)))


def test_winograd_is_used_if_it_saves_most_multiplications():
    assert is_faster((10, 30, 30, 32), (3, 3, 32, 64), padding=0)
    assert is_faster((10, 12, 12, 32), (5, 5, 32, 64), padding=0)
    assert is_faster((32, 8, 8, 256), (3, 3, 256, 256))


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param({"image": (32, 4, 4, 512), "kernel": (3, 3, 512, 512)}, id="few tiles"),
        pytest.param({"image": (32, 5, 5, 64), "kernel": (3, 3, 64, 64)}, id="tiles stick out"),
        pytest.param({"image": (32, 32, 32, 3), "kernel": (3, 3, 3, 64)}, id="narrow"),
        pytest.param({"image": (32, 16, 16, 64), "kernel": (1, 1, 64, 64), "padding": 0}, id="dot"),
        pytest.param({"image": (32, 16, 16, 64), "kernel": (7, 7, 64, 64)}, id="wide kernel"),
        pytest.param(
            {"image": (32, 16, 16, 64), "kernel": (3, 3, 64, 64), "strides": (2, 2)}, id="strides"
        ),
        pytest.param(
            {"image": (32, 16, 16, 64), "kernel": (3, 3, 64, 64), "dtype": jnp.bfloat16},
            id="half precision",
        ),
    ],
)
def test_winograd_is_not_used_otherwise(layer):
    assert not is_faster(**layer)
