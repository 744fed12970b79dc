"""FedMDFG: the worked examples, its invariants and rounds in NumPy with its line search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context, make_federation, shortest_in_hull

from fedjax_fair import aggregators
from fedjax_fair.numerics.simplex import least_norm_weights
from fedjax_fair.roles import Variables

EXAMPLES = make_federation().train
CENTERS = np.random.default_rng(5).normal(size=(6, 8))
OFFSETS = np.array([0.1, 0.8, 0.3, 2.0, 0.5, 1.0])


def fixed_context(losses, width):
    variables = Variables({"w": jnp.zeros(width)}, {})
    padded = jnp.asarray(np.pad(np.float32(losses), (0, 6 - len(losses))))
    return make_context(EXAMPLES, variables, losses=padded)


def quadratic_context(w, round):
    """Losses are half squared distances from the clients' centers, plus offsets."""

    def losses(variables, clients=None):
        rows = jnp.asarray(CENTERS, jnp.float32) - variables.params["w"][None]
        values = jnp.sum(rows**2, axis=1) / 2 + jnp.asarray(OFFSETS, jnp.float32)
        return values[clients]

    variables = Variables({"w": jnp.asarray(w, jnp.float32)}, {})
    return make_context(EXAMPLES, variables, round=round)._replace(losses=losses)


def combine(aggregator, slopes, *cohort):
    """Returns the step of rows Delta = w - w_k, the state and the aggregation."""
    update, *rest = aggregate_rows(aggregator, -np.asarray(slopes), *cohort)
    return -update, *rest


def fedmdfg(max_angle=11.25, halvings=0, **options):
    return aggregators.FedMDFG(jnp.float32(max_angle), halvings=halvings, **options)


@pytest.mark.parametrize(
    ("slopes", "losses", "angle", "shortest_vector", "step"),
    [
        ([[2, 0], [0, 1]], [1, 1.1], 2.7263, [0.75, 0.75], [0.75, 0.75]),
        ([[2, 0], [0, 1]], [1, 3], 26.5651, [0.038488, 0.237171], [0.169899, 1.046964]),
        (
            [[1, 0, 0], [0.2, 1, 0], [-0.5, 0.3, 1]],
            [1, 2, 3],
            22.2077,
            [0.029990, 0.024586, 0.173952],
            None,
        ),
    ],
)
def test_the_worked_examples(slopes, losses, angle, shortest_vector, step):
    context = fixed_context(losses, len(slopes[0]))
    found, _, aggregation = combine(fedmdfg(), slopes, range(len(slopes)), context)
    np.testing.assert_allclose(aggregation.info["angle"], angle, atol=1e-4)
    assert aggregation.info["is_guided"] == (angle > 11.25)
    if step is None:
        norms = np.linalg.norm(slopes, axis=1, keepdims=True)
        mean = np.mean(np.array(slopes) / norms * norms.mean(), axis=0)
        direction = np.array(shortest_vector)
        step = direction / np.linalg.norm(direction) * np.linalg.norm(mean)
    np.testing.assert_allclose(found, step, rtol=1e-4)
    ratio = found / np.linalg.norm(found) * np.linalg.norm(shortest_vector)
    np.testing.assert_allclose(ratio, shortest_vector, rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_least_norm_weights_equal_all_supports(seed):
    rows = np.random.default_rng(seed).normal(size=(6, 4)) + 0.5
    used = np.array([True, True, False, True, True, True])
    gram = jnp.asarray(rows @ rows.T, jnp.float32)
    weights = np.float64(jax.jit(least_norm_weights)(gram, used))
    assert weights[2] == 0
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(weights @ rows, shortest_in_hull(rows[used]), atol=2e-4)


class Reference:
    """FedMDFG, with the lists of its authors' code."""

    def __init__(self, theta, s, sign):
        self.theta, self.s, self.sign = theta, s, sign
        self.expected, self.counts, self.last = {}, {}, {}

    def step(self, w, slopes, clients):
        slopes, p = np.float64(slopes), np.ones(len(clients)) / np.sqrt(len(clients))
        at = lambda w: np.sum((CENTERS[list(clients)] - w) ** 2, 1) / 2 + OFFSETS[list(clients)]  # noqa: E731
        losses, above = at(w), 0
        for client, loss in zip(clients, losses, strict=True):
            count = self.counts.get(client, 0)
            if count == 0:
                self.expected[client] = loss
            elif loss <= self.expected[client]:
                self.expected[client] = (self.expected[client] * count + loss) / (count + 1)
            else:
                above += 1
            self.counts[client] = count + 1
        absent = [row for client, row in self.last.items() if client not in clients]
        norms = np.linalg.norm(slopes, axis=1, keepdims=True)
        rows = slopes / norms * norms.mean()
        unit = losses / np.linalg.norm(losses)
        self.guided = np.degrees(np.arccos(unit @ p)) > self.theta or 0 < above < len(clients)
        hull = [*rows, *absent]
        if self.guided:
            h = (unit @ p) * unit - p
            hull.append(h / np.linalg.norm(h) @ rows)
        d = shortest_in_hull(hull)
        scale = np.linalg.norm(rows.mean(axis=0)) / np.linalg.norm(d)
        d = d * scale
        self.last = dict(zip(clients, rows, strict=True))
        eta, trials = 1.0 if absent else 2.0**self.s, []
        while eta >= 0.5**self.s / min(scale, 2.0**self.s):
            new = at(w - eta * d)
            fits = (new - losses <= self.sign * 1e-4 * eta * (rows @ d)).all()
            cosine, old = new @ p / np.linalg.norm(new), unit @ p
            if fits and (not self.guided or cosine > old):
                return eta * d
            trials.append((new.sum(), eta))
            eta /= 2
        lower = [eta for total, eta in trials if total < losses.sum()]
        return (lower[0] if lower else min(trials)[1]) * d


@pytest.mark.parametrize(("theta", "sign"), [(11.25, 1), (40.0, 1), (40.0, -1)])
def test_rounds_equal_numpy(theta, sign):
    cohorts = [(0, 1, 2), (0, 1, 2), (3, 4, 0), (5, 1, 3), (5, 1, 3), (2, 4, 1)]
    reference, state, w, guided, sizes = Reference(theta, 3, sign), None, np.zeros(8), [], set()
    for number, clients in enumerate(cohorts):
        noise = np.random.default_rng(number).normal(size=(3, 8))
        slopes = 0.3 * (w - CENTERS[list(clients)]) + 0.1 * noise
        aggregator = fedmdfg(theta, 3, requires_decrease=sign < 0)
        context = quadratic_context(w, number)
        step, state, aggregation = combine(aggregator, slopes, clients, context, state)
        expected = reference.step(w, slopes, clients)
        np.testing.assert_allclose(step, expected, rtol=2e-3, atol=2e-4)
        assert aggregation.info["is_guided"] == reference.guided
        for client, loss in reference.expected.items():
            np.testing.assert_allclose(state.expected[client], loss, rtol=1e-4)
        guided.append(reference.guided)
        sizes.add(float(aggregation.info["step_size"]))
        w = w - step
    assert len(sizes) > 1
    assert theta < 40 or not all(guided)


def test_the_direction_reduces_all_losses():
    slopes = np.random.default_rng(3).normal(size=(4, 8))
    losses = [0.2, 1.0, 0.5, 2.0]
    step, _, _ = combine(fedmdfg(), slopes, range(4), fixed_context(losses, 8))
    assert (slopes @ step > 0).all()
    plain, _, _ = combine(fedmdfg(90.0), slopes, range(4), fixed_context(losses, 8))
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    rows = slopes / norms * norms.mean()
    mgda = shortest_in_hull(rows)
    mgda *= np.linalg.norm(rows.mean(axis=0)) / np.linalg.norm(mgda)
    np.testing.assert_allclose(plain, mgda, rtol=1e-3)
    equal, _, aggregation = combine(fedmdfg(0.0), slopes, range(4), fixed_context([0.7] * 4, 8))
    assert not aggregation.info["is_guided"]
    np.testing.assert_allclose(equal, mgda, rtol=1e-3)
    alone, _, _ = combine(fedmdfg(), slopes[:1], [2], fixed_context(losses, 8))
    np.testing.assert_allclose(alone, slopes[0], rtol=1e-5)


def step_size_of(start, near, far, clients=(0, 1), state=None, round=0, max_angle=11.25):
    """The step size for losses at the model, after steps of size 1 or less, and longer ones."""

    def losses(variables, clients=None):
        length = jnp.linalg.norm(variables.params["w"])
        values = jnp.where(length > 1.1, jnp.array(far), jnp.array(near))
        return jnp.where(length == 0, jnp.array(start), values)

    variables = Variables({"w": jnp.zeros(8)}, {})
    context = make_context(EXAMPLES, variables, round=round)._replace(losses=losses)
    slopes = np.sqrt(2) * np.eye(8)[:2]  # A step of size 1 has length 1.
    _, state, aggregation = combine(fedmdfg(max_angle, 2), slopes, clients, context, state)
    return float(aggregation.info["step_size"]), state


def test_a_guided_step_makes_losses_more_equal():
    losses = [1.0, 3.0], [0.95, 2.0], [0.4, 2.9]
    assert step_size_of(*losses)[0] == 1
    assert step_size_of(*losses, max_angle=90.0)[0] == 4


def test_a_search_starts_at_one_if_clients_are_absent():
    falls = [1.0, 1.0], [0.8, 0.8], [0.5, 0.5]
    size, state = step_size_of(*falls)
    assert size == 4
    assert step_size_of(*falls, (0, 1), state, 1)[0] == 4
    assert step_size_of(*falls, (2, 3), state, 1)[0] == 1


def test_without_a_common_direction_the_model_stays():
    slopes = np.random.default_rng(3).normal(size=(1, 8)) * np.array([[1.0], [-2.0]])
    for losses in ([1, 1], [1, 3]):
        step, _, aggregation = combine(fedmdfg(), slopes, [0, 1], fixed_context(losses, 8))
        np.testing.assert_array_equal(step, 0)
        assert aggregation.info["step_size"] == 0


def test_order_and_clients_without_response_do_not_matter():
    slopes, clients = np.random.default_rng(1).normal(size=(4, 8)), np.array([4, 0, 1, 5])
    w, aggregator = np.zeros(8), fedmdfg(halvings=3)
    _, state, _ = combine(aggregator, slopes[:2] + 1, [0, 2], quadratic_context(w, 0))
    context = quadratic_context(w, 1)
    step, after, _ = combine(aggregator, slopes, clients, context, state)
    order = [2, 0, 3, 1]
    other, same, _ = combine(aggregator, slopes[order], clients[order], context, state)
    np.testing.assert_allclose(other, step, rtol=1e-3, atol=1e-5)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5)  # noqa: E731
    jax.tree.map(close, same, after)
    answered = np.array([True] * 4 + [False])
    padded = np.concatenate([slopes, np.zeros((1, 8))])
    more, same, _ = combine(aggregator, padded, [*clients, 2], context, state, answered)
    np.testing.assert_allclose(more, step, rtol=1e-3, atol=1e-5)
    jax.tree.map(close, same, after)
