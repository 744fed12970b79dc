"""Networks of which a part is trained: what is trained, sent, shared, merged and refused."""

import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedjax_fair as ff
from fedjax_fair.roles import Variables

# A few rounds do not suffice for all classes.
pytestmark = pytest.mark.filterwarnings("ignore:.*the prediction is class")

KEY = jax.random.key(0)
DATA = ff.data.load("digits", ff.data.classes_per_client(num_clients=10, classes=3))
X = DATA.train.features[:6]
NETWORK = ff.models.mlp(10, hidden=(16, 12))
BASE = NETWORK.init(KEY, X)
HEAD = 12 * 10 + 10


def method(model, solver=None, **settings):
    return ff.Round(
        model,
        ff.selectors.Uniform(4),
        solver or ff.solvers.SGD(0.1, 10, steps=3),
        ff.aggregators.Mean(),
        **settings,
    )


def fitted(model, solver=None, rounds=3, seeds=(0, 1), **settings):
    return ff.fit(method(model, solver, **settings), DATA, rounds=rounds, seeds=seeds)


def assert_equal(mine, others):
    assert jax.tree.structure(mine) == jax.tree.structure(others)
    jax.tree.map(np.testing.assert_array_equal, mine, others)


def flat(x):
    return x.reshape(len(x), -1).astype(jnp.float32)


class Dropout(nn.Module):
    @nn.compact
    def features(self, x, train):
        return nn.Dropout(0.5, deterministic=not train)(nn.relu(nn.Dense(8)(flat(x))))

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(10)(self.features(x, train))


SOLVERS = {
    "plain": ff.solvers.SGD(0.1, 10, steps=3),
    "momentum and proximal term": ff.solvers.SGD(0.1, 10, steps=3, momentum=0.9, prox=0.1),
    "RMSprop": ff.solvers.SGD(0.01, 10, steps=3, optimizer=optax.rmsprop),
}


@pytest.mark.parametrize(
    ("network", "name"),
    [(ff.models.from_flax(Dropout()), "plain"), *((NETWORK, name) for name in SOLVERS)],
    ids=["dropout", *SOLVERS],
)
def test_all_trained_equals_the_network(network, name):
    everything = ff.models.freeze(network, network.init(KEY, X), (".*",), fresh=True)
    compression = ff.communication.TopK(0.1) if name == "plain" else None
    ours = fitted(everything, SOLVERS[name], compression=compression)
    theirs = fitted(network, SOLVERS[name], compression=compression)
    assert_equal(ours.variables, theirs.variables)
    for variable in theirs.dataset:
        np.testing.assert_array_equal(ours.dataset[variable], theirs.dataset[variable])


@pytest.mark.parametrize(
    "selector",
    [ff.selectors.Uniform(4), ff.selectors.DivFL(4)],
    ids=["uniform", "by gradients"],
)
def test_a_trained_head_equals_a_linear_model_on_features(selector):
    head = ff.models.freeze(NETWORK, BASE, ("head",))

    def on_features(features):
        return np.asarray(NETWORK.features(*BASE, jnp.asarray(features)))

    parts = {
        name: getattr(DATA, name)._replace(features=on_features(getattr(DATA, name).features))
        for name in ("train", "test")
    }
    of_features = DATA._replace(**parts)
    start = Variables({"head": BASE.params["head"]}, {})
    linear = ff.models.pretrained(ff.models.logistic(10), start)
    runs = [
        ff.fit(method(model).replace(selector=selector), data, rounds=4, seeds=(0,))
        for model, data in ((head, DATA), (linear, of_features))
    ]
    np.testing.assert_array_equal(*(run.dataset.cohort_clients for run in runs))
    for ours, theirs in zip(*(jax.tree.leaves(run.variables) for run in runs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(*(run.dataset.test_loss for run in runs), rtol=1e-4)


def test_only_trained_arrays_are_sent_and_stored():
    model = ff.models.freeze(NETWORK, BASE, ("head",))
    state = jax.eval_shape(partial(method(model).init), KEY, DATA)
    sizes = {leaf.size for leaf in jax.tree.leaves(state.variables)}
    assert sizes == {120, 10}
    run = fitted(model)
    participants = (run.dataset.cohort_clients >= 0).sum("slot").cumsum("training_round")
    expected = 4 * HEAD * participants.isel(training_round=-1).values
    np.testing.assert_array_equal(run.dataset.bytes_up.isel(round=-1), expected)
    np.testing.assert_array_equal(run.dataset.bytes_down.isel(round=-1), expected)


@pytest.mark.parametrize(
    ("solver", "aggregator"),
    [
        (ff.solvers.Scaffold, ff.aggregators.ScaffoldMean()),
        (partial(ff.solvers.Ditto, personal_prox=0.1), ff.aggregators.Mean()),
        (ff.solvers.Local, ff.aggregators.Mean()),
    ],
    ids=["scaffold", "ditto", "local"],
)
def test_states_of_clients_have_the_trained_part(solver, aggregator):
    model = ff.models.freeze(NETWORK, BASE, ("head",))
    round = method(model, solver(SOLVERS["plain"])).replace(aggregator=aggregator)
    state = jax.eval_shape(round.init, KEY, DATA)
    stored = sum(array.size for array in state.clients.arrays.values())
    assert stored == HEAD * DATA.num_clients


def test_no_array_of_the_program_repeats_frozen_arrays():
    """The compiled program has no ``[clients, base]`` and no ``[seeds, base]``."""
    network = ff.models.mlp(10, hidden=(31, 37))
    base = network.init(KEY, X)
    shapes = {}
    for name, model in {
        "whole": network,
        "frozen": ff.models.freeze(network, base, ("head",)),
        "adapters": ff.models.lora(network, base, rank=3, trainable=("head",)),
    }.items():
        round = method(model, clients_per_batch=4)
        keys = jax.random.split(KEY, 3)
        states = jax.eval_shape(jax.vmap(round.init, (0, None)), keys, DATA)

        def step(round, states):
            return jax.vmap(lambda state: ff.run(round, state, DATA, 2))(states)

        text = jax.jit(step).lower(round, states).compile().as_text()
        shapes[name] = set(re.findall(r"f32\[([0-9,]+)\]", text))
    # Both orders of the axes of a transposed kernel.
    kernel = re.compile(r"(?:.+,)(?:64,31|31,64|31,37|37,31)|(?:31,37|37,31|64,31|31,64)(?:,.+)")
    repeated = {
        name: {one for one in found if kernel.fullmatch(one)} for name, found in shapes.items()
    }
    assert repeated["whole"]
    assert not repeated["frozen"]
    assert not repeated["adapters"]


def test_other_frozen_arrays_do_not_recompile_and_can_differ_by_run():
    bases = [NETWORK.init(jax.random.key(seed), X) for seed in (1, 2)]
    models = [ff.models.freeze(NETWORK, base, ("head",)) for base in bases]
    assert jax.tree.structure(models[0]) == jax.tree.structure(models[1])
    together = ff.fit([method(model) for model in models], DATA, rounds=2, seeds=(0, 0))
    alone = [fitted(model, rounds=2, seeds=(0,)).variables for model in models]
    stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *alone)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)  # Another fusion.
    jax.tree.map(close, together.variables, stacked)


def test_merged_variables_are_those_of_the_network():
    model = ff.models.freeze(NETWORK, BASE, ("head", "body/Dense_1/bias"))
    run = fitted(model)
    trained = run.variables_for(1)
    whole = model.merge(trained)
    assert jax.tree.structure(whole) == jax.tree.structure(BASE)
    mine, frozen, own = (each.params["body"] for each in (whole, BASE, trained))
    assert_equal(mine["Dense_0"], frozen["Dense_0"])
    assert_equal(mine["Dense_1"], frozen["Dense_1"] | own["Dense_1"])
    outputs = model.apply(*trained, X, train=False, key=None)[0]
    np.testing.assert_array_equal(outputs, NETWORK.apply(*whole, X, train=False, key=None)[0])
    np.testing.assert_array_equal(model.features(*trained, X), NETWORK.features(*whole, X))


def test_a_new_head_starts_from_init_and_may_have_other_shapes():
    base = Variables({"body": BASE.params["body"]}, {})
    for given in (base, ff.models.mlp(3, hidden=(16, 12)).init(KEY, X)):
        model = ff.models.freeze(NETWORK, given, ("head",), fresh=True)
        start = model.init(jax.random.key(5), X)
        assert_equal(start.params, {"head": NETWORK.init(jax.random.key(5), X).params["head"]})
        assert "from init of each seed" in str(model)


class Blocks(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def features(self, x):
        x = flat(x)
        for block in self.blocks:
            x = nnx.relu(block(x))
        return x

    def __call__(self, x):
        return self.head(self.features(x))


def test_nnx_modules_and_functions():
    network = ff.models.from_flax(Blocks)
    base = network.init(KEY, X)
    model = ff.models.freeze(network, base, ("blocks/1", "head/bias"))
    start = model.init(KEY, X)
    assert sorted(start.params["blocks"]) == [1]
    assert_equal(model.merge(start), base)

    def init(key, x):
        return Variables([jnp.ones((64, 10)), (jnp.zeros(10), jnp.ones(()))], {})

    def apply(params, state, x, *, train, key):
        return (flat(x) @ params[0] + params[1][0][None]) * params[1][1], state

    network = ff.Model.from_functions(init, apply, lambda params, state, x: x)
    model = ff.models.freeze(network, network.init(KEY, X), ("1/0",))
    start = model.init(KEY, X)
    assert_equal(start.params, {1: {0: jnp.zeros(10)}})
    assert_equal(model.merge(start), network.init(KEY, X))
    assert np.isfinite(fitted(model, rounds=1).dataset.test_loss).all()


def test_a_function_chooses_by_path_and_array():
    model = ff.models.freeze(NETWORK, BASE, is_bias)
    assert {leaf.ndim for leaf in jax.tree.leaves(model.init(KEY, X))} == {1}


def is_bias(path, array):
    return array.ndim == 1 and path.endswith("bias")


class Normalized(nn.Module):
    @nn.compact
    def features(self, x, train):
        x = nn.Dense(8, name="first")(flat(x))
        return nn.relu(nn.BatchNorm(use_running_average=not train, name="norm")(x))

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(10, name="head")(self.features(x, train))


def test_frozen_statistics_stay_and_are_those_of_evaluation():
    network = ff.models.from_flax(Normalized())
    base = network.init(KEY, X)
    base = base._replace(state=jax.tree.map(lambda leaf: leaf + 0.5, base.state))
    model = ff.models.freeze(network, base, ("head",))
    run = fitted(model, rounds=5)
    assert run.variables.state == {}
    assert_equal(model.merge(run.variables_for(0)).state, base.state)
    start = model.init(KEY, X)
    trained, _ = model.apply(*start, X, train=True, key=KEY)
    evaluated, _ = network.apply(*base, X, train=False, key=None)
    np.testing.assert_array_equal(trained, evaluated)


class NormalizedTwice(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for name in ("first", "second"):
            x = nn.Dense(8, name=f"{name}_dense")(flat(x))
            x = nn.relu(nn.BatchNorm(use_running_average=not train, name=name)(x))
        return nn.Dense(10, name="head")(x)


def test_all_statistics_are_frozen_if_one_is():
    network = ff.models.from_flax(NormalizedTwice())
    base = network.init(KEY, X)
    model = ff.models.freeze(network, base, ("second", "head"))
    start = model.init(KEY, X)
    assert sorted(start.params) == ["head", "second"]
    assert start.state == {}
    assert_equal(model.merge(start), base)


def test_trained_statistics_need_trained_layers_before_them():
    network = ff.models.from_flax(Normalized())
    base = network.init(KEY, X)
    model = ff.models.freeze(network, base, ("norm", "head"))
    with pytest.raises(ValueError, match=r"statistics \(batch_stats/norm\) .* frozen \(first\)"):
        model.init(KEY, X)
    body = ff.models.freeze(network, base, ("first", "norm"))
    run = fitted(body, ff.solvers.SGD(0.1, 10, steps=3, replacement=True), rounds=2)
    before, after = (jax.tree.leaves(each) for each in (base.state, run.variables_for(0).state))
    assert all(not np.array_equal(*pair) for pair in zip(before, after, strict=True))


def test_personal_statistics_have_to_be_trained():
    network = ff.models.from_flax(Normalized())
    model = ff.models.freeze(network, network.init(KEY, X), ("head",))
    with pytest.raises(ValueError, match=r"FedBN .*; this one has none that is trained"):
        fitted(model, ff.solvers.FedBN(SOLVERS["plain"]), rounds=1)


NAN = jax.tree.map(lambda leaf: leaf * np.nan, BASE)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ff.models.freeze(NETWORK, BASE, ("head", "haed")),
         "trainable='haed' matches no parameter; expected some of body/Dense_0, body/Dense_1, h"),
        (lambda: ff.models.freeze(NETWORK, BASE, ()), r"trainable=\(\) chooses no parameter"),
        (lambda: ff.models.freeze(NETWORK, BASE, "head"), r"trainable='head': .* \('head',\)"),
        (lambda: ff.models.freeze(NETWORK, BASE, ("(",)), "trainable='\\(': expected a regular"),
        (lambda: ff.models.freeze(NETWORK, BASE, lambda path, array: array), "expected a bool"),
        (lambda: ff.models.freeze(NETWORK, BASE.params, ("head",)), "variables is a dict"),
        (lambda: ff.models.freeze(NETWORK, NAN, ("head",)), "has NaN"),
        (lambda: ff.models.freeze(ff.models.freeze(NETWORK, BASE, ("head",)), BASE, ("head",)),
         "freeze: Frozen is frozen in part"),
        (lambda: ff.models.in_bfloat16(ff.models.freeze(NETWORK, BASE, ("head",))),
         r"in_bfloat16: .* use freeze\(in_bfloat16\(model\), ...\)"),
        (lambda: ff.models.freeze(ff.models.mlp(10, (16, 11)), BASE, ("head",)).init(KEY, X),
         r"variables: .*float32\[12\]: expected float32\[11\]"),
        (lambda: ff.models.freeze(NETWORK, jax.tree.map(lambda leaf: leaf[None], BASE),
                                  ("head",)).init(KEY, X), "choose one seed with"),
        (lambda: ff.models.freeze(NETWORK, Variables({}, {}), ("head",), fresh=True).init(KEY, X),
         "variables: expected"),
        (lambda: ff.models.freeze(NETWORK, BASE, ("haed",), fresh=True).init(KEY, X),
         "trainable='haed' matches no parameter"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, said):
    with pytest.raises(ValueError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_half_precision_inside_reaches_the_frozen_layers():
    model = ff.models.freeze(ff.models.in_bfloat16(NETWORK), BASE, ("head",))
    start = model.init(KEY, X)
    jaxpr = jax.make_jaxpr(lambda x: model.apply(*start, x, train=False, key=None)[0])(X)
    dots = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "dot_general"]
    assert {str(dot.outvars[0].aval.dtype) for dot in dots} == {"bfloat16"}
