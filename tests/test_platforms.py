"""Operations that rounds must not contain on any platform."""

import math
import re
from dataclasses import replace
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import times_for, with_people

from fedjax_fair import aggregators, data, models, selectors, solvers, submodular
from fedjax_fair.app.build import method_round
from fedjax_fair.app.experiment_data import load_data
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.registry import GROUPS, METHODS
from fedjax_fair.models import Conv, from_flax
from fedjax_fair.numerics import target
from fedjax_fair.rounds.round import Round

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


def host_calls(text):
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
            if numbers and numbers % (EXAMPLES * SIDE**2) == 0:
                made.append(operation[1])
    return made


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_round_has_no_grouped_convolutions_host_calls_or_copies_of_the_data(platform):
    federated = federation()
    round = Round(
        from_flax(Network()),
        selectors.DivFL(3, gradients="stale"),
        solvers.SGD(0.1, 4, steps=2),
        aggregators.Mean(),
        clients_per_batch=3,
    )
    with target.tracing_for(platform):
        federated = data.on_device(federated)
        state = jax.eval_shape(round.init, jax.random.key(0), federated)
    text = lowered(platform, round.step, state, federated)
    assert text.count("stablehlo.dot_general") > 5
    assert ("stablehlo.convolution" in text) == (platform != "cpu")
    assert not group_counts(text)
    assert not host_calls(text)
    assert not copies(text)


def test_forbidden_operations_are_detected():
    images = jnp.zeros((EXAMPLES, SIDE, SIDE, 1), jnp.uint8)

    def doubled(images):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        answer = jax.pure_callback(lambda: np.float32(2), shape)
        return jnp.sum(images[:, :, ::-1].astype(jnp.float32) * answer)

    text = lowered("cpu", doubled, images)
    assert host_calls(text)
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


@cache
def grouped_digits():
    return load_data(presets.resolve(presets.PRESETS["equitable"].config))[0]


def products(jaxpr, within=""):
    """Matrix products of a program: what they belong to, and their precision."""
    for equation in jaxpr.eqns:
        scope = f"{within}/{equation.source_info.name_stack}"
        if equation.primitive.name == "dot_general":
            yield scope, equation.params["precision"]
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from products(inner, scope)


@pytest.mark.parametrize("name", METHODS)
def test_all_products_but_those_of_networks_have_full_precision(name):
    """An accelerator would otherwise round weights and gradients to 8 bits."""
    config = presets.resolve(Config(methods=(name,)))
    solver = replace(config.solver, epochs=None, steps=2)
    model = replace(config.model, name="mlp")
    if name == "fedbn":
        model = replace(config.model, name="resnet18", norm="batch")
    config = replace(config, model=model, solver=solver)
    federated, network = with_people(grouped_digits()), None
    if name in GROUPS["adapters"]:
        plain = models.mlp(10)
        variables = plain.init(jax.random.key(0), federated.train.features[:1])
        network = models.lora(plain, variables, rank=2)
    with target.tracing_for("tpu"):
        times = times_for(name, federated.num_clients)
        round = method_round(config, name, 10, model=network, times=times)
        state = jax.eval_shape(round.init, jax.random.key(0), federated)
        traced = jax.make_jaxpr(round.step)(state, federated)
    all_products = list(products(traced.jaxpr))
    assert any("Classifier" in scope for scope, _ in all_products)
    full = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
    assert {
        scope
        for scope, precision in all_products
        if "Classifier" not in scope and precision != full
    } == set()


@pytest.mark.parametrize("points", [1500, 2500])
def test_blocks_of_points_for_an_accelerator_choose_what_those_of_a_cpu_choose(points):
    """A block of a million similarities to 600 items is 1,747 points."""
    rng = np.random.default_rng(points)
    features = jnp.asarray(rng.normal(size=(points, 5)), jnp.float32)

    def chosen():
        function = submodular.facility_location_from_features(features, items=range(600))
        return submodular.greedy(function, 20)

    here = chosen()
    with target.tracing_for("tpu"):
        there = chosen()
    np.testing.assert_array_equal(there.items, here.items)
    # Sums over all points, in another order.
    np.testing.assert_allclose(there.gains, here.gains, rtol=1e-4)


def test_features_that_are_near_are_told_apart_in_full_precision():
    features = jnp.ones((300, 8))
    with target.tracing_for("tpu"):
        traced = jax.make_jaxpr(
            lambda rows: submodular.greedy(submodular.facility_location_from_features(rows), 3)
        )(features)
    all_products = list(products(traced.jaxpr))
    full = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
    assert all_products
    assert all(precision == full for _, precision in all_products)
