"""FedFV: its identities, and rounds in NumPy with clients that are absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context, make_federation

from fedjax_fair import aggregators
from fedjax_fair.roles import Variables

LOSSES = np.array([2.0, 0.5, 1.2, 0.1, 3.0, 0.9], np.float32)
WIDTH = 3
CONTEXT = make_context(
    make_federation().train, Variables({"w": jnp.zeros(WIDTH)}, {}), losses=jnp.asarray(LOSSES)
)
CONTEXTS = [CONTEXT._replace(round=jnp.int32(number)) for number in range(6)]


def combine(aggregator, slopes, clients, state=None, round=0, responded=None):
    """Returns the step of rows Delta = w - w_k, the state and the aggregation."""
    rows = -np.asarray(slopes)
    update, state, aggregation = aggregate_rows(
        aggregator, rows, clients, CONTEXTS[round], state, responded
    )
    assert (aggregation.weights >= 0).all()
    return -update, state, aggregation


def fedfv(keep_fraction=0.0, history=0):
    return aggregators.FedFV(jnp.float32(keep_fraction), history)


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


class Reference:
    """The algorithm, with the last update and its round of every client."""

    def __init__(self, alpha, tau):
        self.alpha, self.tau, self.last = alpha, tau, {}

    def step(self, slopes, clients, round):
        slopes, size = np.float64(slopes), len(clients)
        order = np.argsort(LOSSES[list(clients)], kind="stable")
        count = size - int(np.ceil((size - 1) * (1 - self.alpha) - 1e-9)) if self.alpha else 0
        kept = set(order[size - count :])
        projected = []
        for i, own in enumerate(slopes):
            value = own.copy()
            for j in order:
                if j != i and i not in kept and value @ slopes[j] < 0:
                    value -= value @ slopes[j] / (slopes[j] @ slopes[j]) * slopes[j]
            projected.append(value)
        total = np.mean(projected, axis=0)
        for age in range(self.tau, 0, -1) if round >= self.tau else ():
            conflicts = [
                old
                for client, (old, time) in self.last.items()
                if client not in clients and time == round - age and total @ old < 0
            ]
            other = np.sum(conflicts, axis=0) if conflicts else np.zeros(WIDTH)
            if total @ other < 0:
                total = total - total @ other / (other @ other) * other
        self.last |= {client: (row, round) for client, row in zip(clients, slopes, strict=True)}
        return total / np.linalg.norm(total) * np.linalg.norm(slopes.mean(axis=0))


@pytest.mark.parametrize("history", [0, 1, 2])
@pytest.mark.parametrize("keep_fraction", [0.0, 0.4])
def test_rounds_equal_numpy(keep_fraction, history):
    cohorts = [(0, 1, 2), (3, 4, 0), (5, 1, 3), (2, 4, 1), (0, 5, 2)]
    reference, plain = Reference(keep_fraction, history), Reference(keep_fraction, 0)
    state, turned = None, 0
    for number, clients in enumerate(cohorts):
        slopes = rows(3, seed=number)
        step, state, _ = combine(fedfv(keep_fraction, history), slopes, clients, state, number)
        expected = reference.step(slopes, clients, number)
        np.testing.assert_allclose(step, expected, rtol=1e-4, atol=1e-5)
        mean = slopes.mean(axis=0)
        np.testing.assert_allclose(np.linalg.norm(step), np.linalg.norm(mean), rtol=1e-5)
        turned += not np.allclose(expected, plain.step(slopes, clients, number))
    assert (turned > 0) == (history > 0)


def test_two_conflicting_updates_become_orthogonal_to_each_other():
    first, second = np.array([1.0, 0.2, 0]), np.array([-0.6, 1.0, 0])
    step, _, aggregation = combine(fedfv(), [first, second], [0, 1])
    one = first - first @ second / (second @ second) * second
    two = second - first @ second / (first @ first) * first
    assert abs(one @ second) + abs(two @ first) < 1e-9
    mean = (first + second) / 2
    expected = (one + two) / np.linalg.norm(one + two) * np.linalg.norm(mean)
    np.testing.assert_allclose(step, expected, rtol=1e-5, atol=1e-6)
    assert aggregation.info["conflicts"] == 2


@pytest.mark.parametrize("case", ["all keep", "no conflict"])
def test_the_limits_are_uniform_fedavg(case):
    slopes = rows(4) if case == "all keep" else np.abs(rows(4))
    aggregator = fedfv(1.0) if case == "all keep" else fedfv(0.0, 1)
    step, state, aggregation = combine(aggregator, slopes, [4, 0, 1, 5])
    np.testing.assert_allclose(step, slopes.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(aggregation.weights, 1 / 4, rtol=1e-6)
    if case == "no conflict":
        assert state.rounds.tolist() == [0, 0, -1, -1, 0, 0]


def test_the_last_finite_update_of_a_client_is_kept():
    slopes = rows(3)
    slopes[2] = np.nan
    _, state, _ = combine(fedfv(history=1), slopes, [4, 1, 4])
    np.testing.assert_array_equal(state.updates[4], -slopes[0])
    assert state.rounds.tolist() == [-1, 0, -1, -1, 0, -1]


def test_order_scale_and_clients_without_response_do_not_matter():
    slopes, clients = rows(4), [4, 0, 1, 5]
    state, aggregator = None, fedfv(0.3, 1)
    _, state, _ = combine(aggregator, rows(2, 7), [2, 3])
    step, after, aggregation = combine(aggregator, slopes, clients, state, 1)
    order = [2, 0, 3, 1]
    other, same, permuted = combine(aggregator, slopes[order], np.array(clients)[order], state, 1)
    np.testing.assert_allclose(other, step, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        permuted.weights, np.asarray(aggregation.weights)[order], rtol=1e-4, atol=1e-6
    )
    jax.tree.map(np.testing.assert_array_equal, same, after)
    scaled_state = state._replace(updates=10 * state.updates)
    scaled, _, _ = combine(aggregator, 10 * slopes, clients, scaled_state, 1)
    np.testing.assert_allclose(scaled, 10 * step, rtol=1e-4, atol=1e-5)
    answered = np.array([True] * 4 + [False])
    padded = np.concatenate([slopes, np.zeros((1, WIDTH))])
    # Client 2 is selected but absent, so that its last update counts.
    more, same, _ = combine(aggregator, padded, [*clients, 2], state, 1, answered)
    np.testing.assert_allclose(more, step, rtol=1e-4, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, same, after)
