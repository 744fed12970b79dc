"""ShapFed: the worked example, rounds in NumPy, and clients that differ in nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context, make_federation

from fedjax_fair import aggregators
from fedjax_fair.roles import Variables

EXAMPLES = make_federation().train
PARAMS = {
    "body": {"kernel": jnp.zeros((2, 2))},
    "head": {"bias": jnp.zeros(3), "kernel": jnp.zeros((2, 3))},
}


def context_of(params):
    return make_context(EXAMPLES, Variables(params, {}))


CONTEXT = context_of(PARAMS)
PAIR = context_of({"head": jnp.zeros((2, 2))})


def combine(aggregator, updates, clients, context=CONTEXT, state=None, **given):
    return aggregate_rows(aggregator, updates, clients, context, state, **given)


def shapfed(memory=0.9):
    return aggregators.ShapFed(jnp.float32(memory))


def test_the_worked_example():
    """Columns of the head are classes: rows (1, 0), (0, 1) and (1, 1), (1, 0)."""
    updates = np.array([[1, 0, 0, 1], [1, 1, 1, 0]])
    update, state, aggregation = combine(shapfed(), updates, [0, 1], PAIR)
    np.testing.assert_allclose(state.values[:2], [0.800767, 0.827895], atol=1e-6)
    np.testing.assert_allclose(aggregation.weights, [0.491672, 0.508328], atol=1e-6)
    np.testing.assert_allclose(update, np.float64(aggregation.weights) @ updates, rtol=1e-6)


def test_contributions_are_moving_averages():
    state = aggregators.ShapFed().init(PAIR)
    values = jnp.array([0.800767, 0.827895, 0, 0, 0, 0])
    state = state._replace(values=values, is_known=values > 0)
    # Rows of cosines 0.6 and 0.9 with a mean along the first axis, for both classes.
    weights, sine = values[:2] / values[:2].sum(), np.sqrt(1 - 0.9**2)
    first, second = np.array([0.6, 0.8]) / 0.8, np.array([0.9, -sine]) / sine
    rows = np.stack([first / weights[0], second / weights[1]])
    updates = np.repeat(rows, 2, axis=1)
    _, after, aggregation = combine(shapfed(), updates, [0, 1], PAIR, state)
    np.testing.assert_allclose(after.values[:2], [0.780690, 0.835106], atol=1e-6)
    np.testing.assert_array_equal(aggregation.info["contribution"], after.values[:2])


class Reference:
    """The algorithm, with contributions in a dict."""

    def __init__(self, memory):
        self.memory, self.values = memory, {}

    def step(self, updates, clients):
        updates = np.float64(updates)
        known = [max(self.values[c], 0) for c in clients if c in self.values]
        typical = np.mean(known) if known else 1.0
        before = np.array([max(self.values.get(c, typical), 0) for c in clients])
        before = before / before.sum()
        mean = before @ updates
        for client, row in zip(clients, updates, strict=True):
            cosines = []
            for c in range(3):
                places = [4 + c, 7 + c, 10 + c]  # The bias, then two rows of the kernel.
                own, common = row[places], mean[places]
                cosines.append(own @ common / np.linalg.norm(own) / np.linalg.norm(common))
            new = np.mean(cosines)
            old = self.values.get(client, new)
            self.values[client] = self.memory * old + (1 - self.memory) * new
        weights = np.maximum([self.values[c] for c in clients], 0)
        return weights / weights.sum() @ updates


@pytest.mark.parametrize("memory", [0.9, 0.3])
def test_rounds_equal_numpy(memory):
    cohorts = [(0, 1, 2), (3, 4, 0), (0, 1, 3), (2, 4, 1), (5, 3, 2)]
    reference, state = Reference(memory), None
    for number, clients in enumerate(cohorts):
        rng = np.random.default_rng(number)
        updates = rng.normal(size=(3, 13)) + 0.3 * rng.normal(size=13)
        update, state, _ = combine(shapfed(memory), updates, clients, state=state)
        np.testing.assert_allclose(update, reference.step(updates, clients), rtol=1e-4, atol=1e-5)
    found = {client: float(state.values[client]) for client in range(6)}
    assert found == pytest.approx(reference.values, rel=1e-4, abs=1e-6)


def test_equal_clients_have_equal_weights_and_opposed_ones_none():
    updates = np.repeat(np.random.default_rng(0).normal(size=(1, 13)), 3, axis=0)
    _, _, aggregation = combine(shapfed(), updates, [0, 1, 2])
    np.testing.assert_allclose(aggregation.weights, 1 / 3, rtol=1e-5)
    np.testing.assert_allclose(aggregation.info["contribution"], 1, rtol=1e-5)
    updates[2] *= -1
    _, _, aggregation = combine(shapfed(), updates, [0, 1, 2])
    np.testing.assert_allclose(aggregation.weights, [0.5, 0.5, 0], rtol=1e-5)
    np.testing.assert_allclose(aggregation.info["contribution"], [1, 1, -1], rtol=1e-5)


def test_classes_without_change_count_as_zero():
    updates = np.ones((2, 4))
    updates[:, [1, 3]] = 0  # The second class.
    _, _, aggregation = combine(shapfed(), updates, [0, 1], PAIR)
    np.testing.assert_allclose(aggregation.info["contribution"], 0.5, rtol=1e-6)
    _, _, aggregation = combine(shapfed(), 0 * updates, [0, 1], PAIR)
    np.testing.assert_allclose(aggregation.weights, 0.5)


def test_order_and_clients_without_response_do_not_matter():
    updates, clients = np.random.default_rng(1).normal(size=(4, 13)) + 0.3, np.array([4, 0, 1, 5])
    _, state, _ = combine(shapfed(), updates[:2] + 1, [0, 2])
    update, after, _ = combine(shapfed(), updates, clients, state=state)
    order = [2, 0, 3, 1]
    other, same, _ = combine(shapfed(), updates[order], clients[order], state=state)
    np.testing.assert_allclose(other, update, rtol=1e-5, atol=1e-6)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5)  # noqa: E731
    jax.tree.map(close, same, after)
    answered = np.array([True] * 4 + [False])
    padded = np.concatenate([updates, np.zeros((1, 13))])
    more, same, _ = combine(shapfed(), padded, [*clients, 2], state=state, responded=answered)
    np.testing.assert_allclose(more, update, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, same, after)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: combine(aggregators.ShapFed(last_layer="last"), np.ones((2, 13)), [0, 1]),
            "last_layer='last': expected a layer of the model: body, head",
        ),
        (
            lambda: combine(
                aggregators.ShapFed(),
                np.ones((2, 5)),
                [0, 1],
                context_of({"head": {"a": jnp.zeros(2), "b": jnp.zeros(3)}}),
            ),
            "expected classes as the last axis",
        ),
    ],
)
def test_bad_settings_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()
