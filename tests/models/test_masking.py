"""Statistics of a minibatch are those of its examples, without padding."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_fair as ff
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.roles import Client, Model, Variables

RATE = 0.3
X = np.random.default_rng(0).normal(1.0, 2.0, (7, 4)).astype(np.float32)
Y = np.arange(7) % 2
OTHERS = 100 * X


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(not train, momentum=0.0, name="norm")(x)
        return nn.Dense(2, name="head")(x)


class NnxNet(nnx.Module):
    def __init__(self, *, rngs):
        self.norm = nnx.BatchNorm(4, momentum=0.0, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x))


def normalize(x, example_mask=None):
    where = None if example_mask is None else example_mask[:, None]
    mean, var = jnp.mean(x, 0, where=where), jnp.var(x, 0, where=where)
    return (x - mean[None]) * jax.lax.rsqrt(var + 1e-5)[None], mean, var


class Own(nn.Module):
    """Statistics of the batch without Flax's layer."""

    @nn.compact
    def __call__(self, x, train):
        return self.head_of(x, None)

    def head_of(self, x, example_mask):
        x, mean, var = normalize(x, example_mask)
        for name, value in {"mean": mean, "var": var}.items():
            variable = self.variable("batch_stats", name, lambda: jnp.zeros(4))
            if not self.is_initializing() and self.is_mutable_collection("batch_stats"):
                variable.value = value
        return nn.Dense(2, name="head")(x)


class OwnMasked(Own):
    @nn.compact
    def __call__(self, x, train, example_mask=None):
        return self.head_of(x, example_mask)


class OwnNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.mean, self.var = nnx.BatchStat(jnp.zeros(4)), nnx.BatchStat(jnp.ones(4))
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def head_of(self, x, example_mask=None):
        x, self.mean[...], self.var[...] = normalize(x, example_mask)
        return self.head(x)

    def __call__(self, x):
        return self.head_of(x)


class OwnNnxMasked(OwnNnx):
    def __call__(self, x, example_mask=None):
        return self.head_of(x, example_mask)


def init(key, x):
    params = {"kernel": 0.5 * jax.random.normal(key, (4, 2)), "bias": jnp.zeros(2)}
    return Variables(params, {"mean": jnp.zeros(4), "var": jnp.ones(4)})


def apply_functions(params, state, x, *, train, key, example_mask=None):
    x, mean, var = normalize(x, example_mask)
    return x @ params["kernel"] + params["bias"][None], {"mean": mean, "var": var}


def apply_unmasked(params, state, x, *, train, key):
    return apply_functions(params, state, x, train=train, key=key)


def of_functions(apply):
    return Model.from_functions(init, apply, lambda params, state, x: x)


FUNCTIONS = of_functions(apply_functions)
MODELS = {
    "linen": ff.models.from_flax(LinenNet()),
    "nnx": ff.models.from_flax(NnxNet),
    "functions": FUNCTIONS,
    "pretrained": ff.models.pretrained(FUNCTIONS, init(jax.random.key(1), X)),
    "frozen": ff.models.freeze(FUNCTIONS, init(jax.random.key(1), X), ("kernel", "mean", "var")),
    "own_linen": ff.models.from_flax(OwnMasked()),
    "own_nnx": ff.models.from_flax(OwnNnxMasked),
}
STEPS = {
    "epochs": {"epochs": 1},
    "steps": {"steps": 1},
    "replacement": {"steps": 1, "replacement": True},
    "epochs_in_short_batches": {"epochs": 1, "batch_size": 4},
    "steps_in_short_batches": {"steps": 4, "batch_size": 5},
}


def solve(model, solver, *, seed=0, neighbour=True):
    """Trains a client with all rows of ``X``, next to another client or alone."""
    x, order = (np.concatenate([X, OTHERS]), 14) if neighbour else (X, 7)
    sizes = np.full(order // 7, 7, np.int32)
    examples = ClientExamples(
        x, np.resize(Y, order), np.arange(order, dtype=np.int32), 7 * np.arange(order // 7), sizes
    )
    examples = jax.tree.map(jnp.asarray, examples)
    variables = model.init(jax.random.key(0), X[:1])
    zero = jnp.int32(0)
    client = Client(model, examples, zero, jnp.int32(7), zero, {}, zero)
    result = jax.jit(lambda key: solver.solve(key, variables, client))(jax.random.key(seed))
    return variables, result, jax.tree.map(jnp.add, variables, result.update)


def statistics(state):
    """Mean and variance, which each model calls by these names."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    found = {jax.tree_util.keystr(path[-1:], simple=True): leaf for path, leaf in leaves}
    return found["mean"], found["var"]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_statistics_are_those_of_the_last_minibatch(model, steps):
    solver = ff.solvers.SGD(0.0, **{"batch_size": 10} | steps)
    _, result, trained = solve(model, solver)
    rows = X[[index for index in result.reports["last_batch"].tolist() if index >= 0]]
    assert len(rows) == {4: 3, 5: 2, 10: 10 if solver.replacement else 7}[solver.batch_size]
    mean, var = statistics(trained.state)
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, rows.var(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("mode", ["epochs", "steps"])
def test_a_step_on_all_rows_follows_their_gradient(model, mode):
    """It is that of the rows alone, whatever the seed and the neighbour are."""
    solver = ff.solvers.SGD(RATE, 10, **{mode: 2})
    variables, _, _ = solve(model, solver)
    expected = variables
    for _ in range(2):

        def loss(params, state):
            outputs, state = model.apply(params, state, X, train=True, key=jax.random.key(0))
            return jnp.mean(model.loss(outputs, Y)), state

        gradient, state = jax.grad(loss, has_aux=True)(*expected)
        params = jax.tree.map(lambda leaf, g: leaf - RATE * g, expected.params, gradient)
        expected = Variables(params, state)
    for seed, neighbour in ((0, True), (1, True), (0, False)):
        _, _, trained = solve(model, solver, seed=seed, neighbour=neighbour)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), trained, expected)


@pytest.mark.parametrize("name", ["linen", "nnx"])
def test_fedbn_keeps_the_statistics_of_each_client(name):
    sizes = (7, 3, 12)
    x = np.random.default_rng(1).normal(size=(22, 4)).astype(np.float32)
    clients = np.repeat(np.arange(3), sizes)
    labels = np.arange(22) % 2
    data = ff.data.from_arrays(
        x, labels, clients=clients, test_features=x, test_labels=labels, test_clients=clients
    )
    fedbn = ff.solvers.FedBN(ff.solvers.SGD(RATE, 20, epochs=1))
    method = ff.Round(MODELS[name], ff.selectors.Full(), fedbn, ff.aggregators.Mean())
    result = ff.fit(method, data, rounds=1)
    for client in range(3):
        rows = x[clients == client]
        state = result.variables_for(seed=0, client=client).state
        mean, var = statistics(state)
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(var, rows.var(0), rtol=1e-4, atol=1e-5)


class Reshaped(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(2)(nn.BatchNorm(not train)(x.reshape(-1, 2)).reshape(-1, 4))


class Rematerialized(NnxNet):
    call = staticmethod(nnx.remat(lambda layer, x: layer(x)))

    def __init__(self, *, rngs):
        super().__init__(rngs=rngs)
        self.plain = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.head(Rematerialized.call(self.norm, self.plain(x)))


class OwnBatchNorm(nnx.BatchNorm):
    def __call__(self, x):
        self.mean[...] = x.mean(0)
        return x - x.mean(0)[None]


class Replaced(NnxNet):
    """Its other layer is masked."""

    def __init__(self, *, rngs):
        super().__init__(rngs=rngs)
        self.other = OwnBatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return super().__call__(self.other(x))


REFUSED = {
    "functions": of_functions(apply_unmasked),
    "pretrained": ff.models.pretrained(of_functions(apply_unmasked), init(jax.random.key(0), X)),
    "linen": ff.models.from_flax(Own()),
    "nnx": ff.models.from_flax(OwnNnx),
    "reshaped": ff.models.from_flax(Reshaped()),
    "own_call": ff.models.from_flax(Replaced),
}


@pytest.mark.parametrize("model", REFUSED.values(), ids=REFUSED)
def test_statistics_that_would_count_padding_are_refused(model):
    with pytest.raises(ValueError, match="example_mask=None"):
        solve(model, ff.solvers.SGD(RATE, 10, epochs=1))


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"own_call"}))
def test_minibatches_with_replacement_need_no_mask(name):
    solver = ff.solvers.SGD(RATE, 10, steps=1, replacement=True)
    alone, beside = (solve(REFUSED[name], solver, neighbour=each)[2] for each in (False, True))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), alone, beside)


def test_batch_normalization_in_a_cached_transformation_is_masked_or_refused():
    model = ff.models.from_flax(Rematerialized)
    solver = ff.solvers.SGD(0.0, 10, steps=1)
    solve(model, solver.replace(replacement=True))  # Its trace has no mask.
    with pytest.raises(ValueError, match=r"nnx\.remat"):
        solve(model, solver)


class Lifted(nn.Module):
    """Batch normalization inside of transformations, in a subclass and with a mask of its own."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.remat(nn.BatchNorm)(not train, momentum=0.0)(x)
        x = _Subclass(momentum=0.0)(x, train)
        x = nn.BatchNorm(not train, momentum=0.0)(x, mask=x > -1)
        x = nn.SpectralNorm(nn.Dense(4))(x, update_stats=train)
        layers = nn.scan(
            _Layer, variable_axes={"params": 0, "batch_stats": 0}, split_rngs={"params": True},
            length=2, in_axes=nn.broadcast,
        )  # fmt: skip
        return nn.Dense(2)(layers()(x, train)[0])


class _Layer(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.relu(nn.BatchNorm(not train, momentum=0.0)(nn.Dense(4)(x))), None


class _Subclass(nn.BatchNorm):
    @nn.compact
    def __call__(self, x, train):
        return super().__call__(x, use_running_average=not train)


class Listed(nnx.Module):
    """Shared batch normalization, in a subclass and under ``nnx.scan``; and spectral norms."""

    def __init__(self, *, rngs):
        self.layers = nnx.List([nnx.BatchNorm(4, rngs=rngs), _NnxSubclass(4, rngs=rngs)])
        self.again = self.layers[0]
        self.spectral = nnx.SpectralNorm(nnx.Linear(4, 4, rngs=rngs), rngs=rngs)
        split = nnx.split_rngs(splits=2)
        self.stack = split(nnx.vmap(lambda rngs: nnx.BatchNorm(4, rngs=rngs)))(rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        for layer in (*self.layers, self.again):
            x = layer(x)
        x = self.spectral(x, update_stats=not self.again.use_running_average)
        scan = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.head(scan(x, self.stack))


class _NnxSubclass(nnx.BatchNorm):
    def __call__(self, x):
        return 2 * super().__call__(x)


@pytest.mark.parametrize("module", [Lifted(), Listed], ids=["linen", "nnx"])
def test_all_batch_normalization_of_a_module_is_masked(module):
    model = ff.models.from_flax(module)
    variables = model.init(jax.random.key(0), X[:1])
    apply = jax.jit(partial(model.apply, *variables, train=True, key=None))
    outputs, state = apply(x=X)
    mask = jnp.arange(10) < 7
    padded, padded_state = apply(x=np.concatenate([X, OTHERS[:3]]), example_mask=mask)
    np.testing.assert_allclose(padded[:7], outputs, rtol=1e-4, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), padded_state, state)


def count(params, state, x, *, train, key):
    return x @ params["kernel"], {"calls": state["calls"] + 1}


def test_state_that_reads_no_examples_needs_no_mask():
    def init_counter(key, x):
        return init(key, x)._replace(state={"calls": jnp.zeros(())})

    model = Model.from_functions(init_counter, count, lambda params, state, x: x)
    _, _, trained = solve(model, ff.solvers.SGD(RATE, 4, epochs=1))
    assert trained.state == {"calls": 2}


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(nn.LayerNorm()(x)))


class PlainNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.norm, self.head = nnx.LayerNorm(4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    "model",
    [
        ff.models.from_flax(Plain()),
        ff.models.from_flax(PlainNnx),
        ff.models.mlp(2, (3,)),
        ff.models.in_bfloat16(ff.models.logistic(2)),
    ],
    ids=["linen", "nnx", "mlp", "bfloat16"],
)
def test_a_mask_costs_nothing_without_statistics(model):
    variables = model.init(jax.random.key(0), X[:1])

    def operations(mask):
        apply = partial(model.apply, train=True, key=jax.random.key(0), example_mask=mask)
        return str(jax.make_jaxpr(apply)(*variables, X))

    assert operations(jnp.arange(7) < 3) == operations(None)


@pytest.mark.parametrize("name", ["linen", "nnx"])
def test_evaluation_reads_no_other_examples(name):
    model = MODELS[name]
    _, _, trained = solve(model, ff.solvers.SGD(RATE, 10, epochs=1))
    together, _ = model.apply(*trained, np.concatenate([X, OTHERS]), train=False, key=None)
    alone, state = model.apply(*trained, X, train=False, key=None)
    np.testing.assert_allclose(together[:7], alone, rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, state, trained.state)
