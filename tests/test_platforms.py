"""One round, traced for every platform: what its program must not hold."""

import math
import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import aggregators, data, selectors, solvers
from fedjax_fair.models import Conv, from_flax
from fedjax_fair.numerics import target
from fedjax_fair.simulate import make_round

PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}  # By target, as `lower` calls them.
EXAMPLES, SIDE = 407, 12  # Their product divides the size of nothing else.


class Network(nn.Module):
    """A narrow and a wide convolution."""

    @nn.compact
    def __call__(self, x):
        x = Conv(6, (5, 5), padding="VALID", relu_pool=True)(x)
        x = nn.relu(Conv(64, (1, 1))(x))
        x = nn.relu(Conv(64, (3, 3))(x))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


def federation():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (EXAMPLES, SIDE, SIDE, 1), dtype=np.uint8)
    labels = rng.integers(0, 10, EXAMPLES)
    return data.from_arrays(images, labels, np.array_split(np.arange(EXAMPLES), 11), name="random")


def lowered(platform, function, *args):
    """The program of a function, traced and lowered for a platform."""
    with target.tracing_for(platform):
        traced = jax.jit(function).trace(*args)
    return traced.lower(lowering_platforms=(PLATFORMS[platform],)).as_text()


def group_counts(text):
    return {int(n) for n in re.findall(r"(?:feature|batch)_group_count = (\d+)", text)} - {1}


def from_the_host(text):
    """Operations that wait for the host."""
    calls = re.findall(r"custom_call @(\w*callback\w*)", text)
    return calls + re.findall(r"stablehlo\.(infeed|outfeed|send|recv)\b", text)


def copies(text):
    """Operations that make an array as large as all features, or a multiple of it."""
    made = []
    for line in text.splitlines():
        operation = re.search(r'= "?stablehlo\.(?!while)(\w+)', line)
        shape = re.search(r"tensor<((?:\d+x)+)\w+>[^<>]*$", line)
        if operation and shape:
            numbers = math.prod(int(n) for n in shape[1].split("x")[:-1])
            if numbers % (EXAMPLES * SIDE**2) == 0:
                made.append(operation[1])
    return made


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_round_has_no_grouped_convolution_and_leaves_host_and_data_alone(platform):
    federated = federation()
    round = make_round(
        from_flax(Network()),
        selectors.divfl(3, gradients="stale"),
        solvers.sgd(0.1, 4, steps=2),
        aggregators.mean(),
        clients_per_batch=3,
    )
    with target.tracing_for(platform):
        federated = data.on_device(federated)
        state = jax.eval_shape(round.init, jax.random.key(0), federated)
    text = lowered(platform, round.step, state, federated)
    assert text.count("stablehlo.dot_general") > 5
    assert ("stablehlo.convolution" in text) == (platform != "cpu")
    assert not group_counts(text)
    assert not from_the_host(text)
    assert not copies(text)


def test_each_would_be_seen_where_it_is():
    images = jnp.zeros((EXAMPLES, SIDE, SIDE, 1), jnp.uint8)

    def doubled(images):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        answer = jax.pure_callback(lambda: np.float32(2), shape)
        return jnp.sum(images[:, :, ::-1].astype(jnp.float32) * answer)

    text = lowered("cpu", doubled, images)
    assert from_the_host(text)
    assert {"reverse", "convert"} <= set(copies(text))
    names = ("NHWC", "HWIO", "NHWC")
    convolve = partial(
        jax.lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=names,
    )
    kernels, clients = jnp.zeros((3, 3, 3, 1, 5)), jnp.zeros((3, 2, 8, 8, 1))
    for platform in PLATFORMS:
        assert group_counts(lowered(platform, jax.vmap(convolve), clients, kernels)) == {3}
