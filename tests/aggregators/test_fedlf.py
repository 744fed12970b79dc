"""FedLF: the worked example, its invariants, and rounds in NumPy with clients that are absent."""

import jax
import jax.numpy as jnp
import numpy as np
from conftest import aggregate_rows, make_context, make_federation, shortest_in_hull

from fedjax_fair import aggregators
from fedjax_fair.roles import Variables

EXAMPLES = make_federation().train
LOSSES = np.array([2.0, 0.5, 1.2, 0.1, 3.0, 0.9], np.float32)
PARAMS = {
    "first": {"bias": jnp.zeros(2), "kernel": jnp.zeros((2, 3))},
    "last": {"kernel": jnp.zeros(9)},
}
LAYERS = (slice(0, 8), slice(8, 17))


def context_of(params, losses=LOSSES, round=0):
    variables = Variables(params, {})
    return make_context(EXAMPLES, variables, losses=jnp.asarray(losses), round=round)


def combine(slopes, *cohort):
    """Returns the step of rows Delta = w - w_k, the state and the aggregation."""
    update, *rest = aggregate_rows(aggregators.FedLF(), -np.asarray(slopes), *cohort)
    return -update, *rest


def test_the_worked_example():
    params = {"a": {"w": jnp.zeros(2)}, "b": {"w": jnp.zeros(2)}}
    losses = np.array([1, 3, 0, 0, 0, 0], np.float32)
    slopes = np.array([[2, 0, 1, 0], [0, 1, 1, 1]])
    step, _, aggregation = combine(slopes, [0, 1], context_of(params, losses))
    np.testing.assert_allclose(step, [0.202751, 1.249407, 0.141197, 0.936983], rtol=1e-4)
    np.testing.assert_allclose(aggregation.info["angle"], 26.5651, rtol=1e-5)
    direction = np.array([0.038488, 0.237171, 0.026803, 0.177864])
    shorter = step * np.linalg.norm(direction) / np.linalg.norm(step)
    np.testing.assert_allclose(shorter, direction, rtol=1e-4)
    np.testing.assert_allclose(slopes @ shorter, [0.103778, 0.441838], rtol=1e-4)


class Reference:
    """The algorithm, with the last update of every client and its round."""

    def __init__(self):
        self.last = {}

    def step(self, slopes, clients, round):
        slopes, losses = np.float64(slopes), np.float64(LOSSES[list(clients)])
        p = np.ones(len(clients)) / np.sqrt(len(clients))
        norm = np.linalg.norm(losses)
        h = ((losses @ p) * losses / norm - p * norm) / norm**2
        window = len(self.last) // len(clients)
        absent = [
            row
            for client, (row, last) in self.last.items()
            if client not in clients and round - last <= window
        ]
        self.num_absent = len(absent)
        parts = []
        for layer in LAYERS:
            rows = slopes[:, layer]
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            mean = norms.mean()
            rows = rows / norms * mean
            guide = h @ rows
            others = [row[layer] / np.linalg.norm(row[layer]) * mean for row in absent]
            parts.append(shortest_in_hull([*rows, guide / np.linalg.norm(guide) * mean, *others]))
        self.last |= {client: (row, round) for client, row in zip(clients, slopes, strict=True)}
        direction = np.concatenate(parts)
        return direction / np.linalg.norm(direction) * np.linalg.norm(slopes.mean(axis=0))


def test_rounds_equal_numpy():
    cohorts = [(0, 1), (2, 3), (4, 0), (5, 1), (2, 4), (1, 2)]
    reference, state, counts = Reference(), None, []
    for number, clients in enumerate(cohorts):
        slopes = np.random.default_rng(number).normal(size=(2, 17))
        step, state, _ = combine(slopes, clients, context_of(PARAMS, round=number), state)
        expected = reference.step(slopes, clients, number)
        np.testing.assert_allclose(step, expected, rtol=1e-3, atol=1e-4)
        counts.append(reference.num_absent)
    assert counts[0] == 0
    assert max(counts) > 2


def test_no_layer_of_the_step_has_a_negative_product():
    slopes = np.random.default_rng(7).normal(size=(4, 17))
    step, _, _ = combine(slopes, [0, 1, 2, 4], context_of(PARAMS))
    for layer in LAYERS:
        assert (slopes[:, layer] @ step[layer] > -1e-5).all()
    np.testing.assert_allclose(np.linalg.norm(step), np.linalg.norm(slopes.mean(axis=0)), rtol=1e-5)


def test_equal_losses_and_one_layer_are_mgda():
    slopes = np.random.default_rng(2).normal(size=(3, 5))
    context = context_of({"w": jnp.zeros(5)}, np.full(6, 0.7, np.float32))
    step, _, aggregation = combine(slopes, [0, 1, 2], context)
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    expected = shortest_in_hull(slopes / norms)
    np.testing.assert_allclose(
        step / np.linalg.norm(step), expected / np.linalg.norm(expected), rtol=1e-3, atol=1e-4
    )
    assert aggregation.info["angle"] < 0.01
    alone, _, _ = combine(slopes[:1], [2], context)
    np.testing.assert_allclose(alone, slopes[0], rtol=1e-5)


def test_layers_that_did_not_move_are_left_out():
    slopes = np.random.default_rng(2).normal(size=(2, 17))
    slopes[0, LAYERS[1]] = 0
    step, _, _ = combine(slopes, [0, 1], context_of(PARAMS, np.ones(6, np.float32)))
    own = slopes[1, LAYERS[1]]
    cosine = own @ step[LAYERS[1]] / np.linalg.norm(own) / np.linalg.norm(step[LAYERS[1]])
    np.testing.assert_allclose(cosine, 1, rtol=1e-5)


def test_without_a_common_direction_a_layer_stays():
    slopes = np.random.default_rng(3).normal(size=(2, 17))
    slopes[1, LAYERS[0]] = -3 * slopes[0, LAYERS[0]]
    step, _, _ = combine(slopes, [0, 1], context_of(PARAMS))
    np.testing.assert_array_equal(step[LAYERS[0]], 0)
    assert (slopes[:, LAYERS[1]] @ step[LAYERS[1]] > 0).all()


def test_order_and_clients_without_response_do_not_matter():
    slopes, clients = np.random.default_rng(1).normal(size=(3, 17)), np.array([4, 0, 1])
    _, state, _ = combine(slopes[:2] + 1, [0, 2], context_of(PARAMS))
    context = context_of(PARAMS, round=1)
    step, after, _ = combine(slopes, clients, context, state)
    order = [2, 0, 1]
    other, same, _ = combine(slopes[order], clients[order], context, state)
    np.testing.assert_allclose(other, step, rtol=1e-3, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, same, after)
    answered = np.array([True] * 3 + [False])
    padded = np.concatenate([slopes, np.zeros((1, 17))])
    more, same, _ = combine(padded, [*clients, 2], context, state, answered)
    np.testing.assert_allclose(more, step, rtol=1e-3, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, same, after)
