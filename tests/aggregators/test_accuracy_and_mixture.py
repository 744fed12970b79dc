"""FedFA and AAggFF: their identities, and references in NumPy and SciPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context, make_federation
from scipy import stats
from scipy.optimize import minimize

from fedjax_fair import aggregators
from fedjax_fair.roles import Variables

NUM_CLIENTS = 6
TRAIN = make_federation().train
CDFS = {
    "weibull": stats.weibull_min(2).cdf,
    "exponential": stats.expon.cdf,
    "frechet": stats.invweibull(1).cdf,
    "normal": stats.norm(1).cdf,
    "gumbel": stats.gumbel_r(1).cdf,
    "logistic": stats.logistic(1).cdf,
}
VARIABLES = Variables({"w": jnp.zeros(2)}, {})


def context_of(round=0, **measurements):
    arrays = {name: jnp.asarray(value, jnp.float32) for name, value in measurements.items()}
    return make_context(TRAIN, VARIABLES, round=round, **arrays)


def combine(aggregator, clients, *context, **given):
    """Returns the weights, the state and the info, and checks the mean."""
    rows = np.random.default_rng(0).normal(size=(len(clients), 2))
    update, state, aggregation = aggregate_rows(aggregator, rows, clients, *context, **given)
    weights = np.asarray(aggregation.weights)
    assert (weights >= 0).all()
    np.testing.assert_allclose(update, weights @ np.float32(rows), rtol=1e-4, atol=1e-6)
    return weights, state, aggregation.info


# --- FedFA ------------------------------------------------------------------------------------


def numpy_fedfa(beta, accuracy, counts):
    def information(shares):
        values = np.maximum(-np.log2(shares + 1e-6), 0)
        return values / values.sum()

    by_accuracy = information(np.float64(accuracy) / np.sum(accuracy))
    return (1 - beta) * by_accuracy + beta * information(1 - np.float64(counts) / np.sum(counts))


def context_after(clients, accuracy):
    """A context with the accuracies of trained models."""
    measured = np.zeros(NUM_CLIENTS, np.float32)
    measured[clients] = accuracy
    return make_context(TRAIN, VARIABLES, client_means=(jnp.asarray(measured), None))


def fedfa(beta):
    return aggregators.FedFA(jnp.float32(beta))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_fedfa_equals_numpy(beta):
    accuracy, before = np.array([0.9, 0.25, 0.6, 0.0]), np.array([3, 0, 1, 0, 5, 2])
    clients = [4, 0, 3, 1]
    measured = context_after(clients, accuracy)
    weights, counts, info = combine(fedfa(beta), clients, measured, jnp.asarray(before))
    expected = numpy_fedfa(beta, accuracy, before[clients] + 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert counts.tolist() == [4, 1, 1, 1, 6, 2]
    assert info["responses"].tolist() == [6, 4, 1, 1]
    if beta == 0:  # Low accuracy has a larger weight,
        assert (np.diff(weights[np.argsort(accuracy)]) < 0).all()
    if beta == 1:  # and so have many responses.
        assert (np.diff(weights[[2, 1, 0]]) > 0).all()


@pytest.mark.parametrize("accuracy", [0.0, 0.7, 1.0])
def test_equal_clients_of_fedfa_give_fedavg(accuracy):
    for count in (1, 4):
        clients = [4, 0, 3, 1][:count]
        weights, _, _ = combine(fedfa(0.4), clients, context_after(clients, accuracy))
        np.testing.assert_allclose(weights, 1 / count, rtol=1e-5)


def test_fedfa_counts_responses():
    accuracy, answered = np.array([0.9, 0.2, 0.6]), np.array([True, False, True])
    weights, counts, _ = combine(
        fedfa(0.5), [4, 0, 3], context_after([4, 0, 3], accuracy), responded=answered
    )
    assert counts.tolist() == [0, 0, 0, 1, 1, 0]
    assert weights[1] == 0
    expected = numpy_fedfa(0.5, accuracy[answered], np.ones(2))
    np.testing.assert_allclose(weights[answered], expected, rtol=1e-5)
    # A participant with all of the accuracy has no negative weight.
    alone = context_after([4, 0, 3], [1.0, 0.0, 0.0])
    weights, _, _ = combine(fedfa(0.0), [4, 0, 3], alone)
    np.testing.assert_allclose(weights, [0, 0.5, 0.5], atol=1e-6)


# --- AAggFF -----------------------------------------------------------------------------------

LOSSES = np.array([2.0, 0.5, 1.2, 0.1, 3.0, 0.9])


def numpy_devices(gradient, losses, clients, round, cdf):
    share = len(clients) / NUM_CLIENTS
    response = share * CDFS[cdf](losses[clients] / losses[clients].mean())
    mean = response.mean()
    estimate = np.full(NUM_CLIENTS, mean)
    estimate[clients] += (response - mean) / share
    mixture = np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)
    if gradient is not None:  # The complete gradient, of which a term is equal for all clients.
        gradient, mixture = gradient
    else:
        gradient = np.zeros(NUM_CLIENTS)
    common = mean * (mixture @ (estimate - mean)) / (1 + mean) ** 2
    gradient = gradient - estimate / (1 + mean) + common
    rate = np.sqrt(np.log(NUM_CLIENTS)) / ((2 + share) * np.sqrt(round + 2))
    raw = np.exp(-rate * gradient)
    return gradient, raw / raw.sum()


@pytest.mark.parametrize("cdf", CDFS)
def test_devices_equal_numpy(cdf):
    aggregator, state, reference = aggregators.AAggFF("device", cdf), None, None
    for number, clients in enumerate([[4, 0, 1], [2, 3, 4], [5, 1, 0]]):
        losses = np.roll(LOSSES, number)
        weights, state, _ = combine(aggregator, clients, context_of(number, losses=losses), state)
        reference = numpy_devices(reference, losses, clients, number, cdf)
        np.testing.assert_allclose(state.mixture, reference[1], rtol=1e-5)
        expected = reference[1][clients] / reference[1][clients].sum()
        np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("cdf", ["weibull", "normal"])
def test_silos_equal_scipy(cdf):
    """The minimum of the sum of quadratic bounds, as it is defined."""
    aggregator, state = aggregators.AAggFF("silo", cdf), None
    clients, gradients, mixtures = [4, 0, 3, 1, 5, 2], [], [np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)]

    def bound(p):
        total = 2 * p @ p
        for gradient, old in zip(gradients, mixtures, strict=False):
            total += gradient @ p + NUM_CLIENTS / 8 * (gradient @ (p - old)) ** 2
        return total

    for number in range(4):
        losses = 100 * np.roll(LOSSES, number // 2) ** 3
        _, state, _ = combine(aggregator, clients, context_of(number, losses=losses), state)
        response = CDFS[cdf](losses / losses.mean()) / NUM_CLIENTS
        gradients.append(-response / (1 + mixtures[-1] @ response))
        total = {"type": "eq", "fun": lambda p: p.sum() - 1}
        found = minimize(
            bound, mixtures[-1], bounds=[(0, 1)] * NUM_CLIENTS, constraints=total,
            method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        mixtures.append(found.x)
        np.testing.assert_allclose(state.mixture, found.x, atol=1e-5)


@pytest.mark.parametrize("cdf", CDFS)
@pytest.mark.parametrize("regime", ["silo", "device"])
def test_mixtures_favor_high_losses_and_keep_equal_ones(regime, cdf):
    aggregator, everyone = aggregators.AAggFF(regime, cdf), [4, 0, 3, 1, 5, 2]
    state = None
    for number in range(2):  # FedAvg with equal weights.
        equal = context_of(number, losses=np.full(NUM_CLIENTS, 0.7))
        weights, state, _ = combine(aggregator, everyone, equal, state)
        np.testing.assert_allclose(weights, 1 / NUM_CLIENTS, rtol=1e-5)
    _, state, _ = combine(aggregator, everyone, context_of(losses=LOSSES))
    mixture = np.asarray(state.mixture)
    np.testing.assert_allclose(mixture.sum(), 1, rtol=1e-5)
    ranked = mixture[np.argsort(LOSSES)]
    assert (np.diff(ranked) > -1e-7).all() & (ranked[-1] > ranked[0] + 1e-4)
    other, same, _ = combine(aggregator, everyone[::-1], context_of(losses=LOSSES))
    np.testing.assert_allclose(same.mixture, mixture, rtol=1e-5)
    np.testing.assert_allclose(other, mixture[everyone[::-1]], rtol=1e-5)


def test_estimates_of_absent_clients_are_unbiased():
    """All cohorts of two clients; the mean response is held fixed by equal means of losses."""
    losses = np.array([1.5, 0.5, 1.2, 0.8, 1.9, 0.1])  # In pairs of mean 1.
    aggregator, total = aggregators.AAggFF("device", "weibull"), np.zeros(NUM_CLIENTS)
    context = context_of(losses=losses)
    for pair in ([0, 1], [2, 3], [4, 5]):
        _, state, info = combine(aggregator, pair, context)
        response = np.float64(info["response"])
        mean = response.mean()
        estimate = -np.float64(state.gradient) * (1 + mean)
        # With weights of the inclusion probability, deviations from the mean are recovered.
        total[pair] += (estimate[pair] - mean) / 3
        np.testing.assert_allclose(np.delete(estimate, pair), mean, rtol=1e-5)
    expected = CDFS["weibull"](losses) / 3
    centered = expected - np.repeat(expected.reshape(3, 2).mean(axis=1), 2)
    np.testing.assert_allclose(total, centered, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("regime", ["silo", "device"])
def test_clients_without_response_and_losses_of_zero(regime):
    aggregator, answered = aggregators.AAggFF(regime), np.array([True] * 5 + [False])
    _, state, _ = combine(aggregator, range(6), context_of(losses=LOSSES), responded=answered)
    other = LOSSES.copy()
    other[5] = np.nan
    _, same, _ = combine(aggregator, range(6), context_of(losses=other), responded=answered)
    np.testing.assert_array_equal(same.mixture, state.mixture)
    assert np.isfinite(state.mixture).all()
    weights, _, _ = combine(aggregator, range(6), context_of(losses=np.zeros(6)))
    np.testing.assert_allclose(weights, 1 / 6, rtol=1e-5)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: combine(aggregators.AAggFF("silo"), [0, 1], context_of(losses=LOSSES)),
            "regime='silo'",
        ),
    ],
)
def test_bad_settings_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()
