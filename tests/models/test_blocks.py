"""Convolution, ReLU and pooling at once, against the three layers of Flax one after another."""

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
    return jax.random.normal(jax.random.key(seed), shape)


class Reference(nn.Module):
    """The textbook's order: ReLU, then pooling."""

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
    """Outputs, and gradients by parameters and images."""

    def weighted(params, x):
        y = layer.apply({"params": params}, x)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), y

    return jax.jit(jax.grad(weighted, argnums=(0, 1), has_aux=True))(params, x)


def assert_same(image, features, kernel_size, padding, **settings):
    x = normal(0, image)
    kernel = {"kernel": normal(1, (*kernel_size, image[-1], features))}
    params = kernel | ({"bias": normal(2, (features,))} if settings.get("use_bias", True) else {})
    ours = results(
        Conv(features, kernel_size, padding=padding, relu_pool=True, **settings), params, x
    )
    reference = Reference(features, kernel_size, padding, **settings)
    (slopes, by_x), y = results(reference, {"Conv_0": params}, x)

    def check(ours, theirs):
        # Sums of thousands of products of size one in another order.
        atol = 1e-5 * max(1.0, np.abs(theirs).max(initial=0.0))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)

    jax.tree.map(check, ours, ((slopes["Conv_0"], by_x), y))


def side_of_blocks(features, kernel_size, strides=(1, 1)):
    return blocks.side_of_blocks(jnp.zeros((*kernel_size, 1, features)), strides)


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
def test_layer_is_the_one_of_flax(image, features, kernel_size, padding, side):
    assert side_of_blocks(features, kernel_size) == side
    assert_same(image, features, kernel_size, padding)
    assert_same(image, features, kernel_size, padding, use_bias=False)


# Few examples, because each compiles a program of its own.
@settings(max_examples=5, deadline=None)
@given(
    image=st.tuples(st.integers(1, 3), st.integers(5, 14), st.integers(5, 14), st.integers(1, 3)),
    features=st.integers(1, 8),
    kernel_size=st.tuples(st.sampled_from([1, 3, 5]), st.sampled_from([1, 3, 5])),
    padding=st.sampled_from(["SAME", "VALID", 1, ((0, 3), (2, 1))]),
)
def test_layer_is_the_one_of_flax_for_any_geometry(image, features, kernel_size, padding):
    assert_same(image, features, kernel_size, padding)


def test_steps_between_windows_leave_the_layers_apart():
    assert side_of_blocks(6, (5, 5), strides=(2, 2)) == 0
    layer = Conv(6, (5, 5), strides=(2, 2), relu_pool=True)
    y, variables = layer.init_with_output(jax.random.key(0), normal(0, (2, 12, 12, 1)))
    apart = nn.Conv(6, (5, 5), strides=(2, 2)).apply(variables, normal(0, (2, 12, 12, 1)))
    expected = nn.max_pool(nn.relu(apart), (2, 2), strides=(2, 2))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_batch_in_pieces_is_the_batch(monkeypatch):
    x, layer = normal(0, (6, 14, 14, 6)), Conv(16, (5, 5), padding="VALID", relu_pool=True)
    params = layer.init(jax.random.key(1), x)["params"]
    cut = blocks.layout(x, params["kernel"], ((0, 0), (0, 0)))
    band = blocks.banded(params["kernel"], cut)
    assert blocks._number(x, band, cut) == 1
    whole = results(layer, params, x)
    # Of an image 25 blocks of 6 x 6 x 6 inputs and 2 x 2 x 16 outputs; two of them fit.
    monkeypatch.setattr(chunks, "CACHE", 2 * 25 * (216 + 64) * 4)
    assert blocks._number(x, band, cut) == 3
    parts = results(layer, params, x)
    # Sums over the batch in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), whole, parts)


def test_equal_entries_share_the_gradient():
    layer = Conv(2, (3, 3), padding="VALID", relu_pool=True)
    params = {"kernel": jnp.ones((3, 3, 1, 2)), "bias": jnp.array([1.0, -20.0])}
    x = jnp.ones((1, 4, 4, 1))  # One window of four equal entries, 10 and -11.
    y, vjp = jax.vjp(lambda params, x: layer.apply({"params": params}, x), params, x)
    assert y.ravel().tolist() == [10.0, 0.0]
    slopes, by_x = vjp(jnp.ones_like(y))
    assert slopes["bias"].tolist() == [1.0, 0.0]
    np.testing.assert_array_equal(slopes["kernel"][..., 0], jnp.ones((3, 3, 1)))
    assert not slopes["kernel"][..., 1].any()
    # A corner of the image lies under one of the four, the middle under all.
    assert by_x[0, 0, 0, 0] == 0.25
    assert by_x[0, 1, 1, 0] == 1
    assert by_x.sum() == 9


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_layers_side_by_side_are_those_alone(axes):
    layer = Conv(6, (5, 5), padding="VALID", relu_pool=True)
    x, kernels = normal(0, (3, 2, 12, 12, 1)), normal(1, (3, 5, 5, 1, 6))
    x, kernels = (
        leaf if axis == 0 else leaf[0] for leaf, axis in zip((x, kernels), axes, strict=True)
    )

    def slopes(x, kernel):
        params = {"kernel": kernel, "bias": jnp.zeros(6)}
        return results(layer, params, x)

    together = jax.vmap(slopes, axes)(x, kernels)
    for i in range(3):
        alone = slopes(
            *(
                leaf if axis is None else leaf[i]
                for leaf, axis in zip((x, kernels), axes, strict=True)
            )
        )
        # Two forms of the matrix product round differently.
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=2e-5),
            together,
            alone,
        )


def test_hessian_vector_product_is_that_of_the_layers_apart():
    x, direction = normal(0, (3, 8, 8, 2)), normal(3, (5, 5, 2, 4))
    params = {"kernel": normal(1, (5, 5, 2, 4)), "bias": normal(2, (4,))}

    def at_once(params):
        return Conv(4, (5, 5), relu_pool=True).apply({"params": params}, x)

    def apart(params):
        return nn.relu(max_pool(nn.Conv(4, (5, 5)).apply({"params": params}, x)))

    def product(layer):
        gradient = jax.grad(lambda kernel: jnp.mean(jnp.sin(layer(params | {"kernel": kernel}))))
        return jax.jit(lambda kernel: jax.jvp(gradient, (kernel,), (direction,))[1])

    ours, theirs = (product(layer)(params["kernel"]) for layer in (at_once, apart))
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_accelerators_take_the_native_convolution_and_the_cpu_none():
    layer, x = Conv(6, (5, 5), relu_pool=True), normal(0, (2, 12, 12, 1))
    params = layer.init(jax.random.key(0), x)["params"]
    slopes = jax.jit(jax.grad(lambda params: layer.apply({"params": params}, x).sum()))
    for platform, present in (("cpu", False), ("cuda", True), ("tpu", True)):
        text = slopes.trace(params).lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.convolution" in text) == present
