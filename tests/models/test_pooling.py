"""Max-pooling against Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.models import max_pool
from fedjax_fair.models.conv.pooling import (
    shared_by_largest,
    vjp_of_windows,
    windows_max,
)


@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (1, 7, 9, 2), (3, 5, 4, 1), (2, 3, 2, 1)])
def test_max_pool_equals_flax(shape):
    # Distinct values: at ties the two share the gradient differently.
    values = np.random.default_rng(0).permutation(np.prod(shape))
    x = values.reshape(shape).astype(np.float32)

    def results(pool):
        y, vjp = jax.vjp(pool, x)
        return y, *vjp(jnp.cos(jnp.arange(float(y.size))).reshape(y.shape))

    def reference(x):
        return nn.max_pool(x, (2, 2), strides=(2, 2))

    def gradients(y):
        cotangent = jnp.cos(jnp.arange(float(y.size))).reshape(y.shape)
        return [form(x, y, cotangent) for form in (shared_by_largest, vjp_of_windows)]

    @jax.jit
    def all_forms(x):
        y, gradient = results(max_pool)
        return (y, windows_max(x)), (gradient, *gradients(y)), results(reference)

    outputs, slopes, (output, slope) = all_forms(x)
    for each in outputs:
        np.testing.assert_array_equal(each, output)
    for each in slopes:
        np.testing.assert_array_equal(each, slope)


def test_max_pool_halves_the_gradient_at_each_tie():
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x))))
    assert (gradient(jnp.ones((1, 2, 2, 1))) == 0.25).all()
    column = jnp.array([[1.0, 0.0], [1.0, 0.0]]).reshape(1, 2, 2, 1)
    assert gradient(column).ravel().tolist() == [0.5, 0.0, 0.5, 0.0]


def test_largest_entries_of_a_window_share_equally():
    x = jnp.array([[2.0, 2.0], [1.0, 2.0]]).reshape(1, 2, 2, 1)
    shares = shared_by_largest(x, max_pool(x), jnp.full((1, 1, 1, 1), 6.0))
    assert shares.ravel().tolist() == [2.0, 2.0, 0.0, 2.0]
