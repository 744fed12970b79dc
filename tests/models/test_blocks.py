"""Convolution, ReLU and pooling in one layer, against three layers of Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair.models import Conv, max_pool
from fedjax_fair.models.conv import blocks, chunks


def normal(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Reference(nn.Module):
    """The usual order: ReLU, then pooling."""

    features: int
    kernel_size: tuple[int, int]
    padding: object
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(
            self.features,
            self.kernel_size,
            padding=self.padding,
            use_bias=self.use_bias,
            name="Conv_0",
        )(x)
        return nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))


def results(layer, params, x):
    """Returns gradients by parameters and images, and outputs."""

    def weighted(params, x):
        y = layer.apply({"params": params}, x)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), y

    return jax.grad(weighted, argnums=(0, 1), has_aux=True)(params, x)


def assert_same(image, features, kernel_size, padding, **settings):
    x = normal(0, image)
    kernel = {"kernel": normal(1, (*kernel_size, image[-1], features))}
    params = kernel | ({"bias": normal(2, (features,))} if settings.get("use_bias", True) else {})
    layer = Conv(features, kernel_size, padding=padding, relu_pool=True, **settings)
    reference = Reference(features, kernel_size, padding, **settings)

    @jax.jit
    def both(params, x):
        return results(layer, params, x), results(reference, {"Conv_0": params}, x)

    ours, ((slopes, by_x), y) = both(params, x)

    def check(ours, theirs):
        # Sums of thousands of products of size one in another order.
        atol = 1e-5 * max(1.0, np.abs(theirs).max(initial=0.0))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)

    jax.tree.map(check, ours, ((slopes["Conv_0"], by_x), y))


@pytest.mark.parametrize(
    ("image", "features", "kernel_size", "padding", "side"),
    [
        ((3, 32, 32, 1), 6, (5, 5), "VALID", 4),  # LeNet
        ((3, 14, 14, 6), 16, (5, 5), "VALID", 2),
        ((2, 28, 28, 1), 32, (5, 5), "VALID", 2),  # FEMNIST
        ((2, 13, 10, 2), 6, (5, 5), "SAME", 4),  # blocks beyond the image, an odd row
        ((2, 9, 8, 3), 4, (3, 5), ((2, 0), (1, 3)), 2),
        ((2, 12, 15, 2), 3, (7, 7), 1, 6),
        ((1, 5, 5, 1), 2, (5, 5), "VALID", 4),  # a single output: nothing is left to pool
        ((2, 6, 6, 1), 2, (5, 5), "VALID", 4),  # a single window
        ((2, 9, 9, 3), 3, (4, 4), "VALID", 0),  # an even kernel: no blocks
        ((2, 9, 9, 3), 40, (3, 3), "VALID", 0),  # too wide
    ],
)
def test_layer_equals_flax(image, features, kernel_size, padding, side):
    assert blocks._side(np.zeros((*kernel_size, image[-1], features))) == side
    assert_same(image, features, kernel_size, padding)


@pytest.mark.parametrize("features", [4, 40])
def test_layer_without_bias_equals_flax(features):
    assert_same((2, 9, 9, 3), features, (3, 3), "VALID", use_bias=False)


# Few examples, because each compiles a program of its own.
@settings(max_examples=5, deadline=None)
@given(
    image=st.tuples(st.integers(1, 3), st.integers(5, 14), st.integers(5, 14), st.integers(1, 3)),
    features=st.integers(1, 8),
    kernel_size=st.tuples(st.sampled_from([1, 3, 5]), st.sampled_from([1, 3, 5])),
    padding=st.sampled_from(["SAME", "VALID", 1, ((0, 3), (2, 1))]),
)
def test_layer_equals_flax_for_any_geometry(image, features, kernel_size, padding):
    assert_same(image, features, kernel_size, padding)


def test_strides_disable_the_combined_layer():
    x, kernel = normal(0, (2, 12, 12, 1)), normal(1, (5, 5, 1, 6))
    variables = {"params": {"kernel": kernel, "bias": normal(2, (6,))}}

    @jax.jit
    def both():
        layer = Conv(6, (5, 5), strides=(2, 2), relu_pool=True)
        apart = nn.Conv(6, (5, 5), strides=(2, 2)).apply(variables, x)
        return layer.apply(variables, x), nn.max_pool(nn.relu(apart), (2, 2), strides=(2, 2))

    assert not blocks.is_faster(x, kernel, (2, 2), ((2, 2), (2, 2)))
    ours, theirs = both()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_chunks_do_not_change_the_result(monkeypatch):
    x, kernel, none = normal(0, (6, 14, 14, 6)), normal(1, (5, 5, 6, 16)), ((0, 0), (0, 0))
    layer = Conv(16, (5, 5), padding="VALID", relu_pool=True)
    cut = blocks._layout(x, kernel, none)
    band = jax.eval_shape(lambda: blocks._banded(kernel, cut))

    def gradients():  # A new function each time, so that none is found compiled.
        return jax.jit(lambda *args: results(layer, *args))(
            {"kernel": kernel, "bias": normal(2, (16,))}, x
        )

    assert blocks._num_chunks(x, band, cut) == 1
    whole = gradients()
    # Of an image 25 blocks of 6 x 6 x 6 inputs and 2 x 2 x 16 outputs; two of them fit.
    monkeypatch.setattr(chunks, "CACHE", 2 * 25 * (216 + 64) * 4)
    assert blocks._num_chunks(x, band, cut) == 3
    # Sums over the batch in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), whole, gradients()
    )


def test_equal_entries_share_the_gradient():
    layer = Conv(2, (3, 3), padding="VALID", relu_pool=True)
    params = {"kernel": np.ones((3, 3, 1, 2), np.float32), "bias": np.float32([1.0, -20.0])}
    x = np.ones((1, 4, 4, 1), np.float32)  # One window of four equal entries, 10 and -11.

    @jax.jit
    def both(params, x):
        y, vjp = jax.vjp(lambda params, x: layer.apply({"params": params}, x), params, x)
        return y, *vjp(jnp.ones_like(y))

    y, slopes, by_x = both(params, x)
    assert y.ravel().tolist() == [10.0, 0.0]
    assert slopes["bias"].tolist() == [1.0, 0.0]
    kernel_slopes, by_x = np.asarray(slopes["kernel"]), np.asarray(by_x)
    np.testing.assert_array_equal(kernel_slopes[..., 0], np.ones((3, 3, 1)))
    assert not kernel_slopes[..., 1].any()
    # A corner of the image lies under one of the four, the middle under all.
    assert by_x[0, 0, 0, 0] == 0.25
    assert by_x[0, 1, 1, 0] == 1
    assert by_x.sum() == 9


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_vmapped_layers_equal_single_ones(axes):
    layer = Conv(6, (5, 5), padding="VALID", relu_pool=True)
    x, kernels = normal(0, (3, 2, 12, 12, 1)), normal(1, (3, 5, 5, 1, 6))
    # Where there is no axis, all three are the first.
    x, kernels = (
        leaf if axis == 0 else leaf[:1].repeat(3, axis=0)
        for leaf, axis in zip((x, kernels), axes, strict=True)
    )

    def slopes(x, kernel):
        params = {"kernel": kernel, "bias": jnp.zeros(6)}
        return results(layer, params, x)

    @jax.jit
    def both(x, kernels):
        operands = x if axes[0] == 0 else x[0], kernels if axes[1] == 0 else kernels[0]
        alone = jax.lax.map(lambda pair: slopes(*pair), (x, kernels))
        return jax.vmap(slopes, axes)(*operands), alone

    together, alone = both(x, kernels)
    # Two forms of the matrix product round differently.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), together, alone
    )


def test_hessian_vector_product_equals_separate_layers():
    x, direction = normal(0, (3, 8, 8, 2)), normal(3, (5, 5, 2, 4))
    params = {"kernel": normal(1, (5, 5, 2, 4)), "bias": normal(2, (4,))}

    def at_once(params):
        return Conv(4, (5, 5), relu_pool=True).apply({"params": params}, x)

    def apart(params):
        return nn.relu(max_pool(nn.Conv(4, (5, 5)).apply({"params": params}, x)))

    def product(layer):
        gradient = jax.grad(lambda kernel: jnp.mean(jnp.sin(layer(params | {"kernel": kernel}))))
        return jax.jvp(gradient, (params["kernel"],), (direction,))[1]

    ours, theirs = jax.jit(lambda: (product(at_once), product(apart)))()
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
