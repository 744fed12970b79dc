"""Split models: identities of FedPer, LG-FedAvg, FedRep, FedBN and FedBABU, and NumPy."""

from functools import cache, partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import NUM_CLASSES, linear_gradient, linear_model, make_federation, normalized_model
from flax import nnx

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, selectors, solvers
from fedjax_fair.models import from_flax
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.rounds.round_state import Traffic

FEDERATION = make_federation()
DATA = jax.tree.map(jnp.asarray, FEDERATION)
NUM_CLIENTS = 6
KEY = jax.random.key(4)
SGD = solvers.SGD(0.2, 2, epochs=2, momentum=0.5)
FULL_BATCH = solvers.SGD(0.2, 100, steps=3)  # A step is a gradient of all examples of the client.
NORMALIZED = ("Dense_1",)
"""The head of the model with batch normalization."""


@cache
def trained(solver, num_rounds=4, model=linear_model, weights="uniform", **settings):
    """Returns the first variables, the last state, info, and the model of each client."""
    settings = {
        "selector": selectors.Uniform(3),
        "aggregator": aggregators.Mean(weights),
    } | settings
    round = Round(model(), solver=solver, **settings)

    @jax.jit
    def train(key):
        start = round.init(key, DATA)
        state, info = run(round, start, DATA, num_rounds)
        models = None
        if round.is_personalized:
            clients = jnp.arange(NUM_CLIENTS, dtype=jnp.int32)
            models = jax.lax.map(round.personalize(state, DATA), clients)
        return start.variables, state._replace(key=(), clients=()), info, models

    return jax.device_get(train(KEY))


def of_client(models, client):
    return jax.tree.map(lambda leaf: leaf[client], models)


def assert_equal_to_all(models, variables):
    for client in range(NUM_CLIENTS):
        chex.assert_trees_all_equal(of_client(models, client), variables)


ALL = ("kernel", "bias")
LOSS = (("faults", faults.Dropout(0.3)),)


@pytest.mark.parametrize(
    "solver", [solvers.FedPer(SGD, ()), solvers.LGFedAvg(SGD, ALL), solvers.FedBABU(SGD, (), 0)]
)
def test_without_personal_arrays_they_are_fedavg(solver):
    split, fedavg = trained(solver, **dict(LOSS)), trained(SGD, **dict(LOSS))
    chex.assert_trees_all_equal(split[1].variables, fedavg[1].variables)
    assert_equal_to_all(split[3], fedavg[1].variables)


@pytest.mark.parametrize("prox", [0.0, 0.7])
@pytest.mark.parametrize(
    "make",
    [
        partial(solvers.FedPer, head_layers=ALL),
        partial(solvers.LGFedAvg, head_layers=()),
        partial(solvers.FedRep, head_layers=ALL, body_epochs=0),
    ],
)
def test_without_shared_arrays_clients_train_alone(make, prox):
    sgd = FULL_BATCH.replace(prox=prox)
    split, local = trained(make(sgd)), trained(solvers.Local(sgd))
    chex.assert_trees_all_close(split[3], local[3], atol=1e-6)
    chex.assert_trees_all_equal(split[1].variables, split[0])
    assert split[2].traffic == Traffic(0, 0)


def test_lg_fedavg_is_fedper_of_the_complement():
    lg_fedavg = trained(solvers.LGFedAvg(SGD, ("bias",)), **dict(LOSS))
    fedper = trained(solvers.FedPer(SGD, ("kernel",)), **dict(LOSS))
    chex.assert_trees_all_equal(lg_fedavg, fedper)


def step(params, client, names, rate=0.2):
    slope = linear_gradient(params, client)
    return params | {name: params[name] - rate * slope[name] for name in names}


def fedper_in_numpy(params, client):
    for _ in range(3):
        params = step(params, client, ("kernel", "bias"))
    return params


def fedrep_in_numpy(params, client):
    for names in (("bias",),) * 3 + (("kernel",),) * 2:
        params = step(params, client, names)
    return params


@pytest.mark.parametrize(
    ("solver", "train"),
    [
        (solvers.FedPer(FULL_BATCH, ("bias",)), fedper_in_numpy),
        (solvers.FedRep(FULL_BATCH, ("bias",), 2), fedrep_in_numpy),
    ],
)
def test_rounds_equal_numpy(solver, train):
    """With a client that is drawn twice, weights by size, and clients that never take part."""
    cohorts = ((0, 1, 2), (3, 2, 0), (4, 4, 1))

    def select(key, state, context):
        clients = jnp.array(cohorts, jnp.int32)[context.round]
        return ff.Cohort(clients, jnp.full(3, 1 / 3)), state, {}

    selector = ff.Selector.from_functions(select)
    first, state, _, models = trained(
        solver, len(cohorts), weights="num_examples", selector=selector
    )
    shared = np.float64(first.params["kernel"])
    heads = [np.float64(first.params["bias"])] * NUM_CLIENTS
    sizes = FEDERATION.train.sizes
    for cohort in cohorts:
        ends = [train({"kernel": shared, "bias": heads[i]}, i) for i in cohort]
        shared = np.average([end["kernel"] for end in ends], axis=0, weights=sizes[list(cohort)])
        for client, end in zip(cohort, ends, strict=True):
            heads[client] = end["bias"]
    np.testing.assert_allclose(state.variables.params["kernel"], shared, atol=2e-6)
    np.testing.assert_array_equal(state.variables.params["bias"], first.params["bias"])
    for client in range(NUM_CLIENTS):
        expected = {"kernel": shared, "bias": heads[client]}
        chex.assert_trees_all_close(of_client(models, client).params, expected, atol=2e-6)


def test_the_head_phase_of_fedrep_leaves_the_body_and_its_statistics():
    solver = solvers.FedRep(SGD.replace(weight_decay=0.1), NORMALIZED, body_epochs=0)
    first, state, _, models = trained(solver, model=normalized_model)
    chex.assert_trees_all_equal(state.variables, first)
    for client in range(NUM_CLIENTS):
        params, statistics = of_client(models, client)
        chex.assert_trees_all_equal(statistics, first.state)
        for name in ("Dense_0", "middle"):
            chex.assert_trees_all_equal(params[name], first.params[name])
    assert (models.params["Dense_1"]["kernel"] != first.params["Dense_1"]["kernel"][None]).any()
    moved = trained(solver.replace(body_epochs=1), model=normalized_model)[1].variables
    chex.assert_trees_all_equal(moved.params["Dense_1"], first.params["Dense_1"])
    changed = jax.tree.map(lambda a, b: (a != b).any(), moved.state, first.state)
    assert all(jax.tree.leaves(changed))


def test_stragglers_of_fedrep_stop_after_their_steps_in_either_phase():
    late = faults.Stragglers(1.0, deadline_steps=4)
    full = {"selector": selectors.Full(), "faults": late, "num_rounds": 1}
    head, both = (solvers.SGD(0.2, 100, steps=n) for n in (4, 3))
    only_head = trained(solvers.FedRep(head, ("bias",), 2), **full)
    alone = trained(solvers.FedRep(head, ("bias",), 0), **full)
    chex.assert_trees_all_close(only_head[3], alone[3], atol=1e-6)
    assert (only_head[2].steps == 4).all()
    assert np.isfinite(only_head[2].loss).all()
    cut, one = (trained(solvers.FedRep(both, ("bias",), epochs), **full) for epochs in (2, 1))
    chex.assert_trees_all_close(cut[3], one[3], atol=1e-6)
    assert (cut[2].steps == 4).all()


def test_fedbabu_keeps_the_head_and_fine_tunes_all_of_the_model():
    """Also if Byzantine clients send noise in place of it."""
    solver = solvers.FedBABU(SGD.replace(weight_decay=0.1), ("bias",), finetune_epochs=2)
    noisy = {"faults": faults.Byzantine(0.5, "noise")}
    first, state, _, _ = trained(solver, **noisy)
    chex.assert_trees_all_equal(state.variables.params["bias"], first.params["bias"])
    assert (state.variables.params["kernel"] != first.params["kernel"]).all()
    # Six steps on a full batch, for a client without response as well.
    solver = solvers.FedBABU(FULL_BATCH, ("bias",), finetune_epochs=6)
    _, state, _, models = trained(solver)
    for client in range(NUM_CLIENTS):
        params = {name: np.float64(leaf) for name, leaf in state.variables.params.items()}
        for _ in range(6):
            params = step(params, client, ("kernel", "bias"))
        chex.assert_trees_all_close(of_client(models, client).params, params, atol=3e-6)


def test_the_body_of_fedbabu_is_averaged_and_communicated_alone():
    fedbabu = solvers.FedBABU(FULL_BATCH, ("bias",), 0)
    first, state, info, _ = trained(fedbabu, 1, selector=selectors.Full())
    ends = []
    for client in range(NUM_CLIENTS):
        params = {name: np.float64(leaf) for name, leaf in first.params.items()}
        for _ in range(3):
            params = step(params, client, ("kernel",))
        ends.append(params["kernel"])
    np.testing.assert_allclose(state.variables.params["kernel"], np.mean(ends, axis=0), atol=2e-6)
    assert info.traffic == Traffic(4 * 12, 4 * 12)


@pytest.mark.parametrize("model", [normalized_model, lambda: from_flax(partial(NnxNet, 4))],
                         ids=["linen", "nnx"])  # fmt: skip
def test_fedbn_keeps_batch_normalization_and_nothing_else(model):
    first, state, info, models = trained(solvers.FedBN(SGD), model=model, **dict(LOSS))
    _, paths = find_paths(models, state.variables)
    is_normalization = {path for path in paths if "middle" in path}
    assert {path for path in paths if paths[path]} == is_normalization
    assert len(is_normalization) == 4
    kept = find_paths(state.variables, first)[1]
    assert not any(kept[path] for path in is_normalization)
    assert all(kept[path] for path in kept.keys() - is_normalization)
    num_bytes = 4 * (4 * 5 + 5 + 5 * NUM_CLASSES + NUM_CLASSES)
    assert info.traffic == Traffic(num_bytes, num_bytes)


def find_paths(one, other):
    """Which arrays of trees differ, by path; those of the first may have an axis of clients."""
    differ = jax.tree.map(lambda a, b: bool((a != b).any()), one, other)
    leaves = jax.tree_util.tree_leaves_with_path(differ)
    return differ, {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


class NnxNet(nnx.Module):
    """The model with batch normalization as an NNX module; names order its output layer first."""

    def __init__(self, inputs, *, rngs):
        self.middle = nnx.BatchNorm(5, momentum=0.5, rngs=rngs)
        self.z_hidden = nnx.Linear(inputs, 5, rngs=rngs)
        self.a_output = nnx.Linear(5, NUM_CLASSES, rngs=rngs)

    def features(self, x):
        return nnx.relu(self.middle(self.z_hidden(x)))

    def __call__(self, x):
        return self.a_output(self.features(x))


class Named(nn.Module):
    """A linen module whose output layer is first by name."""

    def setup(self):
        self.z, self.a = nn.Dense(5), nn.Dense(NUM_CLASSES)

    def features(self, x):
        return nn.relu(self.z(x))

    def __call__(self, x):
        return self.a(self.features(x))


class Unused(Named):
    """A parameter that nothing reads belongs to no head."""

    def setup(self):
        super().setup()
        self.unused = self.param("unused", nn.initializers.zeros, (2,))


class Tied(Named):
    def features(self, x):
        return self.a(nn.relu(self.z(x)))

    def __call__(self, x):
        return self.features(x)


class Normalization(nn.Module):
    """A head with running statistics."""

    def setup(self):
        self.body, self.scaled, self.out = nn.Dense(5), nn.BatchNorm(), nn.Dense(NUM_CLASSES)

    def features(self, x, train):
        return nn.relu(self.body(x))

    def __call__(self, x, train):
        x = self.features(x, train)
        return self.out(self.scaled(x, use_running_average=not train))


def heads(model, head_layers=None):
    x = FEDERATION.train.features[:1]
    variables = jax.eval_shape(model.init, KEY, x)
    mask = solvers.FedPer(SGD, head_layers).is_personal(variables, model, x)
    leaves = jax.tree_util.tree_leaves_with_path(mask)
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, one in leaves if one}


def frozen_body():
    network = ff.models.mlp(3, (5,))
    variables = network.init(KEY, FEDERATION.train.features[:1])
    return ff.models.freeze(network, variables, ("head",))


def layer(name):
    return {f"params/{name}/kernel", f"params/{name}/bias"}


STATISTICS = {"state/batch_stats/scaled/mean", "state/batch_stats/scaled/var"}


@pytest.mark.parametrize(
    ("model", "head_layers", "expected"),
    [
        (ff.models.mlp(3, (5, 6)), None, layer("head")),
        (ff.models.mlp(3, (5, 6)), ("body/Dense_1", "head"),
         layer("body/Dense_1") | layer("head")),
        (ff.models.mlp(3, (5,)), ("body",), layer("body/Dense_0")),
        (from_flax(Named()), None, layer("a")),
        (from_flax(Unused()), None, layer("a")),
        (from_flax(partial(NnxNet, 4)), None, layer("a_output")),
        (from_flax(Normalization()), None, layer("out") | STATISTICS
         | {"params/scaled/scale", "params/scaled/bias"}),
        (from_flax(Normalization()), ("scaled",), STATISTICS
         | {"params/scaled/scale", "params/scaled/bias"}),
        (normalized_model(), NORMALIZED, layer("Dense_1")),
        (linear_model(), ("bias",), {"params/bias"}),
    ],
)  # fmt: skip
def test_the_head_is_after_the_features_or_named(model, head_layers, expected):
    assert heads(model, head_layers) == expected


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: heads(ff.models.logistic(3)), "only layers after Model.features; .* among head"),
        (lambda: heads(from_flax(Tied())), "no layers after Model.features; .* among a, z"),
        (lambda: heads(normalized_model()),
         "head_layers=None"),
        (lambda: heads(ff.models.mlp(3, (5,)), ("Dense_0",)),
         "head_layers='Dense_0' matches no parameter; expected some of body/Dense_0, head"),
        (lambda: heads(frozen_body()), "only layers after Model.features, because the others are"),
        (lambda: solvers.FedPer(SGD, "head"), "head_layers='head'"),
        (lambda: solvers.FedPer(3), "solver"),
        (lambda: solvers.FedRep(SGD, body_epochs=-1), "body_epochs=-1"),
        (lambda: solvers.FedBABU(SGD, finetune_epochs=0.5),
         "finetune_epochs=0.5"),
        (lambda: ff.fit(Round(ff.models.mlp(3, (5,)), selectors.Full(), solvers.FedBN(SGD),
                              aggregators.Mean()), FEDERATION, rounds=1).dataset,
         "FedBN"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_split_are_refused(call, said, as_users_call):
    with pytest.raises(ValueError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_group_normalization_is_shared():
    model = ff.models.resnet18(3)
    x = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    variables = jax.eval_shape(model.init, KEY, x)
    with pytest.raises(ValueError, match="none"):
        solvers.FedBN(SGD).is_personal(variables, model, x)
    model = ff.models.resnet18(3, norm="batch")
    variables = jax.eval_shape(model.init, KEY, x)
    mask = solvers.FedBN(SGD).is_personal(variables, model, x)
    assert sum(jax.tree.leaves(mask)) == 20 * 4
    shapes = jax.tree.map(lambda leaf, personal: personal <= (leaf.ndim == 1), variables, mask)
    assert all(jax.tree.leaves(shapes))
