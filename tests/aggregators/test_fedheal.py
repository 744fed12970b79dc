"""FedHEAL: the worked example, the limits, and rounds in NumPy with clients that are absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context, make_federation

from fedjax_fair import aggregators
from fedjax_fair.roles import Variables

PARAMS = {"bias": jnp.zeros(1), "kernel": jnp.zeros((2, 2))}
EXAMPLES = make_federation().train


def combine(aggregator, slopes, clients, state=None, responded=None, params=PARAMS):
    """Returns the step of rows Delta = w - w_k, the state and the aggregation."""
    context, rows = CONTEXTS[params is PARAMS], -np.asarray(slopes)
    update, *rest = aggregate_rows(aggregator, rows, clients, context, state, responded)
    return -update, *rest


SINGLE = {"w": jnp.zeros(3)}
CONTEXTS = {
    params is PARAMS: make_context(EXAMPLES, Variables(params, {})) for params in (PARAMS, SINGLE)
}


def fedheal(threshold=0.3, beta=0.4):
    return aggregators.FedHEAL(jnp.float32(threshold), jnp.float32(beta))


def test_the_worked_example():
    rounds = [[[1, -1, 2], [-1, 1, 1]], [[1, 1, 2], [-1, -1, 1]], [[-1, 1, 2], [-1, 1, -3]]]
    weights = [(0.524510, 0.475490), (0.548987, 0.451013), (0.565274, 0.434726)]
    steps = [(0.049021, -0.049021, 1.524510), (0.097973, 0, 1.548987), (-1, 1, 2)]
    state = None
    for slopes, q, expected in zip(rounds, weights, steps, strict=True):
        step, state, aggregation = combine(fedheal(), slopes, [0, 1], state, params=SINGLE)
        np.testing.assert_allclose(aggregation.weights, q, atol=1e-6)
        np.testing.assert_allclose(step, expected, atol=2e-6)
    np.testing.assert_allclose(aggregation.info["consistent"], [2 / 3, 2 / 3], rtol=1e-6)


class Reference:
    """The algorithm with lists of all changes of each client."""

    def __init__(self, tau, beta):
        self.tau, self.beta = tau, beta
        self.changes, self.distance, self.total = {}, {}, {}

    def step(self, slopes, clients):
        masks, lengths = [], []
        for client, row in zip(clients, np.float64(slopes), strict=True):
            earlier = self.changes.setdefault(client, [])
            same = [[(old[j] >= 0) == (row[j] >= 0) for old in earlier] for j in range(len(row))]
            masks.append([not earlier or np.mean(agree) > self.tau for agree in same])
            kept = row * masks[-1]
            lengths.append(abs(kept[0]) + np.linalg.norm(kept[1:]))  # The bias comes first.
            earlier.append(row)
        weights = []
        for client, length in zip(clients, lengths, strict=True):
            moved = (1 - self.beta) * self.distance.get(client, 0)
            self.distance[client] = moved + self.beta * length / sum(lengths)
            self.total[client] = self.total.get(client, 0) + self.distance[client]
            weights.append(1 / len(clients) + self.total[client])
        weights, masks = np.array(weights) / np.sum(weights), np.array(masks)
        used = weights[:, None] * masks
        return (used * slopes).sum(axis=0) / np.maximum(used.sum(axis=0), 1e-12), weights


@pytest.mark.parametrize("threshold", [0.3, 0.6])
def test_rounds_equal_numpy(threshold):
    cohorts = [(0, 1, 2), (3, 4, 0), (0, 1, 3), (2, 4, 1), (0, 3, 2), (1, 0, 4)]
    reference, state, dropped = Reference(threshold, 0.4), None, 0
    for number, clients in enumerate(cohorts):
        slopes = np.random.default_rng(number).normal(size=(3, 5)).astype(np.float32)
        step, state, aggregation = combine(fedheal(threshold), slopes, clients, state)
        expected, weights = reference.step(slopes, clients)
        np.testing.assert_allclose(step, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(aggregation.weights, weights, rtol=1e-5)
        dropped += (aggregation.info["consistent"] < 1).sum()
    assert dropped > 3


def test_limits_are_uniform_fedavg():
    state = same = None
    for number in range(3):
        slopes = np.random.default_rng(number).normal(size=(4, 5))
        step, state, aggregation = combine(fedheal(-0.1, 0.0), slopes, [4, 0, 1, 5], state)
        np.testing.assert_allclose(step, slopes.mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(aggregation.weights, 1 / 4, rtol=1e-6)
        equal = np.repeat(slopes[:1], 4, axis=0)
        _, same, aggregation = combine(fedheal(), equal, [4, 0, 1, 5], same)
        np.testing.assert_allclose(aggregation.weights, 1 / 4, rtol=1e-6)


def test_no_change_counts_as_positive():
    _, state, _ = combine(fedheal(), [[0, 1, -1]], [2], params=SINGLE)
    np.testing.assert_array_equal(state.positive[2], [1, 1, 0])


def test_order_and_clients_without_response_do_not_matter():
    slopes, clients = np.random.default_rng(1).normal(size=(4, 5)), np.array([4, 0, 1, 5])
    _, state, _ = combine(fedheal(), -slopes[:2] + 0.5, [0, 2])
    step, after, aggregation = combine(fedheal(), slopes, clients, state)
    order = [2, 0, 3, 1]
    other, same, permuted = combine(fedheal(), slopes[order], clients[order], state)
    np.testing.assert_allclose(other, step, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(permuted.weights, aggregation.weights[jnp.array(order)], rtol=1e-5)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6)  # noqa: E731
    jax.tree.map(close, same, after)
    answered = np.array([True] * 4 + [False])
    padded = np.concatenate([slopes, np.zeros((1, 5))])
    more, same, _ = combine(fedheal(), padded, [*clients, 2], state, answered)
    np.testing.assert_allclose(more, step, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, same, after)
