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
from conftest import linear_model, make_federation, nearest_mixture

from fedjax_fair import aggregators, faults, selectors, solvers
from fedjax_fair.roles import Aggregator, Cohort, Selector
from fedjax_fair.rounds.round import Round

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

    return Selector.from_functions(select)


class WithSnapshotStep(Aggregator):
    """The mean, which says after how many steps participants took their snapshot."""

    mean: aggregators.Mean

    def compute_weights(self, state, cohort, context):
        return self.mean.compute_weights(state, cohort, context)

    def aggregate(self, state, cohort, results, context):
        update, state, aggregation = self.mean.aggregate(state, cohort, results, context)
        step = cohort.instructions["snapshot_step"][0]
        return update, state, aggregation._replace(info={"snapshot_step": step})


METHODS = {
    "fairfed": lambda beta: (scheduled(COHORTS), aggregators.FairFed(beta)),
    "gifair": lambda strength: (scheduled(COHORTS), aggregators.GIFAIR(strength)),
    "q_fedavg": lambda q: (scheduled(COHORTS), aggregators.QFedAvg(q, learning_rate=RATE)),
    "tilted": lambda t: (scheduled(COHORTS), aggregators.Tilted(t)),
    "afl": lambda step: (selectors.Agnostic(step), aggregators.Mean("selector")),
    "drfa": lambda step: (
        selectors.DRFA(step, cohort_size=4, local_steps=STEPS),
        WithSnapshotStep(aggregators.Mean("uniform")),
    ),
}


class History(NamedTuple):
    models: np.ndarray  # [rounds + 1, width + 1, classes], the bias last
    states: Any
    infos: Any


LOST = (faults.Dropout(0.25), faults.Byzantine([1], "nan"))
"""Lost updates, and updates of a client that are not finite."""


def record(selector, aggregator, lost=()):
    # Batches that hold all of a client's examples leave no randomness to training.
    solver = solvers.SGD(RATE, int(SIZES.max()), steps=STEPS)
    round = Round(linear_model(), selector, solver, aggregator, faults=lost)

    def step(state, _):
        after, info = round.step(state, FEDERATION, drop_nonfinite=bool(lost))
        return after, (after._replace(key=None), info)

    begin = round.init(jax.random.key(3), FEDERATION)
    _, (states, infos) = jax.lax.scan(step, begin, length=len(COHORTS))
    return begin.variables.params, states, infos


@cache
def compiled(method, lost=()):
    return jax.jit(lambda parameter: record(*METHODS[method](parameter), lost=lost))


def to_history(begin, states, infos):
    params = jax.tree.map(lambda a, b: np.stack([a, *b]), begin, states.variables.params)
    models = np.concatenate([params["kernel"], params["bias"][:, None]], axis=1)
    return History(models, *jax.tree.map(np.asarray, (states, infos)))


def history(method, parameter, lost=()):
    return to_history(*compiled(method, lost)(jnp.float32(parameter)))


@cache
def fedavg(weights):
    return jax.jit(lambda cohorts: record(scheduled(cohorts), aggregators.Mean(weights)))


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

    def round(number, model, cohort, responded):
        participants = cohort[responded]
        accuracies = np.array([accuracy(model, k) for k in participants])
        gaps = abs(accuracies - np.average(accuracies, weights=SIZES[participants]))
        moved = {
            k: kept[k] - beta * (gap - gaps.mean())
            for k, gap in zip(participants, gaps, strict=True)
        }
        kept.update({k: max(0, weight) for k, weight in moved.items()})
        weights = [kept[k] for k in participants]
        return np.average([trained(model, k) for k in participants], axis=0, weights=weights)

    return round


def numpy_gifair(strength, begin, seen):
    level = {g: np.mean([loss(begin, k) for k in CLIENTS if GROUPS[k] == g]) for g in set(GROUPS)}

    def round(number, model, cohort, responded):
        # The server sends the factors before it knows who responds.
        share = SIZES[cohort] / SIZES[cohort].sum()
        group = GROUPS[cohort]
        ahead = [sum(np.sign(level[g] - level[h]) for h in set(group)) for g in group]
        mass = share * [(group == g).sum() for g in group]
        limit = min(mass) / (len(set(group)) - 1) if len(set(group)) > 1 else 0
        factors = 1 + strength * limit * np.array(ahead) / mass
        models = [trained(model, k, factor=f) for k, f in zip(cohort, factors, strict=True)]
        for g in set(group[responded]):
            places = np.flatnonzero((group == g) & responded)
            level[g] = np.mean([loss(models[i], cohort[i]) for i in places])
        return np.average(models, axis=0, weights=share * responded)

    return round


def numpy_q_fedavg(q, begin, seen):
    def round(number, model, cohort, responded):
        participants = cohort[responded]
        f = np.array([loss(model, k) + 1e-10 for k in participants])
        slopes = np.array([(model - trained(model, k)) / RATE for k in participants])
        squared = (slopes**2).sum(axis=(1, 2))
        total = (f[:, None, None] ** q * slopes).sum(axis=0)
        return model - total / (q * f ** (q - 1) * squared + f**q / RATE).sum()

    return round


def numpy_tilted(t, begin, seen):
    def round(number, model, cohort, responded):
        participants = cohort[responded]
        weights = [SIZES[k] * np.exp(t * loss(model, k)) for k in participants]
        return np.average([trained(model, k) for k in participants], axis=0, weights=weights)

    return round


def numpy_afl(step, begin, seen):
    mixture = np.full(len(SIZES), 1 / len(SIZES))

    def round(number, model, cohort, responded):
        participants = cohort[responded]
        mixture[:] = nearest_mixture(mixture + step * np.array([loss(model, k) for k in CLIENTS]))
        weights = mixture[participants]
        return np.average([trained(model, k) for k in participants], axis=0, weights=weights)

    return round


def numpy_drfa(step, begin, seen):
    mixture = np.full(len(SIZES), 1 / len(SIZES))

    def round(number, model, cohort, responded):
        participants = cohort[responded]
        steps = seen.infos.aggregator["snapshot_step"][number]
        between = np.mean([trained(model, k, steps) for k in participants], axis=0)
        reported = np.zeros(len(SIZES))
        for k in seen.states.selector.reporting[number]:
            reported[k] = len(SIZES) / len(cohort) * loss(between, k)
        mixture[:] = nearest_mixture(mixture + step * STEPS * reported)
        np.testing.assert_allclose(seen.states.selector.mixture[number], mixture, atol=1e-5)
        return np.mean([trained(model, k) for k in participants], axis=0)

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


def assert_equals_numpy(method, seen):
    second, parameter = SECOND[method]
    model = seen.models[0].astype(np.float64)
    round = second(parameter, model, seen)
    for number, (cohort, responded) in enumerate(
        zip(seen.infos.clients, seen.infos.responded, strict=True)
    ):
        model = round(number, model, cohort, responded)
        np.testing.assert_allclose(seen.models[number + 1], model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_rounds_equal_numpy(method):
    seen = history(method, SECOND[method][1])
    assert seen.infos.responded.all()
    assert_equals_numpy(method, seen)
    assert abs(seen.models[-1] - history(method, 0.0).models[-1]).max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_rounds_with_lost_and_nonfinite_updates_equal_numpy(method):
    seen = history(method, SECOND[method][1], LOST)
    clients, responded = seen.infos.clients, seen.infos.responded
    # Rounds lose some updates for either reason, but not all.
    assert (clients == 1).any() & (~responded & (clients != 1)).any()
    assert not responded[clients == 1].any()
    assert responded.any(axis=1).all()
    assert_equals_numpy(method, seen)


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ("fairfed", "num_examples"),
        ("gifair", "num_examples"),
        ("q_fedavg", "uniform"),
        ("tilted", "num_examples"),
        ("afl", "uniform"),
        ("drfa", "uniform"),
    ],
)
def test_the_limit_is_federated_averaging(method, weights):
    limit = history(method, 0.0)
    plain = to_history(*fedavg(weights)(limit.infos.clients))
    np.testing.assert_allclose(limit.models, plain.models, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(limit.infos.weights, plain.infos.weights, rtol=1e-5)
