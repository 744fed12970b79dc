"""Products of rows against a convolution, ReLU and max-pooling."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.models.conv import rows


def normal(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reference(x, kernel, bias, padding):
    names = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=names)
    return nn.max_pool(nn.relu(y + bias.reshape(1, 1, 1, -1)), (2, 2), (2, 2))


def with_gradients(form, padding, *operands):
    def weighted(*operands):
        y = form(*operands, padding=padding)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), y

    return jax.grad(weighted, argnums=(0, 1, 2), has_aux=True)(*operands)


def assert_close(ours, expected):
    # Sums of up to 150 products of size one in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-5), ours, expected
    )


@pytest.mark.parametrize(
    ("image", "kernel", "outputs", "padding"),
    [
        ((2, 14, 14, 6), (5, 5), 16, ((0, 0), (0, 0))),  # LeNet's second
        ((2, 9, 12, 1), (5, 5), 6, ((2, 2), (2, 2))),  # its first; a row is left over
        ((2, 8, 9, 3), (3, 3), 4, ((1, 1), (1, 1))),  # a column is left over
        ((1, 7, 8, 2), (4, 2), 3, ((1, 2), (0, 1))),
        ((2, 4, 6, 3), (1, 1), 5, ((0, 0), (0, 0))),
        ((1, 6, 7, 2), (2, 5), 3, ((3, 0), (0, 4))),
    ],
)
def test_rows_equal_convolution_relu_and_pooling(image, kernel, outputs, padding):
    operands = normal(0, image), normal(1, (*kernel, image[3], outputs)), normal(2, (outputs,))
    assert rows.is_faster(*operands[:2], (1, 1), padding)

    def both(*operands):
        return [with_gradients(form, padding, *operands) for form in (rows.pooled, reference)]

    assert_close(*jax.jit(both)(*operands))


def test_vmap_over_kernels():
    x, kernels, biases = normal(0, (3, 2, 8, 8, 2)), normal(1, (3, 3, 3, 2, 4)), normal(2, (3, 4))
    padding = ((1, 1), (1, 1))

    @jax.jit
    def both(*operands):
        ours, theirs = (partial(with_gradients, form, padding) for form in (rows.pooled, reference))
        return jax.vmap(ours)(*operands), jax.lax.map(lambda each: theirs(*each), operands)

    assert_close(*both(x, kernels, biases))


def test_equal_entries_of_a_window_share_the_gradient():
    x, kernel, bias = (np.ones(shape, np.float32) for shape in [(1, 2, 2, 1), (1, 1, 1, 1), 1])
    slope = jax.jit(jax.grad(lambda x: rows.pooled(x, kernel, bias, ((0, 0), (0, 0))).sum()))(x)
    np.testing.assert_array_equal(slope, np.full_like(x, 0.25))


@pytest.mark.parametrize(
    ("side", "outputs", "strides", "fits"),
    [
        (16, 16, (1, 1), True),
        (18, 16, (1, 1), False),
        (16, 16, (2, 2), False),
        (1, 6, (1, 1), False),
    ],
)
def test_rows_need_outputs_that_fit_into_a_tile(side, outputs, strides, fits):
    x, kernel = np.zeros((2, side, side, 3)), np.zeros((1, 1, 3, outputs))
    assert rows.is_faster(x, kernel, strides, ((0, 0), (0, 0))) == fits
