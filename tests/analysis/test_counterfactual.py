"""Selections at the same models, against separate computations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.analysis.counterfactual import counterfactual
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.rounds.round import Purpose, derive_key, make_context, run

CLIENTS, COHORT, ROUNDS = 8, 3, 3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 12)
    features = (rng.normal(size=(48, 5)) + labels[:, None]).astype(np.float32)
    # Each class belongs to four clients, each client has two classes.
    owners = (2 * labels + np.tile(np.repeat(np.arange(4), 3), 4)) % CLIENTS
    return ff.data.from_arrays(features, labels, clients=owners)


@pytest.fixture(scope="module")
def fedavg():
    return ff.Round(
        ff.models.logistic(4),
        ff.selectors.Uniform(COHORT),
        ff.solvers.SGD(0.5, 4, steps=3),
        ff.aggregators.Mean("uniform"),
    )


SELECTORS = {
    "divfl": ff.selectors.DivFL(COHORT),
    "subtrunc": ff.selectors.SubTrunc(COHORT, lam=0.9),
    "unionfl": ff.selectors.UnionFL(COHORT, window=1),
    "random": ff.selectors.Uniform(COHORT),
}


@pytest.fixture(scope="module")
def found(data, fedavg):
    return counterfactual(fedavg, SELECTORS, data, rounds=ROUNDS, seeds=(0, 4))


def test_cohorts_are_those_that_take_over_the_reference(as_users_call, found, data, fedavg):
    """Each selector alone at the states of a separate reference run."""
    data = jax.tree.map(jnp.asarray, data)
    state = fedavg.init(jax.random.key(4), data)
    own = {
        name: selector.init(make_context(fedavg.model, state.round, state.variables, data))
        for name, selector in SELECTORS.items()
    }
    for i in range(ROUNDS):
        context = make_context(fedavg.model, state.round, state.variables, data)
        key = derive_key(state.key, Purpose.SELECT, state.round)
        following, info = run(fedavg, state, data, 1)
        for name, selector in SELECTORS.items():
            cohort, own[name], _ = selector.select(key, own[name], context)
            clients = found.clients.sel(algorithm=name, seed=4, training_round=i)
            np.testing.assert_array_equal(np.sort(clients), np.sort(cohort.clients))
            trained = cohort._replace(clients=info.clients[0])
            own[name] = selector.observe(own[name], trained, None, context)
        np.testing.assert_array_equal(
            found.clients.sel(algorithm="random", seed=4, training_round=i), info.clients[0]
        )
        state = following


def test_measures_equal_their_definitions(found, data, fedavg):
    state = fedavg.init(jax.random.key(0), data)
    state, _ = run(fedavg, state, data, 2)
    context = make_context(fedavg.model, state.round, state.variables, data)
    measured = context.gradients(state.variables, None, project=ravel)
    gradients, losses = np.asarray(measured.gradient), np.asarray(measured.loss)
    distances = np.linalg.norm(gradients[:, None] - gradients[None], axis=-1)
    train = data.train
    classes = [
        set(np.asarray(train.labels)[np.asarray(train.order[offset : offset + size])].tolist())
        for offset, size in zip(train.offsets, train.sizes, strict=True)
    ]
    by_divfl = set(found.clients.sel(algorithm="divfl", seed=0, training_round=2).values.tolist())
    for name in SELECTORS:
        one = found.sel(algorithm=name, seed=0, training_round=2)
        ids = one.clients.values
        nearest = distances[:, ids].min(axis=1)
        expected = {
            "overlap": len(by_divfl & set(ids.tolist())) / COHORT,
            "representation": (distances.max(axis=1) - nearest).mean(),
            "bonus": min(1.1, np.log1p(losses[ids]).sum()),
            "classes": len(set.union(*(classes[i] for i in ids))),
            "loss": losses[ids].mean(),
        }
        for variable, value in expected.items():
            np.testing.assert_allclose(one[variable], value, rtol=1e-4, err_msg=variable)
    # The limit of the bonus binds here, and another one does not.
    free = counterfactual(fedavg, SELECTORS, data, rounds=1, b=1e3)
    ids = free.clients.sel(algorithm="divfl", seed=0, training_round=0).values
    context = make_context(
        fedavg.model, jnp.int32(0), fedavg.init(jax.random.key(0), data).variables, data
    )
    total = np.log1p(np.asarray(context.losses(context.variables))[ids]).sum()
    np.testing.assert_allclose(
        free.bonus.sel(algorithm="divfl", seed=0, training_round=0), total, rtol=1e-5
    )
    assert total > 1.1


def test_the_first_selector_is_the_baseline(found):
    assert found.attrs["baseline"] == "divfl"
    assert found.attrs["overlap_by_chance"] == COHORT / CLIENTS
    assert (found.overlap.sel(algorithm="divfl") == 1).all()


def test_overlap_refers_to_the_baseline_and_data_to_the_seed(fedavg):
    fedavg = fedavg.replace(model=ff.models.logistic(10))
    split = ff.data.classes_per_client(CLIENTS, classes=3)
    both = ff.data.stack([ff.data.load("digits", split, seed=seed) for seed in (0, 1)])
    found = counterfactual(fedavg, SELECTORS, both, rounds=1, seeds=(0, 1), baseline="random")
    assert (found.overlap.sel(algorithm="random") == 1).all()
    alone = counterfactual(
        fedavg, SELECTORS, both.partition(1), rounds=1, seeds=(1,), baseline="random"
    )
    for name in ("clients", "overlap", "classes"):
        np.testing.assert_array_equal(found[name].sel(seed=1), alone[name].sel(seed=1))
    with pytest.raises(ValueError, match="seeds="):
        counterfactual(fedavg, SELECTORS, both, rounds=1)


def test_bad_arguments_are_named(as_users_call, data, fedavg):
    with pytest.raises(ValueError, match="selectors="):
        counterfactual(fedavg, {}, data, rounds=1)
    with pytest.raises(ValueError, match=r"selectors\['x'\]"):
        counterfactual(fedavg, {"x": ff.solvers.SGD(0.1, 4, steps=1)}, data, rounds=1)
    with pytest.raises(ValueError, match="baseline='x'"):
        counterfactual(fedavg, SELECTORS, data, rounds=1, baseline="x")
    with pytest.raises(ValueError, match="rounds"):
        counterfactual(fedavg, SELECTORS, data, rounds=0)
    with pytest.raises(ValueError, match="selects"):
        counterfactual(fedavg, {"few": ff.selectors.Uniform(2)}, data, rounds=1)
