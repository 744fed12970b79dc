"""The convolutional layer against Flax, and its compiled operations."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair.models import Conv, lenet
from fedjax_fair.numerics import target


def normal(seed, shape, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def assert_same_layer(
    image, features, kernel_size, strides, padding, *, use_bias=True, tolerance=1e-5
):
    """Compares outputs and gradients by parameters and input, compiled once."""
    settings = (features, kernel_size, strides, padding)
    params = {"kernel": normal(1, (*kernel_size, image[-1], features))}
    if use_bias:
        params["bias"] = normal(2, (features,))

    def results(layer, params, x):
        def weighted(params, x):
            y = layer(*settings, use_bias=use_bias).apply({"params": params}, x)
            weight = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
            return jnp.sum(y * weight), y

        return jax.grad(weighted, argnums=(0, 1), has_aux=True)(params, x)

    def both(params, x):
        return results(Conv, params, x), results(nn.Conv, params, x)

    def check(ours, theirs):
        assert ours.dtype == theirs.dtype
        scale = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale)

    jax.tree.map(check, *jax.jit(both)(params, normal(0, image)))


def test_parameters_equal_those_of_flax():
    settings = [{"use_bias": True}, {"use_bias": False}, {"kernel_init": nn.initializers.ones}]

    def variables(layer):
        layers = [layer(4, (3, 5), **extra) for extra in settings]
        return [each.init(jax.random.key(0), jnp.zeros((1, 6, 6, 3))) for each in layers]

    ours, theirs = jax.jit(lambda: (variables(Conv), variables(nn.Conv)))()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize(
    ("image", "features", "kernel_size", "strides", "padding"),
    [
        ((2, 28, 28, 1), 6, (5, 5), (1, 1), 2),  # LeNet: tiles of 14
        ((2, 14, 14, 6), 16, (5, 5), (1, 1), "VALID"),  # tiles of 5
        ((2, 9, 13, 3), 6, (3, 3), (1, 1), "SAME"),  # one tile of 13
        ((2, 9, 19, 3), 10, (3, 3), (1, 1), "SAME"),  # three tiles of 7: the last is ragged
        ((1, 8, 8, 64), 96, (3, 3), (2, 2), 1),  # ResNet: plain patches
        ((2, 9, 9, 4), 8, (1, 1), (2, 2), 0),  # ResNet's shortcut; a column is cut off
        ((2, 9, 10, 2), 3, (3, 2), (2, 3), "SAME"),
        ((2, 9, 10, 2), 3, (4, 5), (1, 2), ((2, 0), (1, 3))),
        ((2, 7, 11, 2), 3, (3, 4), (3, 1), (1, 2)),
        ((1, 5, 5, 2), 7, (5, 5), (1, 1), "VALID"),  # a single output
        ((8, 41, 20, 32), 64, (3, 3), (2, 1), "VALID"),  # two chunks of four images
        ((7, 50, 24, 32), 40, (3, 3), (2, 1), "SAME"),  # seven chunks of one
    ],
)
def test_convolution_equals_flax(image, features, kernel_size, strides, padding):
    assert_same_layer(image, features, kernel_size, strides, padding)


@pytest.mark.parametrize(
    ("image", "features", "padding"),
    [((8, 20, 20, 32), 64, "VALID"), ((7, 25, 24, 32), 40, "SAME")],
)
def test_winograd_equals_flax(image, features, padding):
    # Its sums of sums cancel, so that it rounds more than others: by 2e-5 of the largest number on
    # a processor without AVX-512.
    assert_same_layer(image, features, (3, 3), (1, 1), padding, tolerance=4e-5)


def pairs(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high))


# Few examples, because each compiles a program of its own.
@settings(max_examples=5, deadline=None)
@given(
    side=pairs(5, 12),
    kernel_size=pairs(1, 5),
    strides=pairs(1, 3),
    padding=st.sampled_from(["SAME", "VALID", 1]) | st.tuples(pairs(0, 3), pairs(0, 3)),
    channels=st.integers(1, 3),
    features=st.sampled_from([1, 5, 40]),
    use_bias=st.booleans(),
)
def test_convolution_equals_flax_for_any_geometry(
    side, kernel_size, strides, padding, channels, features, use_bias
):
    image = (2, *side, channels)
    assert_same_layer(image, features, kernel_size, strides, padding, use_bias=use_bias)


def test_low_precision_input_is_promoted_as_in_flax():
    # Mixed types on purpose, which the strict rules of the other tests forbid.
    with jax.numpy_dtype_promotion("standard"):
        x = normal(0, (2, 9, 9, 3), jnp.bfloat16)
        ours, theirs = Conv(4, (3, 3)), nn.Conv(4, (3, 3))
        params = {"kernel": normal(1, (3, 3, 3, 4)), "bias": normal(2, (4,))}
        y, expected = jax.jit(
            lambda: tuple(layer.apply({"params": params}, x) for layer in (ours, theirs))
        )()
    assert y.dtype == expected.dtype == jnp.float32
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding": "CIRCULAR"}, "padding='CIRCULAR'"),
        ({"padding": (1, 1, 1)}, r"\(1, 1, 1\), should be str, int, or a sequence of len 2"),
        ({"padding": "VALID", "kernel_size": (5, 3)}, "kernel_size="),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    layer = Conv(**{"features": 2, "kernel_size": (3, 3), **settings})
    with pytest.raises(ValueError, match=message):
        layer.init(jax.random.key(0), jnp.zeros((1, 4, 4, 1)))


@pytest.fixture(scope="module")
def network():
    """Returns LeNet's loss, its parameters, and those of three clients with their images."""
    model = lenet(10)
    images = normal(0, (3, 2, 28, 28, 1))
    shapes, state = jax.eval_shape(model.init, jax.random.key(1), images[0])
    params = jax.tree.map(lambda leaf: 0.1 * normal(leaf.size, leaf.shape), shapes)

    def loss(params, x):
        logits, _ = model.apply(params, state, x, train=True, key=None)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[:, 0])

    factors = np.float32([1, 0.9, 0.8])
    clients = jax.tree.map(lambda leaf: np.multiply.outer(factors, leaf), params)
    return loss, params, clients, images


def lowered(function, *args, platform):
    with target.tracing_for("gpu" if platform == "cuda" else platform):
        return jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def group_counts(text):
    return {int(n) for n in re.findall(r"(?:feature|batch)_group_count = (\d+)", text)}


def local_steps(loss):
    def train(params, x):
        def step(params, _):
            gradient = jax.grad(loss)(params, x)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), None

        return jax.lax.scan(step, params, length=2)[0]

    return train


def test_flax_convolution_would_be_grouped():
    # The reader of programs below does see a grouped convolution where there is one.
    def reference(x, kernel):
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (2, 1), "SAME", dimension_numbers=names)

    x, kernel = normal(0, (3, 2, 7, 6, 2)), normal(1, (3, 3, 3, 2, 5))
    assert group_counts(lowered(jax.vmap(reference), x, kernel, platform="cuda")) == {1, 3}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_vmapped_clients_compile_to_no_convolution(network, platform):
    loss, params, clients, images = network
    per_client = jax.vmap(jax.grad(loss))
    together = jax.grad(lambda params, x: jnp.sum(jax.vmap(loss)(params, x)))
    for function in (per_client, together, jax.vmap(local_steps(loss))):
        text = lowered(function, clients, images, platform=platform)
        assert "stablehlo.convolution" not in text
    per_example = jax.vmap(jax.grad(loss), (None, 0))
    assert group_counts(lowered(per_example, params, images, platform=platform)) <= {1}


def test_shared_kernels_use_the_native_convolution_on_accelerators(network):
    loss, params, _, images = network
    evaluate = jax.vmap(loss, (None, 0))
    text = lowered(evaluate, params, images, platform="cuda")
    assert text.count("stablehlo.convolution") == 2
    assert group_counts(text) == {1}
    alone = lowered(local_steps(loss), params, images[0], platform="cuda")
    assert "stablehlo.convolution" in alone
    assert group_counts(alone) == {1}


def test_one_client_on_cpu_compiles_to_no_convolution(network):
    loss, params, _, images = network
    text = lowered(local_steps(loss), params, images[0], platform="cpu")
    assert "stablehlo.convolution" not in text


@pytest.fixture(scope="module")
def trained_alone(network):
    loss, _, clients, images = network
    train = local_steps(loss)
    return jax.jit(lambda *both: jax.lax.map(lambda args: train(*args), both))(clients, images)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_vmapped_clients_train_as_single_ones(network, trained_alone, platform):
    loss, _, clients, images = network
    train = local_steps(loss)
    # With kernels of the library YNNPACK for sums, which XLA takes by default, the GPU's form ends
    # the process on processors without AVX-512 (jaxlib 0.10.2).
    options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
    with target.tracing_for(platform):  # The platform's forms, on this device.
        steps = jax.jit(jax.vmap(train), compiler_options=options if platform == "gpu" else None)
        together = steps(clients, images)
    # Two forms of the matrix product round differently.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), together, trained_alone
    )


def test_hessian_vector_product_agrees_with_differences(network):
    _, params, _, images = network
    kernel = params["body"]["Conv_0"]["kernel"]
    layer = Conv(6, (5, 5), use_bias=False)

    def objective(kernel):
        return jnp.mean(jnp.sin(layer.apply({"params": {"kernel": kernel}}, images[0])))

    direction = normal(5, kernel.shape)
    gradient = jax.jit(jax.grad(objective))
    product = jax.jit(lambda: jax.jvp(gradient, (kernel,), (direction,))[1])()
    step = np.float32(1e-2)
    difference = gradient(kernel + step * direction) - gradient(kernel - step * direction)
    # Central differences in float32: error of the order of step squared.
    np.testing.assert_allclose(product, difference / (2 * step), rtol=2e-2, atol=2e-3)
