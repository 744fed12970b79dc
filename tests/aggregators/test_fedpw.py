"""FedPW: the worked example, the limit, and rounds in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context, make_federation

from fedjax_fair import aggregators
from fedjax_fair.aggregators.fedpw import _combine, _smallest
from fedjax_fair.roles import Variables

SHAPES = {"bias": (4,), "kernel": (5, 4)}
PARTS = (slice(0, 4), slice(4, 24))


def make(width=None, clients=3):
    """The context of some clients."""
    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    params = {"w": jnp.zeros(width)} if width else params
    return make_context(make_federation(sizes=(4,) * clients).train, Variables(params, {}))


CONTEXT, PAIR = make(), make(3, 2)


def combine(aggregator, slopes, losses, state=None, context=CONTEXT, order=None, responded=None):
    """Returns the step of rows Delta = w - w_k, the state and the aggregation."""
    order = np.arange(len(losses)) if order is None else np.asarray(order)
    rows, losses = -np.asarray(slopes)[order], np.asarray(losses)[order]
    update, *rest = aggregate_rows(aggregator, rows, order, context, state, responded, losses)
    return -update, *rest


def fedpw(drop_rate=0.3, beta=0.3):
    return aggregators.FedPW(jnp.float32(beta), jnp.float32(drop_rate))


def test_the_worked_example():
    slopes = np.array([[1, 0, 1], [0, 2, 0]])
    step, state, aggregation = combine(fedpw(), slopes, [2, 1], context=PAIR)
    np.testing.assert_allclose(state.losses.total, [2 / 3, 1 / 3], rtol=1e-5)
    np.testing.assert_allclose(state.agreements.total, [1 / 3, 2 / 3], rtol=1e-5)
    np.testing.assert_allclose(aggregation.weights, [0.5, 0.5], rtol=1e-5)
    np.testing.assert_allclose(step, [0.5, 1, 0.5], rtol=1e-5)
    _, after, aggregation = combine(fedpw(), slopes / 2, [1, 0.8], state, PAIR)
    np.testing.assert_allclose(after.losses.total, [0.652641, 0.347359], atol=1e-6)
    np.testing.assert_allclose(aggregation.weights, [0.485975, 0.514025], atol=1e-6)
    np.testing.assert_allclose(aggregation.info["loss_share"], 0.478038, atol=1e-5)
    _, _, aggregation = combine(fedpw(), slopes, [2, 1], state, PAIR)
    np.testing.assert_allclose(aggregation.info["drop_rate"], [0.2, 0.4], rtol=1e-5)


class Reference:
    """The algorithm, with loops over clients."""

    def __init__(self, beta, delta):
        self.beta, self.delta, self.first = beta, delta, None
        self.x, self.p, self.y, self.q = (np.zeros(3) for _ in range(4))

    def step(self, slopes, losses):
        slopes, losses = np.float64(slopes), np.float64(losses)
        inner = slopes @ slopes.sum(axis=0)
        is_first = self.first is None
        if is_first:
            self.first = losses.mean(), inner.mean()
        b, c = self.beta * losses.mean() / self.first[0], self.beta * inner.mean() / self.first[1]
        self.x = (1 - b) * self.x + b * losses / losses.sum()
        self.p = (self.p + self.x) / (self.p + self.x).sum()
        self.y = (1 - c) * self.y + c * inner / inner.sum()
        self.q = (self.q + self.y) / (self.q + self.y).sum()
        rho = self.p.std(ddof=1) / (self.p.std(ddof=1) + self.q.std(ddof=1))
        u = rho * self.p + (1 - rho) * self.q
        if is_first:
            return u @ slopes, u
        rates = np.minimum(3 * self.delta / losses / (1 / losses).sum(), 1)
        parts = []
        for part in PARTS:
            rows, dropped = slopes[:, part].copy(), []
            width = rows.shape[1]
            for row, rate in zip(rows, rates, strict=True):
                smallest = np.argsort(abs(row))[: int(width * rate)]
                dropped += [abs(row[smallest]).mean()] if len(smallest) else []
                row[smallest] = 0
            mean = u @ rows
            if width >= 10:
                unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
                norms = np.linalg.norm(unit, axis=0)
                spread = np.where(
                    norms > 0, (unit / np.where(norms > 0, norms, 1)).std(0, ddof=1), 9
                )
                common = np.argsort(spread, kind="stable")[: int(width * self.delta)]
                ratio = np.mean(dropped) / abs(mean[common]).mean()
                self.ratios = [*getattr(self, "ratios", []), ratio]
                if ratio < 1:
                    mean[common] *= 1 + ratio
            parts.append(mean)
        return np.concatenate(parts), u


@pytest.mark.parametrize("drop_rate", [0.2, 0.3])
def test_rounds_equal_numpy(drop_rate):
    reference, state = Reference(0.3, drop_rate), None
    for number in range(4):
        rng = np.random.default_rng(number)
        slopes = rng.normal(size=(3, 24)) + rng.normal(size=24)
        losses = rng.uniform(0.5, 2, 3)
        step, state, aggregation = combine(fedpw(drop_rate), slopes, losses, state)
        expected, weights = reference.step(slopes, losses)
        np.testing.assert_allclose(aggregation.weights, weights, rtol=1e-4)
        np.testing.assert_allclose(step, expected, rtol=1e-4, atol=1e-5)
    assert min(reference.ratios) < 1


def test_no_drops_and_equal_losses_and_products_are_uniform_fedavg():
    slopes = np.eye(24)[:3] + 0.5
    state = None
    for _ in range(3):
        step, state, aggregation = combine(fedpw(0.0), slopes, [0.7] * 3, state)
        np.testing.assert_allclose(aggregation.weights, 1 / 3, rtol=1e-5)
        np.testing.assert_allclose(step, slopes.mean(axis=0), rtol=1e-5)


def test_order_does_not_matter_and_clients_without_response_have_no_weight():
    rng = np.random.default_rng(0)
    slopes, losses = rng.normal(size=(3, 24)) + 1, rng.uniform(0.5, 2, 3)
    _, state, _ = combine(fedpw(), slopes[::-1], losses)
    step, after, _ = combine(fedpw(), slopes, losses, state)
    other, same, _ = combine(fedpw(), slopes, losses, state, order=[2, 0, 1])
    np.testing.assert_allclose(other, step, rtol=1e-4, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), same, after)
    gone = np.array([True, False, True])
    less, _, aggregation = combine(fedpw(), slopes, losses, state, responded=gone)
    assert aggregation.weights[1] == 0
    more = slopes.copy()
    more[1] = 99
    again, _, _ = combine(fedpw(), more, losses, state, responded=gone)
    np.testing.assert_allclose(again, less, rtol=1e-5)


def test_elements_are_rescaled_at_most_to_twice_their_size():
    """Where clients cancel in part, dropped changes are larger than what is left."""
    row = np.linspace(1, 2, 10)
    rows, halves = jnp.asarray([row, -0.5 * row], jnp.float32), jnp.full(2, 0.5)
    rates, valid = jnp.full(2, 0.3), jnp.ones(2, bool)
    found = _combine(rows, halves, valid, rates, jnp.float32(0.3))
    expected = np.where(np.arange(10) < 3, 0, 0.25 * row)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_opposed_clients_have_uniform_shares_of_agreement():
    slopes = np.array([[3.0, 0, 0], [-1.0, 0.5, 0]])
    _, state, aggregation = combine(fedpw(), slopes, [1, 1], context=PAIR)
    np.testing.assert_allclose(state.agreements.total, [0.5, 0.5])
    np.testing.assert_allclose(aggregation.weights, [0.5, 0.5], rtol=1e-6)
    _, state, aggregation = combine(fedpw(), -0 * slopes, [1, 1], context=PAIR)
    assert np.isfinite(aggregation.weights).all()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: combine(fedpw(), np.ones((3, 24)), [1, 1, 1], context=make(clients=4)),
            "all 4 clients, got 3: use selectors.Full",
        ),
    ],
)
def test_bad_settings_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("digits", [1, 7])
def test_the_smallest_elements_are_those_of_a_stable_sort(digits):
    rng = np.random.default_rng(0)
    values = np.abs(rng.normal(size=(30, 40))).round(digits).astype(np.float32)
    values[0, :25], values[1, 3] = np.inf, np.nan
    counts = np.array([30, 39, 0, 40, *rng.integers(0, 41, 26)])
    ranks = np.argsort(np.argsort(values, axis=1, stable=True), axis=1)
    actual = _smallest(jnp.asarray(values), jnp.asarray(counts, jnp.float32))
    np.testing.assert_array_equal(actual, ranks < counts[:, None])
