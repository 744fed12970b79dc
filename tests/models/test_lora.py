"""Low-rank adapters: exact at the start, equal in both forms, limits that coincide, bad input."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_fair as ff
from fedjax_fair.roles import Variables

# A few rounds do not suffice for all classes.
pytestmark = pytest.mark.filterwarnings("ignore:.*the prediction is class")

KEY = jax.random.key(0)
DATA = ff.data.load("digits", ff.data.classes_per_client(num_clients=10, classes=3))
X = DATA.train.features[:6]
IMAGES = jnp.linspace(0.0, 1.0, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
NETWORK = ff.models.mlp(10, hidden=(16,))
BASE = NETWORK.init(KEY, X)


class Attention(nn.Module):
    """Kernels with three axes, in both orders of inputs and outputs."""

    @nn.compact
    def features(self, x):
        x = nn.Dense(8, name="embedding")(x.reshape(len(x), -1, 24))
        return nn.MultiHeadDotProductAttention(num_heads=2)(x).mean(1)

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="head")(self.features(x))


class Mixer(nn.Module):
    """Inputs along axes that are not the last ones."""

    @nn.compact
    def features(self, x):
        x = nn.DenseGeneral(5, axis=1, name="mix")(x.reshape(len(x), 24, 8))
        return nn.DenseGeneral(7, axis=(2, 1), name="narrow")(nn.relu(x))

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="head")(self.features(x))


class Convolutions(nn.Module):
    @nn.compact
    def features(self, x):
        x = nn.relu(ff.models.Conv(4, (3, 3))(x))
        return nn.relu(nn.Conv(5, (3, 3), strides=2)(x)).mean((1, 2))

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(self.features(x))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs)])
        self.general = nnx.LinearGeneral(4, (2, 3), rngs=rngs)
        self.head = nnx.LinearGeneral((2, 3), 10, axis=(-2, -1), rngs=rngs)

    def features(self, x):
        return self.general(nnx.relu(self.blocks[0](self.conv(x).mean((1, 2)))))

    def __call__(self, x):
        return self.head(self.features(x))


NETWORKS = {
    "dense": (NETWORK, X),
    "attention": (ff.models.from_flax(Attention()), IMAGES),
    "mixer": (ff.models.from_flax(Mixer()), IMAGES),
    "convolutions": (ff.models.from_flax(Convolutions()), IMAGES),
    "transformer": (
        ff.models.char_transformer(20, width=8, layers=1, heads=2),
        jnp.arange(12, dtype=jnp.int32).reshape(2, 6),
    ),
    "nnx": (ff.models.from_flax(Nnx), IMAGES),
    "bfloat16": (ff.models.in_bfloat16(NETWORK), X),
}


def moved(variables):
    """Returns variables that are no special case."""
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(9), len(leaves))
    pairs = zip(keys, leaves, strict=True)
    return jax.tree.unflatten(
        tree, [leaf + 0.1 * jax.random.normal(key, leaf.shape) for key, leaf in pairs]
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_model_is_exactly_the_network(name):
    network, x = NETWORKS[name]
    base = network.init(KEY, x)
    model = ff.models.lora(network, base, rank=2)
    start = model.init(jax.random.key(1), x)
    outputs = model.apply(*start, x, train=False, key=None)[0]
    np.testing.assert_array_equal(outputs, network.apply(*base, x, train=False, key=None)[0])
    merged = model.merge(start)
    assert jax.tree.structure(merged) == jax.tree.structure(base)
    jax.tree.map(np.testing.assert_array_equal, merged, base)


@pytest.mark.parametrize("name", NETWORKS)
def test_merged_and_unmerged_products_are_equal(name):
    network, x = NETWORKS[name]
    model = ff.models.lora(network, network.init(KEY, x), rank=2, alpha=3.0)
    variables = moved(model.init(jax.random.key(1), x))
    tolerance = 0.05 if name == "bfloat16" else 2e-6  # Eight bits, and rounding.
    plain = network.apply(*model.merge(variables), x, train=False, key=None)[0]
    for one in (model, model.replace(merged=True)):
        outputs = one.apply(*variables, x, train=False, key=None)[0]
        np.testing.assert_allclose(outputs, plain, atol=tolerance, rtol=tolerance)
        features = one.features(*variables, x)
        expected = network.features(*model.merge(variables), x)
        np.testing.assert_allclose(features, expected, atol=tolerance, rtol=tolerance)


def test_products_of_kernels_with_many_axes_are_those_of_matrices():
    network, x = NETWORKS["attention"]
    base = network.init(KEY, x)
    model = ff.models.lora(network, base, rank=2, alpha=3.0)
    variables = moved(model.init(KEY, x))
    merged, layer = model.merge(variables).params, "MultiHeadDotProductAttention_0"
    for name, num_inputs in (("query", 1), ("out", 2)):
        kernel = base.params[layer][name]["kernel"]
        pair = variables.params["adapters"][f"{layer}/{name}/kernel"]
        inputs = int(np.prod(kernel.shape[:num_inputs]))
        assert pair["a"].shape == (inputs, 2)
        expected = np.asarray(kernel).reshape(inputs, -1) + 1.5 * np.asarray(pair["a"] @ pair["b"])
        actual = np.asarray(merged[layer][name]["kernel"]).reshape(inputs, -1)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_unmerged_products_leave_kernels_as_they_are():
    model = ff.models.lora(NETWORK, BASE, rank=2)
    variables = model.init(KEY, X)

    def kernels_of(model):
        """Returns whether the program adds an array of a kernel's shape."""
        call = partial(model.apply, train=False, key=None)
        jaxpr = jax.make_jaxpr(call)(*variables, X).jaxpr
        return any(
            eqn.primitive.name == "add" and eqn.outvars[0].aval.shape == (64, 16)
            for eqn in jaxpr.eqns
        )

    assert not kernels_of(model)
    assert kernels_of(model.replace(merged=True))
    assert model.client_bytes(variables) == 4 * 2 * (64 + 16 + 16 + 10)
    more = model.replace(merged=True).client_bytes(variables) - model.client_bytes(variables)
    assert more == 4 * (64 * 16 + 16 * 10)


def test_draws_of_factors():
    wide = ff.models.mlp(10, hidden=(200,))
    model = ff.models.lora(wide, wide.init(KEY, X), rank=9, targets=("body/Dense_0", "head"))
    pairs = [model.init(jax.random.key(seed), X).params["adapters"] for seed in (0, 1)]
    a = np.asarray(pairs[0]["head/kernel"]["a"])
    assert abs(a).max() <= 1 / np.sqrt(200)
    assert abs(a).max() > 0.95 / np.sqrt(200)
    assert abs(a.mean()) < 0.1 / np.sqrt(200)
    assert not np.array_equal(a, pairs[1]["head/kernel"]["a"])
    assert not pairs[0]["head/kernel"]["b"].any()
    # Another trained array leaves the draws as they are.
    other = model.replace(start=model.start, trainable=("head/bias",))
    assert other.targets == model.targets
    again = ff.models.lora(
        wide, wide.init(KEY, X), rank=9, targets=("body/Dense_0", "head"), trainable=("head/bias",)
    ).init(jax.random.key(0), X)
    np.testing.assert_array_equal(a, again.params["adapters"]["head/kernel"]["a"])


def method(model, rate=0.1):
    return ff.Round(
        model, ff.selectors.Uniform(4), ff.solvers.SGD(rate, 10, steps=3), ff.aggregators.Mean()
    )


def merged_after(model, rate=0.1, rounds=4):
    run = ff.fit(method(model, rate), DATA, rounds=rounds, seeds=(0,))
    return model.merge(run.variables_for(0)).params, run


def test_one_factor_of_full_rank_equals_training_the_kernels():
    """With A the identity, and alpha the rank, B is the change of the kernel."""
    base = jax.tree.map(lambda leaf: leaf * 0.5, BASE)
    full = ff.models.freeze(NETWORK, base, ("head/kernel",))
    model = ff.models.lora(NETWORK, base, rank=10, targets=("head/kernel",), train="b")
    # The rank of a kernel [16, 10] is at most 10, but that of the identity is 16.
    square = {"head/kernel": {"a": jnp.eye(16)}}
    model = model.replace(rank=16, alpha=16.0, factors=square)
    ours, theirs = (
        run_from(one, variables)
        for one, variables in (
            (model, Variables({"adapters": {"head/kernel": {"b": jnp.zeros((16, 10))}}}, {})),
            (full, full.init(KEY, X)),
        )
    )
    kernel = base.params["head"]["kernel"] + ours.params["adapters"]["head/kernel"]["b"]
    np.testing.assert_allclose(kernel, theirs.params["head"]["kernel"], rtol=1e-5, atol=1e-7)


def run_from(model, variables, steps=20):
    """Returns variables after steps of SGD on all examples."""
    labels = jnp.asarray(DATA.train.labels[:6])

    def loss(params):
        outputs = model.apply(params, variables.state, X, train=True, key=KEY)[0]
        return model.loss(outputs, labels).mean()

    def step(params, _):
        slope = jax.grad(loss)(params)
        return jax.tree.map(lambda leaf, s: leaf - 0.1 * s, params, slope), None

    params, _ = jax.lax.scan(step, variables.params, length=steps)
    return variables._replace(params=params)


def test_alpha_and_rate_of_one_factor_can_be_exchanged():
    """(alpha, rate) and (2 alpha, rate / 4) train the same merged models, bit for bit."""
    first, second = (
        ff.models.lora(NETWORK, BASE, rank=4, alpha=alpha, train="b", targets=("body",))
        for alpha in (4.0, 8.0)
    )
    _, ours = merged_after(first, rate=0.25)
    _, theirs = merged_after(second, rate=0.0625)
    np.testing.assert_array_equal(ours.dataset.test_loss, theirs.dataset.test_loss)
    assert not np.array_equal(ours.dataset.test_loss[0, 0], ours.dataset.test_loss[0, -1])


def test_a_rotation_of_both_factors_changes_no_merged_model():
    model = ff.models.lora(NETWORK, BASE, rank=4, targets=("body",))
    start = moved(model.init(KEY, X))
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(2), (4, 4)))[0]
    ((path, pair),) = start.params["adapters"].items()
    rotated = {"a": pair["a"] @ rotation, "b": rotation.T @ pair["b"]}
    ends = [
        model.merge(run_from(model, one))
        for one in (start, start._replace(params={"adapters": {path: rotated}}))
    ]
    before = model.merge(start).params["body"]["Dense_0"]["kernel"]
    kernels = [end.params["body"]["Dense_0"]["kernel"] for end in ends]
    assert np.abs(kernels[0] - before).max() > 1e-3
    np.testing.assert_allclose(*kernels, atol=2e-6)


def test_a_fixed_factor_is_not_sent_and_equal_for_all_seeds():
    both, one = (
        ff.models.lora(NETWORK, BASE, rank=4, trainable=("head",), train=train)
        for train in ("both", "b")
    )
    variables = one.init(KEY, X)
    assert set(variables.params["adapters"]["body/Dense_0/kernel"]) == {"b"}
    kernels = [merged_after(one, rounds=1)[0] for _ in range(2)]
    jax.tree.map(np.testing.assert_array_equal, *kernels)
    sent = [merged_after(model)[1].dataset.bytes_up.values[0, -1] for model in (both, one)]
    head = 16 * 10 + 10
    np.testing.assert_array_equal(sent, [16 * 4 * (4 * 80 + head), 16 * 4 * (4 * 16 + head)])


def test_printed_counts():
    model = ff.models.lora(NETWORK, BASE, rank=4, trainable=("head",))
    printed = str(model)
    assert "trained and sent: 170 parameters in 2 arrays" in printed
    assert "frozen: 1,040 parameters in 2 arrays" in printed
    assert "adapters of rank 4, trained and sent: 320 parameters" in printed
    network, x = NETWORKS["attention"]
    unknown = str(ff.models.lora(network, network.init(KEY, x), rank=2))
    assert "and those of 4 kernels with more axes" in unknown


class Stacked(nn.Module):
    """Two layers of one kernel ``[2, 8, 8]``."""

    @nn.compact
    def features(self, x):
        layers = nn.scan(
            lambda layer, carry, _: (layer(carry), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=2,
        )
        return layers(nn.Dense(8, name="repeated"), nn.Dense(8)(x.reshape(len(x), -1)), None)[0]

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(self.features(x))


def refused(**settings):
    network, x = NETWORKS[settings.pop("network", "dense")]
    return ff.models.lora(network, network.init(KEY, x), **settings).init(KEY, x)


def stacked():
    network = ff.models.from_flax(Stacked())
    return ff.models.lora(network, network.init(KEY, IMAGES), rank=2).init(KEY, IMAGES)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: refused(rank=0), "rank=0"),
        (lambda: refused(rank=True), "rank=True"),
        (lambda: refused(rank=11),
         r"rank=11: expected at most 10, .* head/kernel \[16, 10\]; .* trainable=\('head',\)"),
        (lambda: refused(rank=9, network="attention"), r"rank=9: expected at most 8"),
        (lambda: refused(rank=2, alpha=0), "alpha=0: expected a number > 0"),
        (lambda: refused(rank=2, train="a"), "train='a'"),
        (lambda: refused(rank=2, in_axes={"head": 0}), "in_axes={'head': 0}: expected numbers"),
        (lambda: refused(rank=2, in_axes={"a": 1}), "in_axes='a' matches no parameter; .* head"),
        (lambda: refused(rank=2, targets=("hed",)), "targets='hed' matches no parameter"),
        (lambda: refused(rank=2, targets=("head/bias",)), "head/bias has 1 axis: expected kernels"),
        (lambda: refused(rank=2, targets=("head/kernel",), trainable=("head",)),
         "head/kernel is in targets and in trainable"),
        (lambda: refused(rank=2, trainable=(".*",)), "chooses no kernel"),
        (lambda: refused(rank=2, network="attention", train="b"),
         r"input axes of .*/key/kernel \[8, 2, 4\] is unknown; pass in_axes"),
        (stacked, r"input axes of repeated/kernel \[2, 8, 8\] is unknown"),
        (lambda: ff.models.freeze(ff.models.lora(NETWORK, BASE, rank=2), BASE, ("head",)),
         "freeze: LoRA is frozen in part"),
        (lambda: ff.models.lora(ff.models.freeze(NETWORK, BASE, ("head",)), BASE, rank=2),
         "lora: Frozen is frozen in part"),
        (lambda: ff.models.in_bfloat16(ff.models.lora(NETWORK, BASE, rank=2)), "in_bfloat16: LoRA"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, said):
    with pytest.raises(ValueError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_given_input_axes():
    network = ff.models.from_flax(Stacked())
    base = network.init(KEY, IMAGES)
    model = ff.models.lora(network, base, rank=2, in_axes={"repeated": 2}, train="b")
    shapes = jax.tree.map(jnp.shape, model.init(KEY, IMAGES).params["adapters"])
    assert shapes["repeated/kernel"] == {"b": (2, 8)}
    assert model.factors["repeated/kernel"]["a"].shape == (16, 2)
