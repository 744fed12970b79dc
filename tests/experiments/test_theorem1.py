"""The problem of Theorem 1: its smoothness, its algorithm, and the bound."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

from experiments import theorem1
from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.rounds.round import Round, run


def clients(data):
    """Features and labels of each client."""
    shape = theorem1.CLIENTS, theorem1.EXAMPLES
    return data.train.features.reshape(*shape, -1), data.train.labels.reshape(shape)


def loss(weights, features, labels):
    logits, _ = theorem1.bounded_score().apply(
        {"head": weights}, {}, features, train=True, key=None
    )
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def test_no_curvature_exceeds_the_smoothness_and_the_problem_is_not_convex():
    data, smoothness = theorem1.make_data(0)
    points = 2 * np.random.default_rng(0).normal(size=(50, theorem1.WIDTH)).astype(np.float32)
    of_points = jax.vmap(jax.hessian(loss), (0, None, None))
    hessians = jax.jit(jax.vmap(of_points, (None, 0, 0)))(points, *clients(data))
    values = np.linalg.eigvalsh(np.asarray(hessians))
    assert 0.05 * smoothness < values.max() <= smoothness
    assert values.min() < -1e-3


def test_with_whole_batches_it_is_the_federation_of_the_library():
    data, smoothness = theorem1.make_data(1)
    rounds = 9
    selector = selectors.UnionFL(5, 1.0, 2, candidates="all")
    key = jax.random.key(0)
    follow = partial(theorem1.follow, selector, data, smoothness, rounds, batch=None)
    weights, trace = jax.jit(follow)(key)
    model = theorem1.bounded_score()
    rate = 1 / (smoothness * theorem1.STEPS * np.sqrt(rounds))
    solver = solvers.SGD(rate, theorem1.EXAMPLES, steps=theorem1.STEPS)
    round = Round(model, selector, solver, aggregators.Mean())

    @jax.jit
    def train(key):
        start = model.init(jax.random.split(key)[0], data.train.features[:1])
        # Neither batches nor candidates are random, so that all keys do the same.
        state = round.init(jax.random.key(7), data)._replace(variables=start)
        losses = jax.vmap(loss, (None, 0, 0))(start.params["head"], *clients(data))
        return run(round, state, data, rounds)[0].variables.params["head"], losses

    expected, losses = train(key)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert (np.asarray(trace.noise) == 0).all()
    np.testing.assert_allclose(trace.loss[0], np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize(("rounds", "names"), [(9, theorem1.SELECTORS), (36, ["subtrunc"])])
def test_the_bound_holds(rounds, names, monkeypatch):
    monkeypatch.setattr(theorem1, "SELECTORS", {name: theorem1.SELECTORS[name] for name in names})
    table = theorem1.measure([rounds], seeds=4)
    assert (table["left"] <= table["right"]).all()
    assert (table["left"] > 0).all()
    np.testing.assert_allclose(table["right"], table[["start", "noise", "bias"]].sum(axis=1))
