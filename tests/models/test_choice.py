"""The choice of the implementation of a layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.models import Conv
from fedjax_fair.models.conv import blocks, native, rows, tiles, winograd
from fedjax_fair.models.conv.choice import choose
from fedjax_fair.numerics import target

FUNCTIONS = {
    "blocks": (blocks, "in_chunks", "vjp_in_chunks"),
    "native": (native, "convolve", "vjp"),
    "tiles": (tiles, "in_chunks", "vjp_in_chunks"),
    "winograd": (winograd, "in_chunks", "vjp_in_chunks"),
}


@pytest.fixture
def called(monkeypatch):
    """Records the names of called implementations, forward and backward."""
    calls = []

    def noted(function, *call):
        def run(*args, **sizes):
            calls.append(call)
            return function(*args, **sizes)

        return run

    monkeypatch.setattr(rows, "pooled", noted(rows.pooled, "rows", "forward"))
    for name, (module, forward, backward) in FUNCTIONS.items():
        monkeypatch.setattr(module, forward, noted(getattr(module, forward), name, "forward"))
        monkeypatch.setattr(module, backward, noted(getattr(module, backward), name, "backward"))
    return calls


LAYERS = {
    "LeNet's first": ((10, 32, 32, 1), (5, 5, 1, 6), (1, 1), 0),
    "LeNet's second": ((10, 14, 14, 6), (5, 5, 6, 16), (1, 1), 0),
    "wide": ((32, 16, 16, 64), (3, 3, 64, 64), (1, 1), 1),
    "wide, with blocks": ((32, 16, 16, 8), (3, 3, 8, 32), (1, 1), 1),
    "strided": ((32, 16, 16, 64), (3, 3, 64, 64), (2, 2), 1),
    "strided and narrow": ((10, 32, 32, 1), (5, 5, 1, 6), (2, 2), 0),
    "one tap": ((32, 16, 16, 64), (1, 1, 64, 64), (1, 1), 0),
    "too small to pool": ((10, 5, 5, 1), (5, 5, 1, 6), (1, 1), 0),
}


def layer_of(platform, x, kernel, *settings):
    with target.tracing_for(platform):
        return choose(x, kernel, *settings)


@pytest.mark.parametrize(
    ("layer", "alone", "pooled", "on_tpu"),
    [
        ("LeNet's first", "tiles", "blocks", "rows"),
        ("LeNet's second", "tiles", "blocks", "rows"),
        ("wide", "winograd", "winograd", "native"),
        ("wide, with blocks", "winograd", "blocks", "native"),
        ("strided", "tiles", "tiles", "native"),
        ("strided and narrow", "tiles", "tiles", "native"),
        ("one tap", "tiles", "tiles", "native"),
        ("too small to pool", "tiles", "tiles", "native"),
    ],
)
def test_choice(layer, alone, pooled, on_tpu, called):
    image, kernel, strides, side = LAYERS[layer]
    x, kernel, bias = (np.zeros(shape, np.float32) for shape in (image, kernel, kernel[3]))
    padding = ((side, side), (side, side))
    for relu_pool, platform, expected in [
        (False, "cpu", alone),
        (True, "cpu", pooled),
        (False, "tpu", "native"),
        (True, "tpu", on_tpu),
        (True, "gpu", "native"),
    ]:
        chosen = layer_of(platform, x, kernel, strides, padding, relu_pool)
        operands = (x, kernel, bias) if relu_pool else (x, kernel)

        def gradients(*operands, chosen=chosen):
            y, backward = jax.vjp(chosen, *operands)
            return backward(y)

        shapes = [each.shape for each in jax.eval_shape(gradients, *operands)]
        assert shapes == [operand.shape for operand in operands]
        ways = ("forward",) if expected == "rows" else ("forward", "backward")
        assert called == [(expected, way) for way in ways]
        called.clear()


def test_half_precision_excludes_winograd(called):
    shapes = (32, 16, 16, 64), (3, 3, 64, 64)
    x, kernel = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    jax.eval_shape(choose(x, kernel, (1, 1), ((1, 1), (1, 1)), False), x, kernel)
    assert called == [("tiles", "forward")]


@pytest.mark.parametrize("relu_pool", [False, True])
def test_only_accelerators_use_the_native_convolution(relu_pool):
    layer, x = Conv(64, (5, 5), relu_pool=relu_pool), jnp.ones((2, 12, 12, 1))
    params = jax.eval_shape(layer.init, jax.random.key(0), x)["params"]
    slopes = jax.jit(jax.grad(lambda params: layer.apply({"params": params}, x).sum()))
    for platform, name, present in [
        ("cpu", "cpu", False),
        ("gpu", "cuda", True),
        ("tpu", "tpu", True),
    ]:
        with target.tracing_for(platform):
            text = slopes.trace(params).lower(lowering_platforms=(name,)).as_text()
        assert ("stablehlo.convolution" in text) == present


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize(("height", "rows"), [(12, 4), (13, 4)])
def test_pooled_layers_of_accelerators_equal_those_of_the_cpu(platform, height, rows):
    rng = np.random.default_rng(0)
    shapes = (2, height, 12, 1), (5, 5, 1, 6), (6,), (2, rows, 4, 6)
    *operands, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in shapes)

    def results(platform):
        layer = layer_of(platform, *operands[:2], (1, 1), ((0, 0), (0, 0)), True)
        y, backward = jax.vjp(layer, *operands)
        return y, backward(cotangent)

    ours, theirs = jax.jit(lambda: (results(platform), results("cpu")))()
    # Sums of up to 32 products of size one in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)
