"""PropFair: its slope, a second implementation in NumPy, and its limit."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_federation

from fedjax_fair import solvers
from fedjax_fair.roles import Client

FEDERATION = make_federation()
DATA = jax.tree.map(jnp.asarray, FEDERATION)
START = linear_model().init(jax.random.key(7), DATA.train.features[:1])


@cache
def compiled():
    @jax.jit
    def solve(solver, index):
        train = DATA.train
        client = Client(
            linear_model(), train, train.offsets[index], train.sizes[index], jnp.int32(0), {}, index
        )
        return solver.solve(jax.random.key(0), START, client)

    return solve


def solve(solver, index=1):
    return jax.device_get(compiled()(solver, jnp.int32(index)))


def numpy_solve(index, steps, rate, baseline, threshold):
    """Full-batch descent with the slope of the transformed mean loss."""
    train = FEDERATION.train
    rows = train.order[train.offsets[index] :][: train.sizes[index]]
    x, y = np.float64(train.features[rows]), np.eye(3)[train.labels[rows]]
    params = {name: np.float64(value) for name, value in START.params.items()}
    slopes = []
    for _ in range(steps):
        logits = x @ params["kernel"] + params["bias"]
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        utility = baseline + np.log((chances * y).sum(axis=1)).mean()
        slopes.append(1 / utility if utility >= threshold else 1 / threshold)
        params["kernel"] = params["kernel"] - rate * slopes[-1] * x.T @ (chances - y) / len(x)
        params["bias"] = params["bias"] - rate * slopes[-1] * (chances - y).mean(axis=0)
    return {name: params[name] - START.params[name] for name in params}, slopes


# Losses fall from 1.1 to less than 0.6: on the logarithm, on the linear part, and over the kink.
@pytest.mark.parametrize(
    ("baseline", "threshold", "linear"), [(2.0, 0.2, 0), (1.0, 0.7, 5), (1.2, 0.3, 2)]
)
def test_equals_numpy(baseline, threshold, linear):
    sgd = solvers.SGD(0.1, 100, steps=5)
    solver = solvers.PropFair(sgd, jnp.float32(baseline), jnp.float32(threshold))
    expected, slopes = numpy_solve(2, 5, 0.1, baseline, threshold)
    assert slopes.count(1 / threshold) == linear
    chex.assert_trees_all_close(solve(solver, 2).update.params, expected, rtol=1e-4, atol=1e-6)


def test_a_large_baseline_is_fedavg():
    """At a learning rate proportional to the baseline, also with padded minibatches."""
    sgd = solvers.SGD(jnp.float32(0.1), 4, epochs=2)
    fair = solvers.PropFair(sgd.replace(learning_rate=jnp.float32(1e5)), jnp.float32(1e6))
    for index in (0, 5):
        expected, actual = solve(sgd, index), solve(fair, index)
        chex.assert_trees_all_close(actual.update, expected.update, rtol=1e-3, atol=1e-5)
        # Reported is the loss itself.
        np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-4)
