"""The fairness baselines against NumPy, their laws, and the limits that are federated averaging.

A method is compiled once, with its parameter traced (``history``). That serves both its test
against a second implementation, written from the formulas in double precision and without the
package, and the test of its limit.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_context, make_federation, nearest_mixture
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.base import Cohort, LocalResult, Selector, Variables
from fedjax_fair.simulate import make_round

GROUPS = np.array([0, 1, 0, 2, 1, 0], np.int32)
FEDERATION = make_federation()._replace(groups=GROUPS)
SIZES = FEDERATION.train.sizes
CLIENTS = range(len(SIZES))
# Repeated clients; groups that are absent, alone and back again.
COHORTS = ((2, 5, 2, 1), (0, 5, 2, 5), (3, 4, 1, 1), (0, 3, 4, 1))
RATE, STEPS = 0.3, 3


# --- The package's answer ---------------------------------------------------------------------


def scheduled(cohorts):
    """A selector that takes the cohorts of a table, one a round."""

    def select(key, state, context):
        clients = jnp.asarray(cohorts, jnp.int32)[context.round]
        return Cohort(clients, jnp.full(clients.size, 1 / clients.size)), state, {}

    return Selector(lambda context: (), select, lambda state, *observed: state)


def telling_snapshot(aggregator):
    def aggregate(state, cohort, results, context):
        update, state, told = aggregator.aggregate(state, cohort, results, context)
        return update, state, told._replace(told={"snapshot": cohort.snapshot})

    return aggregator._replace(aggregate=aggregate)


METHODS = {
    "fairfed": lambda beta: (scheduled(COHORTS), aggregators.fairfed(beta)),
    "gifair": lambda strength: (scheduled(COHORTS), aggregators.gifair(strength)),
    "q_fedavg": lambda q: (scheduled(COHORTS), aggregators.q_fedavg(q, RATE)),
    "tilted": lambda t: (scheduled(COHORTS), aggregators.tilted(t)),
    "afl": lambda step: (selectors.agnostic(step), aggregators.mean("cohort")),
    "drfa": lambda step: (
        selectors.agnostic(step, cohort_size=4, local_steps=STEPS),
        telling_snapshot(aggregators.mean("uniform")),
    ),
}


class History(NamedTuple):
    models: np.ndarray  # [rounds + 1, width + 1, classes], the bias last
    states: Any
    infos: Any


def record(selector, aggregator):
    # Batches that hold all of a client's examples leave no randomness to training.
    solver = solvers.sgd(RATE, int(SIZES.max()), steps=STEPS)
    round = make_round(linear_model(), selector, solver, aggregator)

    def step(state, _):
        after, info = round.step(state, FEDERATION)
        return after, (after._replace(key=None), info)

    begin = round.init(jax.random.key(3), FEDERATION)
    _, (states, infos) = jax.lax.scan(step, begin, length=len(COHORTS))
    return begin.variables.params, states, infos


@cache
def compiled(method):
    return jax.jit(lambda parameter: record(*METHODS[method](parameter)))


def to_history(begin, states, infos):
    params = jax.tree.map(lambda a, b: np.stack([a, *b]), begin, states.variables.params)
    models = np.concatenate([params["kernel"], params["bias"][:, None]], axis=1)
    return History(models, *jax.tree.map(np.asarray, (states, infos)))


def history(method, parameter):
    return to_history(*compiled(method)(jnp.float32(parameter)))


@cache
def fedavg(weights):
    return jax.jit(lambda cohorts: record(scheduled(cohorts), aggregators.mean(weights)))


# --- The same in NumPy ------------------------------------------------------------------------


def examples(client):
    train = FEDERATION.train
    rows = train.order[train.offsets[client] :][: train.sizes[client]]
    return np.c_[train.features[rows], np.ones(len(rows))], train.labels[rows]


def probabilities(model, x):
    odds = np.exp(x @ model)
    return odds / odds.sum(axis=1, keepdims=True)


def loss(model, client):
    x, y = examples(client)
    return -np.log(probabilities(model, x)[np.arange(len(y)), y]).mean()


def accuracy(model, client):
    x, y = examples(client)
    return (probabilities(model, x).argmax(axis=1) == y).mean()


def trained(model, client, steps=STEPS, factor=1.0):
    x, y = examples(client)
    for _ in range(steps):
        error = probabilities(model, x) - np.eye(model.shape[1])[y]
        model = model - RATE * factor * x.T @ error / len(y)
    return model


def numpy_fairfed(beta, begin, seen):
    kept = {k: SIZES[k] / SIZES.sum() for k in CLIENTS}

    def round(number, model, members):
        accuracies = np.array([accuracy(model, k) for k in members])
        gaps = abs(accuracies - np.average(accuracies, weights=SIZES[members]))
        moved = {
            k: kept[k] - beta * (gap - gaps.mean()) for k, gap in zip(members, gaps, strict=True)
        }
        kept.update({k: max(0, weight) for k, weight in moved.items()})
        weights = [kept[k] for k in members]
        return np.average([trained(model, k) for k in members], axis=0, weights=weights)

    return round


def numpy_gifair(strength, begin, seen):
    level = {g: np.mean([loss(begin, k) for k in CLIENTS if GROUPS[k] == g]) for g in set(GROUPS)}

    def round(number, model, members):
        share = SIZES[members] / SIZES[members].sum()
        group = GROUPS[members]
        ahead = [sum(np.sign(level[g] - level[h]) for h in set(group)) for g in group]
        mass = share * [(group == g).sum() for g in group]
        limit = min(mass) / (len(set(group)) - 1) if len(set(group)) > 1 else 0
        factors = 1 + strength * limit * np.array(ahead) / mass
        models = [trained(model, k, factor=f) for k, f in zip(members, factors, strict=True)]
        for g in set(group):
            level[g] = np.mean([loss(models[i], members[i]) for i in np.flatnonzero(group == g)])
        return np.average(models, axis=0, weights=share)

    return round


def numpy_q_fedavg(q, begin, seen):
    def round(number, model, members):
        f = np.array([loss(model, k) + 1e-10 for k in members])
        slopes = np.array([(model - trained(model, k)) / RATE for k in members])
        squared = (slopes**2).sum(axis=(1, 2))
        total = (f[:, None, None] ** q * slopes).sum(axis=0)
        return model - total / (q * f ** (q - 1) * squared + f**q / RATE).sum()

    return round


def numpy_tilted(t, begin, seen):
    def round(number, model, members):
        weights = [SIZES[k] * np.exp(t * loss(model, k)) for k in members]
        return np.average([trained(model, k) for k in members], axis=0, weights=weights)

    return round


def numpy_afl(step, begin, seen):
    mixture = np.full(len(SIZES), 1 / len(SIZES))

    def round(number, model, members):
        mixture[:] = nearest_mixture(mixture + step * np.array([loss(model, k) for k in CLIENTS]))
        return np.average([trained(model, k) for k in members], axis=0, weights=mixture)

    return round


def numpy_drfa(step, begin, seen):
    mixture = np.full(len(SIZES), 1 / len(SIZES))

    def round(number, model, members):
        steps = seen.infos.aggregator["snapshot"][number]
        between = np.mean([trained(model, k, steps) for k in members], axis=0)
        told = np.zeros(len(SIZES))
        for k in seen.states.selector.asked[number]:
            told[k] = len(SIZES) / len(members) * loss(between, k)
        mixture[:] = nearest_mixture(mixture + step * STEPS * told)
        np.testing.assert_allclose(seen.states.selector.mixture[number], mixture, atol=1e-5)
        return np.mean([trained(model, k) for k in members], axis=0)

    return round


# --- One against the other --------------------------------------------------------------------

SECOND = {
    "fairfed": (numpy_fairfed, 0.5),
    "gifair": (numpy_gifair, 0.9),
    "q_fedavg": (numpy_q_fedavg, 2.0),
    "tilted": (numpy_tilted, 1.5),
    "afl": (numpy_afl, 0.3),
    "drfa": (numpy_drfa, 0.02),
}


@pytest.mark.parametrize("method", METHODS)
def test_rounds_equal_numpy(method):
    second, parameter = SECOND[method]
    seen = history(method, parameter)
    model = seen.models[0].astype(np.float64)
    round = second(parameter, model, seen)
    for number, members in enumerate(seen.infos.clients):
        model = round(number, model, members)
        np.testing.assert_allclose(seen.models[number + 1], model, rtol=1e-4, atol=1e-5)
    assert abs(seen.models[-1] - history(method, 0.0).models[-1]).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ("fairfed", "size"),
        ("gifair", "size"),
        ("q_fedavg", "uniform"),
        ("tilted", "size"),
        ("afl", "uniform"),
        ("drfa", "uniform"),
    ],
)
def test_the_limit_is_federated_averaging(method, weights):
    limit = history(method, 0.0)
    plain = to_history(*fedavg(weights)(limit.infos.clients))
    np.testing.assert_allclose(limit.models, plain.models, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(limit.infos.weights, plain.infos.weights, rtol=1e-5)


# --- Aggregators on their own -----------------------------------------------------------------

RNG = np.random.default_rng(0)


def alone(aggregator, sizes, clients, groups=None, updates=None, state=None, **answers):
    """Update, state and report of one round in which clients answer as told."""
    context = make_context(make_federation(sizes=sizes).train, Variables({}, {}), **answers)
    if groups is not None:
        context = context._replace(groups=jnp.array(groups, jnp.int32))
    count = len(clients)
    updates = np.ones((count, 2), np.float32) if updates is None else updates
    params = Variables({"w": jnp.asarray(updates)}, {"mean": jnp.asarray(updates)})
    results = LocalResult(params, jnp.zeros(count), jnp.ones(count, jnp.int32))
    cohort = Cohort(jnp.array(clients, jnp.int32), jnp.full(count, 1 / count))
    state = aggregator.init(context) if state is None else state
    cohort = aggregator.prepare(state, cohort, context)
    return aggregator.aggregate(state, cohort, results, context)


def test_fairfed_starves_who_is_far_from_the_average():
    accuracies = jnp.array([0.9, 0.9, 0.9, 0.1])
    _, kept, told = alone(aggregators.fairfed(1.0), [5] * 4, [0, 1, 2, 3], accuracies=accuracies)
    np.testing.assert_allclose(told.told["deviation"], [0.2, 0.2, 0.2, 0.6], rtol=1e-5)
    np.testing.assert_allclose(told.weights, [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-5)
    np.testing.assert_allclose(kept, [0.35, 0.35, 0.35, 0], rtol=1e-5)


def test_fairfed_without_any_weight_left_falls_back_on_sizes():
    kept = jnp.array([0.5, 0.0, 0.0, 0.5])
    _, after, told = alone(
        aggregators.fairfed(1.0), [5, 2, 6, 3], [1, 2, 2], state=kept, accuracies=jnp.ones(4)
    )
    np.testing.assert_allclose(told.weights, [1 / 7, 3 / 7, 3 / 7], rtol=1e-6)
    np.testing.assert_array_equal(after, kept)


def test_gifair_favours_the_group_of_higher_loss():
    _, _, told = alone(
        aggregators.gifair(0.3),  # The largest lambda is 1 / 3.
        [5] * 3,
        [0, 1, 2],
        [0, 0, 1],
        losses=jnp.array([0.5, 1.5, 2.0]),
        means=jnp.ones(3),
    )
    np.testing.assert_allclose(told.told["loss_weight"], [0.85, 0.85, 1.3], rtol=1e-6)


def test_gifair_keeps_the_losses_of_those_who_are_absent_or_diverged():
    _, losses, told = alone(
        aggregators.gifair(0.5),
        [5] * 5,
        [0, 2, 2, 3],
        [0, 0, 1, 2, 4],
        losses=jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]),
        means=jnp.array([jnp.nan, 9.0, 0.5, jnp.inf, 9.0]),
    )
    np.testing.assert_array_equal(losses, [1.5, 0.5, 4.0, np.nan, 5.0])
    assert np.isfinite(told.told["loss_weight"]).all()


def test_gifair_of_one_group_changes_nothing():
    _, _, told = alone(
        aggregators.gifair(1.0),
        [5, 2, 7],
        [0, 2, 2],
        [1, 0, 1],
        losses=jnp.array([1.0, 2.0, 3.0]),
        means=jnp.ones(3),
    )
    np.testing.assert_array_equal(told.told["loss_weight"], np.ones(3))


@cache
def gifair_factors():
    train = jax.tree.map(jnp.asarray, FEDERATION.train)

    def factors(strength, sizes, groups, levels, clients):
        context = make_context(train._replace(sizes=sizes))._replace(groups=groups)
        cohort = Cohort(clients, jnp.full(5, 0.2))
        return aggregators.gifair(strength).prepare(levels, cohort, context).loss_weights

    return jax.jit(factors)


def six(elements):
    return st.lists(elements, min_size=6, max_size=6)


@settings(deadline=None)
@given(
    strength=st.floats(0, 1, width=32),
    sizes=six(st.integers(1, 50)),
    groups=six(st.integers(0, 5)),
    # Few levels, so that some are equal.
    levels=six(st.integers(0, 4)),
    clients=st.lists(st.integers(0, 5), min_size=5, max_size=5),
)
def test_factors_of_gifair_average_to_one_and_favour_higher_losses(
    strength, sizes, groups, levels, clients
):
    factors = gifair_factors()(
        jnp.float32(strength),
        *(jnp.array(values, jnp.int32) for values in (sizes, groups)),
        jnp.array(levels, jnp.float32),
        jnp.array(clients, jnp.int32),
    )
    shares = np.array(sizes)[clients] / np.array(sizes)[clients].sum()
    np.testing.assert_allclose((shares * factors).sum(), 1, rtol=1e-5)
    assert (np.asarray(factors) >= -1e-5).all()
    own = np.array(levels)[np.array(groups)[clients]]
    assert (factors[own == own.max()] >= 1 - 1e-6).all()
    assert (factors[own == own.min()] <= 1 + 1e-6).all()


@pytest.mark.parametrize("q", [0.5, 3.0, 300.0])
def test_q_fedavg_is_its_formula_for_any_power(q):
    losses = np.array([3.0, 0.25, 2.5, 1.0])
    updates = RNG.normal(size=(3, 2)).astype(np.float32)
    update, _, told = alone(
        aggregators.q_fedavg(q, 0.1), [5] * 4, [2, 0, 3], updates=updates, losses=jnp.array(losses)
    )
    f, slopes = losses[[2, 0, 3]], -updates.astype(np.float64) / 0.1
    below = (q * f ** (q - 1) * (slopes**2).sum(axis=1) + f**q / 0.1).sum()
    # The logarithm of a loss is rounded to 1e-7 and then multiplied by q.
    close = {"rtol": 1e-5 + 3e-7 * q}
    np.testing.assert_allclose(update.params["w"], -(f**q @ slopes) / below, **close)
    np.testing.assert_allclose(told.weights, f**q / (f**q).sum(), **close, atol=1e-30)
    np.testing.assert_allclose(update.state["mean"], told.weights @ updates, rtol=1e-5)


@pytest.mark.parametrize("t", [-2.0, 0.7])
@pytest.mark.parametrize("weights", ["uniform", "size", "cohort"])
def test_tilted_weights(t, weights):
    losses, sizes = np.array([3.0, 0.25, 2.5, 1.0]), np.array([5, 1, 2, 8])
    _, _, told = alone(aggregators.tilted(t, weights), sizes, [2, 0, 3], losses=jnp.array(losses))
    members = [2, 0, 3]
    raw = np.exp(t * losses[members]) * (sizes[members] if weights == "size" else 1)
    np.testing.assert_allclose(told.weights, raw / raw.sum(), rtol=1e-5)


@pytest.mark.parametrize(("t", "chosen"), [(1e4, 0), (-1e4, 1)])
def test_a_large_tilt_sees_one_client_only(t, chosen):
    losses = jnp.array([3.0, 0.25, 2.5])
    _, _, told = alone(aggregators.tilted(t), [5] * 3, [0, 1, 2], losses=losses)
    np.testing.assert_array_equal(told.weights, np.eye(3)[chosen])


# --- Bad input --------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: aggregators.fairfed(-1.0), "beta=-1.0"),
        (lambda: aggregators.gifair(1.5), r"strength=1.5: expected a number in \[0, 1\]"),
        (lambda: aggregators.gifair(-0.5), "strength=-0.5"),
        (lambda: aggregators.q_fedavg(-1.0, 0.1), "q=-1.0"),
        (lambda: aggregators.q_fedavg(1.0, 0.0), "learning_rate=0.0"),
        (lambda: aggregators.tilted(float("inf")), "t=inf"),
        (lambda: aggregators.tilted(1.0, "equal"), "weights='equal'"),
        (lambda: selectors.agnostic(-0.1), "step=-0.1"),
        (lambda: selectors.agnostic(0.1, cohort_size=3), "cohort_size=3 and local_steps=None"),
        (lambda: selectors.agnostic(0.1, local_steps=3), "cohort_size=None and local_steps=3"),
        (lambda: selectors.agnostic(0.1, 0, 3), "cohort_size=0"),
        (lambda: selectors.agnostic(0.1, 3, 0), "local_steps=0"),
    ],
)
def test_bad_settings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_federations_are_named():
    context = make_context(FEDERATION.train)
    with pytest.raises(ValueError, match="groups=None: expected a federation with planted groups"):
        aggregators.gifair().init(context)
    with pytest.raises(ValueError, match=r"cohort_size=7: expected an integer >= 1 and <= 6"):
        selectors.agnostic(0.1, 7, 3).init(context)
