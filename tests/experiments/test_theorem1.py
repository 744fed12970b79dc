"""The problem of Theorem 1: its smoothness, its algorithm, and the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import theorem1
from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.simulate import Round, run


def client_loss(data, client):
    rows = slice(client * theorem1.EXAMPLES, (client + 1) * theorem1.EXAMPLES)
    features, labels = data.train.features[rows], data.train.labels[rows]

    def loss(weights):
        logits, _ = theorem1.bounded_score().apply(
            {"head": weights}, {}, features, train=True, key=None
        )
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


def test_no_curvature_exceeds_the_smoothness_and_the_problem_is_not_convex():
    data, smoothness = theorem1.make_data(0)
    points = 2 * np.random.default_rng(0).normal(size=(50, theorem1.WIDTH)).astype(np.float32)
    largest, smallest = 0.0, 0.0
    for client in range(0, theorem1.CLIENTS, 4):
        hessians = jax.jit(jax.vmap(jax.hessian(client_loss(data, client))))(points)
        values = np.linalg.eigvalsh(np.asarray(hessians))
        largest, smallest = max(largest, values.max()), min(smallest, values.min())
    assert 0.05 * smoothness < largest <= smoothness
    assert smallest < -1e-3


def test_with_whole_batches_it_is_the_federation_of_the_library():
    data, smoothness = theorem1.make_data(1)
    rounds = 9
    selector = selectors.UnionFL(5, 1.0, 2, candidates="all")
    key = jax.random.key(0)
    weights, trace = theorem1.follow(selector, data, smoothness, rounds, key, batch=None)
    model = theorem1.bounded_score()
    rate = 1 / (smoothness * theorem1.STEPS * np.sqrt(rounds))
    solver = solvers.SGD(rate, theorem1.EXAMPLES, steps=theorem1.STEPS)
    round = Round(model, selector, solver, aggregators.Mean())
    start = model.init(jax.random.split(key)[0], data.train.features[:1])
    state = round.init(jax.random.key(7), data)._replace(variables=start)
    # Neither batches nor candidates are random, so that all keys do the same.
    end, _ = jax.jit(lambda state: run(round, state, data, rounds))(state)
    np.testing.assert_allclose(weights, end.variables.params["head"], rtol=1e-4, atol=1e-5)
    assert (trace.noise == 0).all()
    losses = [jax.jit(client_loss(data, client))(start.params["head"]) for client in range(20)]
    np.testing.assert_allclose(trace.loss[0], jnp.mean(jnp.stack(losses)), rtol=1e-5)


def test_the_bound_holds():
    table = theorem1.measure([9, 36], seeds=4)
    assert (table["left"] <= table["right"]).all()
    assert (table["left"] > 0).all()
    np.testing.assert_allclose(table["right"], table[["start", "noise", "bias"]].sum(axis=1))
