"""AdaFed and FedMGDA+: their identities, references in NumPy, and the limits of FedAvg."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate, make_context, make_federation
from scipy.optimize import minimize

from fedjax_fair import aggregators
from fedjax_fair.numerics.simplex import minimize_quadratic, project
from fedjax_fair.roles import Cohort, LocalResult, Variables

SIZES = (3, 8, 5, 1, 6, 9)
LOSSES = np.array([2.0, 0.5, 1.2, 0.1, 3.0, 0.9], np.float32)
CLIENTS = [4, 0, 1, 5]
WIDTH = 7
CONTEXT = make_context(
    make_federation(sizes=SIZES).train,
    Variables({"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}, {"mean": jnp.zeros(2)}),
    losses=jnp.asarray(LOSSES),
)


def rows(count=4, seed=0, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def combine(aggregator, slopes, clients=CLIENTS, responded=None):
    """Returns the step d = w - w' of rows Delta = w - w_k as a vector, weights and info."""
    slopes = np.asarray(slopes, np.float32)
    count = len(clients)
    params = {"a": -slopes[:, :3], "b": -slopes[:, 3:].reshape(-1, 2, 2)}
    statistics = {"mean": np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)}
    results = LocalResult(
        Variables(params, statistics), np.zeros(count, np.float32), np.ones(count, np.int32)
    )
    cohort = Cohort(np.asarray(clients, np.int32), np.full(count, 1 / count, np.float32))
    cohort = cohort._replace(responded=responded)
    update, _, aggregation = aggregate(aggregator, (), cohort, results, CONTEXT)
    answered = np.ones(count) if responded is None else responded
    shares = np.array(SIZES)[list(clients)] * answered
    expected = (shares / max(shares.sum(), 1)) @ statistics["mean"]
    np.testing.assert_allclose(update.state["mean"], expected, rtol=1e-5)
    step = -np.concatenate([update.params["a"], update.params["b"].ravel()])
    assert np.isfinite(step).all()
    assert (aggregation.weights >= 0).all()
    np.testing.assert_allclose(aggregation.weights.sum(), 1, rtol=1e-5)
    return np.float64(step), np.asarray(aggregation.weights), aggregation.info


def adafed(gamma, max_step=1e6):
    return aggregators.AdaFed(jnp.float32(gamma), jnp.float32(max_step))


def fedmgda(epsilon, step_length=1.0, weights="uniform"):
    return aggregators.FedMGDA(jnp.float32(epsilon), jnp.float32(step_length), weights)


def gram_schmidt(slopes, rates):
    """The algorithm of the paper of AdaFed."""
    found = []
    for slope, rate in zip(np.float64(slopes), np.float64(rates), strict=True):
        parts = [slope @ other / (other @ other) for other in found]
        rest = slope - sum((p * o for p, o in zip(parts, found, strict=True)), np.zeros(WIDTH))
        found.append(rest / (rate - sum(parts)))
    weights = np.array([1 / (row @ row) for row in found])
    return weights @ np.array(found) / weights.sum()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_rates_of_adafed_grow_with_losses(gamma):
    slopes, rates = rows(), LOSSES[CLIENTS] ** gamma
    step, _, info = combine(adafed(gamma), slopes)
    np.testing.assert_allclose(slopes @ step / (step @ step), rates, rtol=2e-5)
    np.testing.assert_allclose(step, gram_schmidt(slopes, rates), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(info["coefficient"] @ slopes, step, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(info["step_norm"], np.linalg.norm(step), rtol=1e-5)


def test_one_participant_of_adafed():
    slopes = rows(1)
    step, weights, _ = combine(adafed(1.0), slopes, [4])
    np.testing.assert_allclose(step, slopes[0] / LOSSES[4], rtol=1e-6)
    assert weights == 1


def test_orthogonal_updates_of_equal_length_give_fedavg():
    slopes = 3 * np.eye(4, WIDTH)
    for aggregator in (adafed(0.0), fedmgda(0.5, 3.0)):
        step, weights, _ = combine(aggregator, slopes)
        np.testing.assert_allclose(step, slopes.mean(axis=0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(weights, 1 / 4, rtol=1e-6)


@pytest.mark.parametrize("max_step", [0.25, 2.0, 20.0])
def test_the_step_of_adafed_is_clipped_without_turning(max_step):
    """Nearly parallel updates at small losses."""
    slopes = rows(1) + 0.1 * rows(2, seed=1)
    clients = [3, 3]
    step, _, info = combine(adafed(1.0, max_step), slopes, clients)
    free, _, _ = combine(adafed(1.0), slopes, clients)
    longest = max_step * np.linalg.norm(slopes, axis=1).max()
    expected = min(longest, np.linalg.norm(free))
    assert expected == longest if max_step < 20 else expected < longest
    np.testing.assert_allclose(np.linalg.norm(step), expected, rtol=1e-5)
    np.testing.assert_allclose(info["step_norm"], expected, rtol=1e-5)
    np.testing.assert_allclose(step / np.linalg.norm(step), free / np.linalg.norm(free), atol=1e-5)


def test_dependent_updates_have_rates_of_least_squares():
    """Of two equal updates with different losses, the rate is their mean."""
    first, other = np.eye(2, WIDTH)
    step, _, _ = combine(adafed(1.0), [first, first, 2 * other], [0, 1, 5])
    rates = np.array([(LOSSES[0] + LOSSES[1]) / 2, LOSSES[5] / 2])
    expected = np.zeros(WIDTH)
    expected[:2] = rates / (rates @ rates)
    np.testing.assert_allclose(step, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("aggregator", [adafed(1.0), fedmgda(0.3)], ids=["adafed", "fedmgda"])
def test_the_order_and_invalid_updates_do_not_matter(aggregator):
    slopes = rows()
    step, weights, _ = combine(aggregator, slopes)
    for order in ([3, 1, 0, 2], [1, 0, 2, 3]):
        other, permuted, _ = combine(aggregator, slopes[order], np.array(CLIENTS)[order])
        np.testing.assert_allclose(other, step, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(permuted, weights[order], rtol=1e-4, atol=1e-5)
    zeros = np.concatenate([slopes, np.zeros((1, WIDTH))])
    more, _, _ = combine(aggregator, zeros, [*CLIENTS, 2], np.array([True] * 4 + [False]))
    np.testing.assert_allclose(more, step, rtol=1e-4, atol=1e-5)
    still, weights, _ = combine(aggregator, zeros, [*CLIENTS, 2])  # A client that did not move.
    np.testing.assert_allclose(still, step, rtol=1e-4, atol=1e-5)
    assert weights[4] == 0
    stopped, _, _ = combine(aggregator, np.zeros((4, WIDTH)))
    assert (stopped == 0).all()


def unit(slopes):
    return slopes / np.linalg.norm(slopes, axis=1, keepdims=True)


def nearest_to_zero(slopes, center, epsilon):
    """The shortest mean of normalized rows, by SciPy."""
    gram = unit(np.float64(slopes)) @ unit(np.float64(slopes)).T
    bounds = [(max(0, c - epsilon), min(1, c + epsilon)) for c in center]
    total = {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like}
    found = minimize(
        lambda x: x @ gram @ x / 2, center, jac=lambda x: gram @ x, bounds=bounds,
        constraints=total, method="SLSQP", options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    return found.x


@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2, 1.0])
def test_fedmgda_equals_scipy(weights, epsilon):
    clients = [4, 0, 1, 5, 2]
    slopes = rows(5, seed=2)
    slopes[1] = -0.5 * slopes[0] + 0.1 * slopes[1]  # Opposite, so that bounds are active.
    sizes = np.array(SIZES)[clients] if weights == "num_examples" else np.ones(5)
    center = sizes / sizes.sum()
    step, found, _ = combine(fedmgda(epsilon, 0.7, weights), slopes, clients)
    expected = nearest_to_zero(slopes, center, epsilon)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(step, 0.7 * found @ unit(slopes), atol=1e-5)
    if epsilon == 0:
        np.testing.assert_allclose(found, center, rtol=1e-6)
    if epsilon == 1:
        direction = step / 0.7
        assert (unit(slopes) @ direction >= direction @ direction - 1e-5).all()


def test_identities_of_fedmgda():
    pair = rows(2)
    for epsilon in (0.0, 0.1, 1.0):
        _, weights, _ = combine(fedmgda(epsilon), pair, [0, 5])
        np.testing.assert_allclose(weights, [0.5, 0.5], atol=1e-6)
    slopes, scales = rows(), np.array([[1e-3], [1.0], [1e18], [7.0]])
    step, weights, _ = combine(fedmgda(0.2), slopes)
    scaled, same, _ = combine(fedmgda(0.2), slopes * scales)
    np.testing.assert_allclose(scaled, step, atol=1e-5)
    np.testing.assert_allclose(same, weights, atol=1e-5)
    equal, _, _ = combine(fedmgda(0.2, 0.3), np.repeat(slopes[:1], 4, axis=0))
    np.testing.assert_allclose(equal, 0.3 * unit(slopes)[0], rtol=1e-5)


solve = jax.jit(minimize_quadratic)


def active_sets(matrix, linear, lower, upper):
    """The minimum over all choices of variables at a bound."""
    size, best, value = len(linear), None, np.inf
    for places in itertools.product((0, 1, 2), repeat=size):
        x = np.where(np.array(places) == 1, lower, upper)
        free = np.array(places) == 0
        count = free.sum()
        if count:
            system = np.ones((count + 1, count + 1))
            system[:count, :count], system[-1, -1] = matrix[np.ix_(free, free)], 0
            right = linear[free] - matrix[np.ix_(free, ~free)] @ x[~free]
            x[free] = np.linalg.lstsq(system, np.append(right, 1 - x[~free].sum()))[0][:count]
        is_valid = abs(x.sum() - 1) < 1e-9 and (x >= lower - 1e-9).all()
        if is_valid and (x <= upper + 1e-9).all():
            objective = x @ matrix @ x / 2 - linear @ x
            best, value = (x, objective) if objective < value else (best, value)
    return best, value


@pytest.mark.parametrize("seed", range(8))
def test_quadratic_programs_equal_brute_force(seed):
    """Also with a singular matrix, whose minimum may not be unique."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(2 if seed % 2 else 6, 5))
    matrix, linear = root.T @ root, rng.normal(size=5)
    lower, upper = (np.zeros(5), np.ones(5)) if seed < 4 else (np.full(5, 0.1), np.full(5, 0.4))
    start = np.full(5, 0.2)
    arguments = (jnp.asarray(each, jnp.float32) for each in (matrix, linear, lower, upper, start))
    found = np.float64(solve(*arguments))
    _, value = active_sets(matrix, linear, lower, upper)
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-6)
    assert (found >= lower - 1e-7).all() & (found <= upper + 1e-7).all()
    np.testing.assert_allclose(found @ matrix @ found / 2 - linear @ found, value, atol=1e-5)


def test_projections_are_nearest_points():
    rng = np.random.default_rng(0)
    nearest = jax.jit(project)
    for _ in range(20):
        values = rng.normal(size=5)
        lower, upper = rng.uniform(0, 0.2, 5), rng.uniform(0.2, 1, 5)
        found = np.float64(nearest(*(jnp.asarray(v, jnp.float32) for v in (values, lower, upper))))
        expected, _ = active_sets(np.eye(5), values, lower, upper)
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("upper", [0.4, 1.0])
@pytest.mark.parametrize("shift", [-20.0, -0.5, 3.0, 50.0])
def test_projections_onto_the_simplex_do_not_change_with_a_common_shift(shift, upper):
    rng = np.random.default_rng(2)
    nearest = jax.jit(project)
    bounds = jnp.zeros(6), jnp.full(6, upper)
    for scale in (0.1, 1.0, 10.0):
        # Multiples of 2^-8, to which the shift is added without rounding.
        values = np.round(256 * scale * rng.normal(size=6)) / 256
        found = nearest(jnp.asarray(values, jnp.float32), *bounds)
        shifted = nearest(jnp.asarray(values + shift, jnp.float32), *bounds)
        np.testing.assert_allclose(shifted, found, atol=2e-5)
        np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)
        np.testing.assert_allclose(nearest(found, *bounds), found, atol=1e-6)
