"""Networks: sizes, inputs, features and modes; models of Flax modules."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedjax_fair.aggregators import Mean
from fedjax_fair.data import from_arrays
from fedjax_fair.models import (
    Conv,
    cifar100_cnn,
    cifar_cnn,
    femnist_cnn,
    from_flax,
    in_bfloat16,
    lenet,
    logistic,
    max_pool,
    mlp,
    resnet18,
)
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.selectors import Uniform
from fedjax_fair.solvers import SGD

MNIST, CIFAR = (2, 28, 28, 1), (2, 32, 32, 3)


def num_params(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables.params))


def images(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def normal(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def filled(model, x):
    """Returns variables without ``init``, which takes ten seconds to compile for a ResNet."""
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        if path[-1].key == "kernel":
            scale = (leaf.shape[-1] / leaf.size) ** 0.5
            return rng.normal(scale=scale, size=leaf.shape).astype(leaf.dtype)
        return np.full(leaf.shape, path[-1].key not in ("bias", "mean"), leaf.dtype)

    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    return jax.tree.map_with_path(fill, shapes)


@pytest.mark.parametrize(
    ("model", "shape", "parameters", "width"),
    [
        (logistic(10), MNIST, 7_850, 784),
        (mlp(10), MNIST, 199_210, 200),
        (mlp(3, hidden=(7,)), (2, 5), 66, 7),
        (lenet(10), MNIST, 61_706, 84),
        (lenet(10), CIFAR, 62_006, 84),
        (cifar_cnn(), CIFAR, 62_006, 84),
        (cifar100_cnn(), CIFAR, 4_400_548, 512),
        (femnist_cnn(), MNIST, 608_702, 512),
        (resnet18(10), CIFAR, 11_173_962, 512),
        (resnet18(62), MNIST, 11_199_486, 512),
        (resnet18(10, norm="batch"), CIFAR, 11_173_962, 512),
    ],
)
def test_number_of_parameters_and_width_of_features(model, shape, parameters, width):
    def results(key, x):
        variables = model.init(key, x)
        return variables, model.features(*variables, x)

    x = jax.ShapeDtypeStruct(shape, jnp.uint8)
    variables, features = jax.eval_shape(results, jax.random.key(0), x)
    assert num_params(variables) == parameters
    assert features.shape == (shape[0], width)


@pytest.mark.parametrize("model", [logistic(3), mlp(3), lenet(3), femnist_cnn(3)])
def test_apply_is_pure(model):
    x = images(MNIST)

    @jax.jit
    def results(variables, x):
        logits, state = model.apply(*variables, x, train=False, key=None)
        also, _ = model.apply(*variables, x.astype(jnp.float32) / 255, train=False, key=None)
        return model.features(*variables, x), logits, also, state

    variables = filled(model, x)
    assert variables.state == {}
    # Bytes are scaled to [0, 1]; floating-point inputs pass as they are.
    features, logits, also, state = jax.tree.map(np.asarray, results(variables, x))
    assert state == {}
    assert logits.shape == (2, 3)
    assert logits.dtype == jnp.float32
    np.testing.assert_array_equal(logits, also)
    head = variables.params["head"]
    np.testing.assert_allclose(
        features @ head["kernel"] + head["bias"][None], logits, rtol=1e-5, atol=1e-6
    )


class Tokens(nn.Module):
    """Records the type of its input, and embeds it."""

    @nn.compact
    def features(self, x):
        assert x.dtype == jnp.int32
        return nn.Embed(7, 4)(x).mean(axis=1)

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(self.features(x))


class NnxTokens(nnx.Module):
    def __init__(self, *, rngs):
        self.embed, self.head = nnx.Embed(7, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        assert x.dtype == jnp.int32
        return self.head(self.embed(x).mean(axis=1))


@pytest.mark.parametrize(
    "model", [from_flax(Tokens()), from_flax(NnxTokens), in_bfloat16(from_flax(Tokens()))]
)
def test_integers_reach_modules_unchanged(model):
    tokens = np.arange(10, dtype=np.int32).reshape(2, 5) % 7
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    apply = partial(model.apply, train=False, key=None)
    logits, _ = jax.eval_shape(apply, *variables, tokens)
    assert logits.shape == (2, 3)


@pytest.mark.parametrize("model", [logistic(3), lenet(3), in_bfloat16(mlp(3))])
@jax.numpy_dtype_promotion("standard")  # Float32 inputs of bfloat16 layers.
def test_networks_convert_integers_to_floats(model):
    x = jax.ShapeDtypeStruct((2, 12, 12, 1), jnp.float32)
    integers = jax.ShapeDtypeStruct(x.shape, jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), integers)
    assert variables == jax.eval_shape(model.init, jax.random.key(0), x)
    apply = partial(model.apply, train=False, key=None)
    assert jax.eval_shape(apply, *variables, integers) == jax.eval_shape(apply, *variables, x)


def test_runs_on_integers_equal_runs_on_the_same_floats():
    rng = np.random.default_rng(0)
    integers, labels = rng.integers(-5, 300, (24, 3)), np.arange(24) % 2
    method = Round(logistic(2), Uniform(2), SGD(1e-3, 4, steps=2), Mean())

    @jax.jit
    def trained(data):
        return run(method, method.init(jax.random.key(0), data), data, 2)[0].variables

    variables = [
        trained(from_arrays(features, labels, np.arange(24).reshape(4, 6)))
        for features in (integers, integers.astype(np.float32))
    ]
    jax.tree.map(np.testing.assert_array_equal, *variables)


def test_features_of_logistic_regression_are_the_input():
    x = images(MNIST)
    variables = jax.eval_shape(logistic(3).init, jax.random.key(0), x)
    features = jax.jit(lambda x: logistic(3).features(*variables, x))(x)
    np.testing.assert_allclose(features, x.reshape(2, -1) / 255, rtol=1e-6)


class NormalizedNet(nn.Module):
    """One of each kind of layer of a ResNet."""

    @nn.compact
    def features(self, x):
        x = nn.relu(nn.GroupNorm(num_groups=2)(Conv(8, (3, 3), use_bias=False)(x)))
        return x.mean(axis=(1, 2))

    @nn.compact
    def __call__(self, x):
        return nn.Dense(5)(self.features(x))


def loss(model, params, x):
    logits, _ = model.apply(params, {}, x, train=True, key=jax.random.key(2))
    return -jnp.mean(jax.nn.log_softmax(logits)[:, 1])


@pytest.mark.parametrize("model", [mlp(5), lenet(5), femnist_cnn(5), resnet18(5)])
@jax.numpy_dtype_promotion("standard")  # Flax's norms promote their statistics to float32.
def test_in_bfloat16_only_layers_compute_in_bfloat16(model):
    x, rounded = images(MNIST), in_bfloat16(model)
    shapes = jax.eval_shape(rounded.init, jax.random.key(0), x)
    assert shapes == jax.eval_shape(model.init, jax.random.key(0), x)
    slope = jax.value_and_grad(partial(loss, rounded))
    program, results = jax.make_jaxpr(slope, return_shape=True)(shapes.params, x)
    features = jax.eval_shape(rounded.features, *shapes, x)
    assert {leaf.dtype for leaf in jax.tree.leaves((results, features))} == {jnp.dtype("float32")}
    products = [line for line in str(program).splitlines() if "dot_general" in line]
    assert products
    assert not [line for line in products if "f32" in line]


@pytest.mark.parametrize("model", [mlp(5), lenet(5), from_flax(NormalizedNet())])
@jax.numpy_dtype_promotion("standard")
def test_in_bfloat16_results_are_rounded(model):
    x = images((8, 28, 28, 1))
    variables = filled(model, x)

    @jax.jit
    def results(variables):
        def of(model):
            answer, gradient = jax.value_and_grad(partial(loss, model))(variables.params, x)
            return (model.features(*variables, x), answer), gradient

        return of(in_bfloat16(model)), of(model)

    def relative_error(ours, exact):
        return np.linalg.norm(ours - exact) / np.linalg.norm(exact)

    # A product of bfloat16 numbers has eight bits; layers add their errors up.
    (answers, gradient), (exact_answers, exact_gradient) = results(variables)
    for error in jax.tree.leaves(jax.tree.map(relative_error, answers, exact_answers)):
        assert 0 < error < 0.03
    for error in jax.tree.leaves(jax.tree.map(relative_error, gradient, exact_gradient)):
        assert error < 0.2


def test_in_bfloat16_has_the_same_initial_variables():
    x, model = images((2, 5)), mlp(3, hidden=(7,))
    both = jax.jit(lambda key: (in_bfloat16(model).init(key, x), model.init(key, x)))
    jax.tree.map(np.testing.assert_array_equal, *both(jax.random.key(0)))


@pytest.mark.usefixtures("as_users_call")
def test_in_bfloat16_rejects_running_statistics():
    rounded = in_bfloat16(resnet18(5, norm="batch"))
    with pytest.raises(ValueError, match="state"):
        jax.eval_shape(rounded.init, jax.random.key(0), images((2, 8, 8, 3)))


def test_lenet_follows_its_specification():
    # Written out with Flax's own layers, ReLU before pooling as published.
    x = normal(0, MNIST)
    model = lenet(10)
    variables = filled(model, x)

    def pool(x):
        return nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))

    @jax.jit
    def written_out(body):
        h = pool(nn.Conv(6, (5, 5), padding=2).apply({"params": body["Conv_0"]}, x))
        h = pool(nn.Conv(16, (5, 5), padding=0).apply({"params": body["Conv_1"]}, h)).reshape(2, -1)
        for name, width in (("Dense_0", 120), ("Dense_1", 84)):
            h = nn.relu(nn.Dense(width).apply({"params": body[name]}, h))
        return h

    features = jax.jit(model.features)(*variables, x)
    expected = written_out(variables.params["body"])
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_dropout_depends_on_the_key_and_is_off_in_evaluation():
    x, model = images((2, 16, 16, 1)), femnist_cnn()
    variables = filled(model, x)
    apply = jax.jit(model.apply, static_argnames="train")

    def logits(train, seed):
        return apply(*variables, x, train=train, key=jax.random.key(seed))[0]

    np.testing.assert_array_equal(logits(True, 1), logits(True, 1))
    assert not np.allclose(logits(True, 1), logits(True, 2))
    np.testing.assert_array_equal(logits(False, 1), logits(False, 2))


def test_group_norm_is_independent_of_other_examples():
    x, model = images((3, 8, 8, 3)), resnet18(5)
    variables = filled(model, x)
    assert variables.state == {}
    apply = jax.jit(partial(model.apply, train=True, key=None))
    together, _ = apply(*variables, x)
    twice, _ = apply(*variables, x[:1].repeat(3, axis=0))
    expected = np.asarray(together)[:1].repeat(3, axis=0)
    np.testing.assert_allclose(twice, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_statistics_change_in_training_only():
    x, model = images((3, 8, 8, 3)), resnet18(5, norm="batch")
    variables = filled(model, x)

    @jax.jit
    def states(params, state, x):
        return [model.apply(params, state, x, train=mode, key=None)[1] for mode in (False, True)]

    kept, moved = states(*variables, x)
    jax.tree.map(np.testing.assert_array_equal, kept, variables.state)
    assert jax.tree.structure(moved) == jax.tree.structure(variables.state)
    # The stem: a tenth of the way from zero to the mean of its convolution over the batch.
    kernel = variables.params["body"]["Conv_0"]["kernel"]
    stem = nn.Conv(64, (3, 3), padding=1, use_bias=False)
    scaled = x.astype(np.float32) / np.float32(255)
    y = np.asarray(jax.jit(stem.apply)({"params": {"kernel": kernel}}, scaled))
    np.testing.assert_allclose(
        moved["batch_stats"]["body"]["BatchNorm_0"]["mean"],
        0.1 * y.mean(axis=(0, 1, 2)),
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lenet(0), "num_classes=0"),
        (lambda: mlp(10, hidden=(200, -1)), "hidden.1.=-1"),
        (lambda: resnet18(10, norm="layer"), "norm='layer'"),
        (lambda: from_flax(nn.Dense), "expected a linen module"),
        (lambda: from_flax(nnx.Linear(2, 2, rngs=nnx.Rngs(0))), "NNX class or factory"),
    ],
)
def test_invalid_settings_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_convolutional_networks_need_images():
    with pytest.raises(ValueError, match="784"):
        lenet(10).init(jax.random.key(0), np.zeros((2, 784), np.float32))


class LinenNet(nn.Module):
    """A Linen module with dropout, batch normalization, and ``train`` in its call."""

    def setup(self):
        self.norm = nn.BatchNorm(momentum=0.5)
        self.drop = nn.Dropout(0.5)
        self.hidden, self.head = nn.Dense(6), nn.Dense(3)

    def features(self, x, train):
        x = self.norm(x, use_running_average=not train)
        return nn.relu(self.hidden(self.drop(x, deterministic=not train)))

    def __call__(self, x, train):
        return self.head(self.features(x, train))


class NnxNet(nnx.Module):
    """The same network in NNX."""

    def __init__(self, inputs, *, rngs):
        self.norm = nnx.BatchNorm(inputs, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.hidden = nnx.Linear(inputs, 6, rngs=rngs)
        self.head = nnx.Linear(6, 3, rngs=rngs)

    def features(self, x):
        return nnx.relu(self.hidden(self.drop(self.norm(x))))

    def __call__(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize(
    "model", [from_flax(LinenNet()), from_flax(partial(NnxNet, 4))], ids=["linen", "nnx"]
)
def test_from_flax_of_custom_modules(model):
    x = normal(0, (5, 4)) + np.float32(1)
    variables = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(1), x))
    assert num_params(variables) == 2 * 4 + 4 * 6 + 6 + 6 * 3 + 3
    mean, var = sorted(jax.tree.leaves(variables.state), key=np.sum)
    assert not mean.any()
    assert (var == 1).all()

    apply = jax.jit(model.apply, static_argnames="train")
    logits, state = apply(*variables, x, train=False, key=None)
    jax.tree.map(np.testing.assert_array_equal, state, variables.state)
    head = variables.params["head"]
    features = np.asarray(jax.jit(model.features)(*variables, x))
    np.testing.assert_allclose(
        features @ head["kernel"] + head["bias"][None], logits, rtol=1e-5, atol=1e-6
    )

    first, state = apply(*variables, x, train=True, key=jax.random.key(2))
    assert jax.tree.structure(state) == jax.tree.structure(variables.state)
    means = [
        leaf
        for leaf in jax.tree.leaves(state)
        if np.allclose(leaf, 0.5 * x.mean(axis=0), atol=1e-5)
    ]
    assert len(means) == 1
    again, _ = apply(*variables, x, train=True, key=jax.random.key(2))
    other, _ = apply(*variables, x, train=True, key=jax.random.key(3))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


@pytest.mark.parametrize(
    "model", [from_flax(LinenNet()), from_flax(partial(NnxNet, 4))], ids=["linen", "nnx"]
)
def test_custom_modules_train_inside_vmap_and_scan(model):
    x = normal(0, (2, 5, 4))
    variables = jax.jit(model.init)(jax.random.key(1), x[0])

    def loss(params, state, x, key):
        logits, state = model.apply(params, state, x, train=True, key=key)
        return jnp.mean(logits**2), state

    @jax.jit
    @jax.vmap
    def train(x, keys):
        def step(variables, key):
            gradient, state = jax.grad(loss, has_aux=True)(*variables, x, key)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, variables.params, gradient)
            return type(variables)(params, state), loss(params, state, x, key)[0]

        return jax.lax.scan(step, variables, keys)

    keys = jax.random.split(jax.random.key(2), (2, 30))
    _, losses = train(x, keys)
    losses = np.asarray(losses)
    assert (losses[:, -5:].mean(axis=1) < 0.5 * losses[:, 0]).all()


def test_modules_without_train_or_features():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(max_pool(x).reshape(x.shape[0], -1))

    class Linear(nnx.Module):
        def __init__(self, *, rngs):
            self.layer = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            return self.layer(x)

    for module, shape in ((Net(), (2, 4, 4, 1)), (Linear, (2, 4))):
        model, x = from_flax(module), np.ones(shape, np.float32)
        variables = jax.eval_shape(model.init, jax.random.key(0), x)
        apply = partial(model.apply, train=True, key=None)
        assert jax.eval_shape(apply, *variables, x)[0].shape == (2, 3)
        with pytest.raises(ValueError, match="features"):
            model.features(*variables, x)


def test_other_nnx_variables_are_rejected():
    class Counter(nnx.Module):
        def __init__(self, *, rngs):
            self.calls = nnx.Variable(jnp.zeros(()))

    with pytest.raises(ValueError, match="Counter"):
        from_flax(Counter)


class Dense64(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.ones((64, 3)) @ x


class Linear64(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(64, 3, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


def test_errors_of_a_module_name_the_shape_of_its_input():
    x = np.ones((2, 6), np.float32)
    shapes = r"for an input of shape \[2, 6\]; examples have the shape \[6\] in the data. \w"
    with pytest.raises(ValueError, match=f"module Dense64: TypeError {shapes}"):
        from_flax(Dense64()).init(jax.random.key(0), x)
    model = from_flax(Linear64)
    variables = model.init(jax.random.key(0), x)
    with pytest.raises(ValueError, match=f"module Linear64: TypeError {shapes}"):
        model.apply(*variables, x, train=True, key=None)
    linen = from_flax(nn.Dense(3))
    variables = linen.init(jax.random.key(0), x)
    with pytest.raises(
        ValueError, match=f"module Dense: ScopeParamShapeError {shapes}".replace("6", "5")
    ):
        linen.apply(*variables, x[:, :5], train=True, key=None)
