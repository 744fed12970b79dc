"""Averages against NumPy."""

import conftest
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation

from fedjax_fair import aggregators
from fedjax_fair.roles import Cohort, LocalResult, Variables

SIZES = np.array([10, 20, 30, 40])
COHORT = Cohort(jnp.array([2, 0, 2]), jnp.array([0.5, 0.2, 0.3]))
UPDATES = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
STATISTICS = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
MODEL = Variables({"w": jnp.ones((4, 2))}, {"mean": jnp.zeros(5)})


def aggregate(aggregator, state=None):
    results = LocalResult(
        Variables({"w": jnp.asarray(UPDATES)}, {"mean": jnp.asarray(STATISTICS)}),
        jnp.zeros(3),
        jnp.ones(3, jnp.int32),
    )
    context = make_context(make_federation(sizes=SIZES).train, MODEL)
    state = aggregator.init(context) if state is None else state
    return conftest.aggregate(aggregator, state, COHORT, results, context)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("uniform", [1 / 3, 1 / 3, 1 / 3]),
        ("num_examples", [30 / 70, 10 / 70, 30 / 70]),
        ("selector", [0.5, 0.2, 0.3]),
    ],
)
def test_weights_of_the_mean(weights, expected):
    update, _, info = aggregate(aggregators.Mean(weights))
    np.testing.assert_allclose(info.weights, expected, rtol=1e-6)
    np.testing.assert_allclose(
        update.params["w"], np.tensordot(expected, UPDATES, 1), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        update.state["mean"], np.tensordot(expected, STATISTICS, 1), rtol=1e-5, atol=1e-6
    )
