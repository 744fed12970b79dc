"""LossGap: the worked example, the limits, and lowest losses that are minima."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, linear_model, make_context, make_federation
from scipy.optimize import minimize
from scipy.special import logsumexp

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.evaluation.client_optima import client_optimum
from fedjax_fair.roles import Variables
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.fit import fit

SIZES = (5, 3, 2)
LOSSES = np.array([1.0, 0.8, 2.0], np.float32)
OPTIMAL = np.array([0.4, 0.5, 0.9], np.float32)
SHARES = np.array([0.5, 0.3, 0.2])
SLOPES = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
CONTEXT = make_context(
    make_federation(sizes=SIZES).train,
    Variables({"w": jnp.zeros(4)}, {}),
    losses=jnp.asarray(LOSSES),
)


def combine(strength, optimal=OPTIMAL, responded=None, **options):
    """Returns the update and the aggregation of a cohort of all clients."""
    aggregator = aggregators.LossGap(jnp.float32(strength), optimal_losses=optimal, **options)
    return aggregate_with(aggregator, responded)


def aggregate_with(aggregator, responded=None):
    state = aggregator.init(CONTEXT)
    update, after, aggregation = aggregate_rows(
        aggregator, SLOPES, range(3), CONTEXT, state, responded
    )
    jax.tree.map(np.testing.assert_array_equal, state, after)
    return update, aggregation


@pytest.mark.parametrize(
    ("strength", "expected"),
    [
        (1.0, [0.495, 0.207, 0.298]),
        (2.0, [0.49, 0.114, 0.396]),
        (5.0, [0.475, -0.165, 0.69]),
    ],
)
def test_weights_of_the_worked_example(strength, expected):
    update, aggregation = combine(strength, clip=False)
    np.testing.assert_allclose(aggregation.weights, expected, rtol=2e-6)
    np.testing.assert_allclose(update, expected @ SLOPES, rtol=1e-5)
    np.testing.assert_allclose(aggregation.info["loss_gap"], [0.6, 0.3, 1.1], rtol=1e-6)
    np.testing.assert_allclose(aggregation.info["mean_gap"], 0.61, rtol=1e-6)
    assert aggregation.info["reference_error"] == 0
    clipped = np.maximum(expected, 0) / np.maximum(expected, 0).sum()
    np.testing.assert_allclose(combine(strength)[1].weights, clipped, rtol=2e-6)


def test_weights_are_the_gradient_of_the_penalized_loss():
    """By central differences of the objective in the losses, in float64."""
    strength = 2.0

    def objective(losses):
        gaps = losses - np.float64(OPTIMAL)
        mean = SHARES @ gaps
        return SHARES @ losses + strength / 2 * SHARES @ (gaps - mean) ** 2

    steps = 1e-5 * np.eye(3)
    losses = np.float64(LOSSES)
    slopes = [(objective(losses + step) - objective(losses - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(combine(strength)[1].weights, slopes, rtol=1e-5)


def test_limits_are_the_mean_by_size_and_tilted_losses():
    mean, of_mean = aggregate_with(aggregators.Mean("num_examples"))
    for update, aggregation in (combine(0.0), combine(3.0, LOSSES - 0.25)):
        np.testing.assert_array_equal(aggregation.weights, of_mean.weights)
        np.testing.assert_array_equal(update, mean)
    plain, shifted = combine(2.0)[1], combine(2.0, OPTIMAL + 4)[1]
    np.testing.assert_allclose(shifted.weights, plain.weights, rtol=1e-5)
    assert not np.allclose(plain.weights, SHARES)
    tilt = 1e-3
    tilted = SHARES * np.exp(tilt * LOSSES) / (SHARES @ np.exp(tilt * LOSSES))
    np.testing.assert_allclose(combine(tilt, np.zeros(3))[1].weights, tilted, atol=2e-7)


def test_shares_and_the_mean_gap_are_of_responding_clients():
    _, some = combine(1.0, responded=np.array([True, False, True]))
    shares, gaps = np.array([5, 2]) / 7, np.array([0.6, 1.1])
    expected = shares * (1 + gaps - shares @ gaps)
    np.testing.assert_allclose(some.weights, [expected[0], 0, expected[1]], rtol=1e-5)
    np.testing.assert_allclose(some.info["mean_gap"], shares @ gaps, rtol=1e-6)
    uniform = combine(1.0, weights="uniform")[1]
    gaps = np.array([0.6, 0.3, 1.1])
    np.testing.assert_allclose(uniform.weights, (1 + gaps - gaps.mean()) / 3, rtol=1e-5)


def test_the_reference_error_is_of_responding_clients():
    aggregator = aggregators.LossGap(optimal_losses=OPTIMAL)
    state = aggregator.init(CONTEXT)._replace(error=jnp.array([0.3, 9.0, 0.1]))
    responded = np.array([True, False, True])
    _, _, aggregation = aggregate_rows(aggregator, SLOPES, range(3), CONTEXT, state, responded)
    expected = np.std([0.3, 0.1]) / np.std([0.6, 1.1])
    np.testing.assert_allclose(aggregation.info["reference_error"], expected, rtol=1e-5)


def test_lowest_losses_are_those_of_scipy():
    """With random labels, which no linear model separates."""
    data = make_federation(sizes=(40, 25))
    noisy = np.random.default_rng(1).integers(0, 3, 65).astype(np.int32)
    data = data._replace(train=data.train._replace(labels=noisy))
    model = linear_model()
    variables = model.init(jax.random.key(0), data.train.features[:1])
    train = jax.tree.map(jnp.asarray, data.train)
    measure = jax.jit(client_optimum, static_argnums=(0, 4))
    for client in range(2):
        found = measure(model, variables, train, jnp.int32(client), 100)
        start = data.train.offsets[client]
        own = data.train.order[start : start + data.train.sizes[client]]
        features, labels = np.float64(data.train.features[own]), noisy[own]

        def loss(flat, features=features, labels=labels):
            scores = features @ flat[:12].reshape(4, 3) + flat[12:]
            return np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(labels)), labels])

        expected = minimize(loss, np.zeros(15), tol=1e-10).fun
        np.testing.assert_allclose(found.loss, expected, rtol=1e-6)
        assert abs(found.error) < 1e-6
        early = measure(model, variables, train, jnp.int32(client), 2)
        once = measure(model, variables, train, jnp.int32(client), 4)
        assert early.loss > once.loss > found.loss + 1e-4
        np.testing.assert_allclose(once.error, early.loss - once.loss, rtol=1e-4)


def test_measured_losses_are_at_most_those_of_the_model():
    """A gap to a minimum is not negative, also after training."""
    data = make_federation(sizes=(20, 30, 10))
    round = Round(
        linear_model(), selectors.Full(), solvers.SGD(0.3, 5, epochs=4), aggregators.LossGap(2.0)
    )
    dataset = fit(round, data, rounds=5).dataset
    gaps = dataset.aggregation_loss_gap.values
    assert (gaps > 0).all()
    assert gaps.shape == (1, 5, 3)
    assert (dataset.aggregation_reference_error < 0.1).all()


def test_inaccurate_losses_are_warned_of():
    data = make_federation(sizes=(20, 30, 10))
    round = Round(
        linear_model(),
        selectors.Full(),
        solvers.SGD(0.1, 5, epochs=1),
        aggregators.LossGap(iterations=2),
    )
    with pytest.warns(UserWarning, match="seed 1: the lowest losses .* iterations of LossGap"):
        fit(round, data, rounds=1, seeds=(1,))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: aggregators.LossGap(iterations=3), "iterations=3.*even number, such as 4"),
        (lambda: aggregators.LossGap(optimal_losses=[1.0, np.nan]), "optimal_losses=.*nan"),
        (
            lambda: aggregators.LossGap(optimal_losses=[1.0, 2.0]).init(CONTEXT),
            r"optimal_losses of shape \(2,\): expected \(3,\)",
        ),
    ],
)
def test_bad_settings_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()
