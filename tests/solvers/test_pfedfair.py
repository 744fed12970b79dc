"""PFedFair: the worked example, FedAvg and a penalty as limits, and personalized models."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from people_federation import make_people

from fedjax_fair import aggregators, models, selectors, solvers
from fedjax_fair.roles import Variables
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.solvers.sgd import BatchGradient

SGD = solvers.SGD(0.2, 8, steps=4)
DATA = make_people(sizes=(20, 30, 25)).map_parts(lambda part: jax.tree.map(jnp.asarray, part))


def test_the_worked_example():
    """Of quadratics with minima at 1 and 3, in 50 inner steps."""

    def gradient_at(slope):
        def gradient(variables):
            w = variables.params["w"]
            return BatchGradient({"w": slope(w)}, jnp.sum(w), {})

        return gradient

    solver = solvers.PFedFair(
        SGD, 1.0, 0.5, personal_prox=2.0, inner_learning_rate=0.2, inner_steps=50
    )
    found, fair = solver.combined_gradient(
        gradient_at(lambda w: w - 1),
        gradient_at(lambda w: (w - 1) + (w - 3)),
        Variables({"w": jnp.zeros(1)}, {}),
    )
    np.testing.assert_allclose(fair["w"], [1], rtol=1e-5)
    np.testing.assert_allclose(found.gradient["w"], [-1 + 0.5 * -2], rtol=1e-5)
    np.testing.assert_allclose(0 - 0.1 * found.gradient["w"], [0.2], rtol=1e-5)


@cache
def trained(solver):
    """Returns the global model after two rounds, and the personalized models."""
    round = Round(models.logistic(2), selectors.Uniform(2), solver, aggregators.Mean())

    @jax.jit
    def train(key):
        state, _ = run(round, round.init(key, DATA), DATA, 2)
        if not round.is_personalized:
            return state.variables.params, None
        clients = jnp.arange(3, dtype=jnp.int32)
        return state.variables.params, jax.vmap(round.personalize(state, DATA))(clients).params

    return jax.device_get(train(jax.random.key(0)))


def assert_close(actual, expected, rtol=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), actual, expected
    )


def test_without_the_envelope_the_global_model_is_fedavg():
    fedavg, _ = trained(SGD)
    for weight in (0.0, jnp.float32(0)):
        found, fair = trained(solvers.PFedFair(SGD, 2.0, weight))
        assert_close(found, fedavg)
    # The personalized models are not: the penalty moves them from the trained model.
    _, plain = trained(solvers.PFedFair(SGD, 0.0, 0.0))
    assert not np.allclose(fair["head"]["kernel"], plain["head"]["kernel"])


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity"])
def test_one_inner_step_of_length_one_over_the_prox_is_a_penalty(criterion):
    """The gradient is that of (1 + lambda) L + lambda eta rho."""
    weight, strength, prox = 0.5, 3.0, 8.0
    solver = solvers.PFedFair(
        SGD,
        strength,
        weight,
        personal_prox=prox,
        inner_learning_rate=1 / prox,
        inner_steps=1,
        criterion=criterion,
    )
    scaled = solvers.SGD(0.2 * (1 + weight), 8, steps=4)
    penalty = solvers.GroupPenalty(scaled, weight * strength / (1 + weight), criterion)
    found, _ = trained(solver)
    assert_close(found, trained(penalty)[0], rtol=1e-4)
    assert not np.allclose(found["head"]["kernel"], trained(scaled)[0]["head"]["kernel"])


def test_a_strong_proximal_term_keeps_personalized_models_at_the_trained_one():
    solver = solvers.PFedFair(SGD, 1.0, 0.0, personal_prox=1e4, inner_learning_rate=1e-4)
    _, near = trained(solver)
    _, still = trained(solvers.PFedFair(SGD, 1.0, 0.0, inner_learning_rate=0.0))
    _, far = trained(solvers.PFedFair(SGD, 1.0, 0.0))
    distance = lambda one: np.abs(one["head"]["kernel"] - still["head"]["kernel"]).max()  # noqa: E731
    assert 0 < distance(near) < 0.01 * distance(far)


def test_each_local_step_counts_its_inner_steps():
    sizes = jnp.array([20, 30])
    counts = solvers.PFedFair(SGD, inner_steps=3).num_examples(sizes)
    np.testing.assert_array_equal(counts, 4 * SGD.num_examples(sizes))
