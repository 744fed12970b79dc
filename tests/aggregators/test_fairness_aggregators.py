"""Fairness aggregators on their own: hand-made rounds, their laws, and bad input."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import Round, aggregators, models, selectors, server_optimizers, solvers
from fedjax_fair.roles import Cohort, LocalResult, Variables

RNG = np.random.default_rng(0)


def aggregate_once(
    aggregator, sizes, clients, groups=None, updates=None, state=None, **measurements
):
    """Returns update, state and aggregation for given measurements of clients."""
    context = make_context(make_federation(sizes=sizes).train, Variables({}, {}), **measurements)
    if groups is not None:
        context = context._replace(groups=jnp.array(groups, jnp.int32))
    count = len(clients)
    updates = np.ones((count, 2), np.float32) if updates is None else updates
    params = Variables({"w": jnp.asarray(updates)}, {"mean": jnp.asarray(updates)})
    results = LocalResult(params, jnp.zeros(count), jnp.ones(count, jnp.int32))
    cohort = Cohort(jnp.array(clients, jnp.int32), jnp.full(count, 1 / count))
    state = aggregator.init(context) if state is None else state
    cohort = aggregator.prepare(state, cohort, context)
    return aggregator.aggregate(state, cohort, results, context)


def test_fairfed_reduces_weights_far_from_the_average():
    accuracies = jnp.array([0.9, 0.9, 0.9, 0.1])
    _, kept, aggregation = aggregate_once(
        aggregators.FairFed(1.0), [5] * 4, [0, 1, 2, 3], accuracies=accuracies
    )
    np.testing.assert_allclose(aggregation.info["deviation"], [0.2, 0.2, 0.2, 0.6], rtol=1e-5)
    np.testing.assert_allclose(aggregation.weights, [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-5)
    np.testing.assert_allclose(kept, [0.35, 0.35, 0.35, 0], rtol=1e-5)


def test_fairfed_without_positive_weights_uses_sizes():
    kept = jnp.array([0.5, 0.0, 0.0, 0.5])
    _, after, aggregation = aggregate_once(
        aggregators.FairFed(1.0), [5, 2, 6, 3], [1, 2, 2], state=kept, accuracies=jnp.ones(4)
    )
    np.testing.assert_allclose(aggregation.weights, [1 / 7, 3 / 7, 3 / 7], rtol=1e-6)
    np.testing.assert_array_equal(after, kept)


def test_gifair_favors_the_group_of_higher_loss():
    _, _, aggregation = aggregate_once(
        aggregators.GIFAIR(0.3),  # The largest lambda is 1 / 3.
        [5] * 3,
        [0, 1, 2],
        [0, 0, 1],
        losses=jnp.array([0.5, 1.5, 2.0]),
        client_means=(jnp.ones(3), None),
    )
    np.testing.assert_allclose(aggregation.info["loss_weight"], [0.85, 0.85, 1.3], rtol=1e-6)


def test_gifair_keeps_the_losses_of_groups_that_are_absent_or_diverged():
    _, losses, aggregation = aggregate_once(
        aggregators.GIFAIR(0.5),
        [5] * 5,
        [0, 2, 2, 3],
        [0, 0, 1, 2, 4],
        losses=jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]),
        client_means=(jnp.array([jnp.nan, 9.0, 0.5, jnp.inf, 9.0]), None),
    )
    np.testing.assert_array_equal(losses, [1.5, 0.5, 4.0, np.nan, 5.0])
    assert np.isfinite(aggregation.info["loss_weight"]).all()


def test_gifair_of_one_group_changes_nothing():
    _, _, aggregation = aggregate_once(
        aggregators.GIFAIR(1.0),
        [5, 2, 7],
        [0, 2, 2],
        [1, 0, 1],
        losses=jnp.array([1.0, 2.0, 3.0]),
        client_means=(jnp.ones(3), None),
    )
    np.testing.assert_array_equal(aggregation.info["loss_weight"], np.ones(3))


@cache
def gifair_factors():
    train = jax.tree.map(jnp.asarray, make_federation().train)

    def factors(strength, sizes, groups, levels, clients):
        context = make_context(train._replace(sizes=sizes))._replace(groups=groups)
        cohort = Cohort(clients, jnp.full(5, 0.2))
        prepared = aggregators.GIFAIR(strength).prepare(levels, cohort, context)
        return prepared.instructions["loss_weight"]

    return jax.jit(factors)


def six(elements):
    return st.lists(elements, min_size=6, max_size=6)


@settings(deadline=None)
@given(
    strength=st.floats(0, 1, width=32),
    sizes=six(st.integers(1, 50)),
    groups=six(st.integers(0, 5)),
    # Few levels, so that some are equal.
    levels=six(st.integers(0, 4)),
    clients=st.lists(st.integers(0, 5), min_size=5, max_size=5),
)
def test_factors_of_gifair_average_to_one_and_favor_higher_losses(
    strength, sizes, groups, levels, clients
):
    factors = gifair_factors()(
        jnp.float32(strength),
        *(jnp.array(values, jnp.int32) for values in (sizes, groups)),
        jnp.array(levels, jnp.float32),
        jnp.array(clients, jnp.int32),
    )
    shares = np.array(sizes)[clients] / np.array(sizes)[clients].sum()
    np.testing.assert_allclose((shares * factors).sum(), 1, rtol=1e-5)
    assert (np.asarray(factors) >= -1e-5).all()
    own = np.array(levels)[np.array(groups)[clients]]
    assert (factors[own == own.max()] >= 1 - 1e-6).all()
    assert (factors[own == own.min()] <= 1 + 1e-6).all()


@pytest.mark.parametrize("q", [0.5, 3.0, 300.0])
def test_q_fedavg_is_its_formula_for_any_power(q):
    losses = np.array([3.0, 0.25, 2.5, 1.0])
    updates = RNG.normal(size=(3, 2)).astype(np.float32)
    update, _, aggregation = aggregate_once(
        aggregators.QFedAvg(q, learning_rate=0.1),
        [5] * 4,
        [2, 0, 3],
        updates=updates,
        losses=jnp.array(losses),
    )
    f, slopes = losses[[2, 0, 3]], -updates.astype(np.float64) / 0.1
    below = (q * f ** (q - 1) * (slopes**2).sum(axis=1) + f**q / 0.1).sum()
    # The logarithm of a loss is rounded to 1e-7 and then multiplied by q.
    close = {"rtol": 1e-5 + 3e-7 * q}
    np.testing.assert_allclose(update.params["w"], -(f**q @ slopes) / below, **close)
    np.testing.assert_allclose(aggregation.weights, f**q / (f**q).sum(), **close, atol=1e-30)
    np.testing.assert_allclose(update.state["mean"], aggregation.weights @ updates, rtol=1e-5)


@pytest.mark.parametrize("t", [-2.0, 0.7])
@pytest.mark.parametrize("weights", ["uniform", "num_examples", "selector"])
def test_tilted_weights(t, weights):
    losses, sizes = np.array([3.0, 0.25, 2.5, 1.0]), np.array([5, 1, 2, 8])
    _, _, aggregation = aggregate_once(
        aggregators.Tilted(t, weights), sizes, [2, 0, 3], losses=jnp.array(losses)
    )
    participants = [2, 0, 3]
    raw = np.exp(t * losses[participants]) * (
        sizes[participants] if weights == "num_examples" else 1
    )
    np.testing.assert_allclose(aggregation.weights, raw / raw.sum(), rtol=1e-5)


@pytest.mark.parametrize(("t", "chosen"), [(1e4, 0), (-1e4, 1)])
def test_a_large_tilt_selects_one_client(t, chosen):
    losses = jnp.array([3.0, 0.25, 2.5])
    _, _, aggregation = aggregate_once(aggregators.Tilted(t), [5] * 3, [0, 1, 2], losses=losses)
    np.testing.assert_array_equal(aggregation.weights, np.eye(3)[chosen])


def test_q_fedavg_of_one_client_shortens_its_gradient_step():
    """One full-batch step of one client: w - g / (L + q |g|^2 / F)."""
    gradient, rate, q, loss = np.array([0.6, -0.8]), 0.1, 2.0, 0.5
    update, _, _ = aggregate_once(
        aggregators.QFedAvg(q, learning_rate=rate),
        [5],
        [0],
        updates=np.float32(-rate * gradient[None]),
        losses=jnp.array([loss]),
    )
    expected = -gradient / (1 / rate + q * np.sum(gradient**2) / loss)
    np.testing.assert_allclose(update.params["w"], expected, rtol=1e-5)


def test_q_fedavg_of_equal_losses_divides_the_sum_of_gradients():
    """Losses c: w - sum(g) / (m L + (q / c) sum |g|^2), without sizes."""
    gradients, rate, q, loss = RNG.normal(size=(3, 2)), 0.1, 3.0, 0.7
    update, _, aggregation = aggregate_once(
        aggregators.QFedAvg(q, learning_rate=rate),
        [5, 50, 1],
        [0, 1, 2],
        updates=np.float32(-rate * gradients),
        losses=jnp.full(3, loss),
    )
    expected = -gradients.sum(axis=0) / (3 / rate + q / loss * np.sum(gradients**2))
    np.testing.assert_allclose(update.params["w"], expected, rtol=1e-5)
    np.testing.assert_allclose(aggregation.weights, np.full(3, 1 / 3), rtol=1e-6)


def test_tilted_weights_of_equal_losses_are_the_shares_and_a_constant_changes_nothing():
    def weights(losses):
        return aggregate_once(
            aggregators.Tilted(1.5), [5, 1, 2], [0, 1, 2], losses=jnp.asarray(losses)
        )[2].weights

    np.testing.assert_allclose(weights([40.0] * 3), np.array([5, 1, 2]) / 8, rtol=1e-5)
    losses = np.array([0.25, 1.5, 0.75])
    np.testing.assert_allclose(weights(losses + 64), weights(losses), rtol=1e-5)


def test_gifair_of_single_clients_moves_weight_by_the_rank_of_losses():
    """Weights p_k + c lambda_max r_k with ranks -(m - 1), -(m - 3), ..., m - 1."""
    sizes, strength = np.array([4, 10, 5, 6]), 0.4
    _, _, aggregation = aggregate_once(
        aggregators.GIFAIR(strength),
        sizes,
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        losses=jnp.array([0.5, 0.1, 2.0, 1.0]),
        client_means=(jnp.ones(4), None),
    )
    shares = sizes / sizes.sum()
    weights = shares + strength * shares.min() / 3 * np.array([-1, -3, 3, 1])
    np.testing.assert_allclose(aggregation.info["loss_weight"] * shares, weights, rtol=1e-5)


def q_fed_round(rate, solver_rate, wrap=lambda aggregator: aggregator, **options):
    solver = solvers.SGD(solver_rate, batch_size=2, steps=1)
    aggregator = wrap(aggregators.QFedAvg(1.0, learning_rate=rate, **options))
    return Round(models.logistic(num_classes=2), selectors.Uniform(2), solver, aggregator)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda aggregator: aggregator,
        lambda aggregator: aggregators.WithServerOptimizer(aggregator, server_optimizers.FedAvgM()),
    ],
)
@pytest.mark.parametrize(("rate", "solver_rate"), [(0.1, 0.5), (1.0, 0.0), (0.1001, 0.1)])
def test_q_fedavg_refuses_another_rate_than_the_solvers(rate, solver_rate, wrap):
    with pytest.raises(ValueError, match=rf"learning_rate={rate}\).*{solver_rate}.*any_learning"):
        q_fed_round(rate, solver_rate, wrap)
    q_fed_round(rate, solver_rate, wrap, any_learning_rate=True)


def test_q_fedavg_accepts_the_rate_in_any_type_and_schedules():
    for rate in (np.float32(0.1), jnp.float32(0.1), np.float64(0.1)):
        q_fed_round(rate, 0.1)
        q_fed_round(0.1, rate)
    q_fed_round(0.1, lambda round: 0.5 / (1 + round))
    jax.jit(lambda rate: q_fed_round(rate, rate).aggregator.learning_rate)(0.3)


# --- Bad input --------------------------------------------------------------------------------


def test_missing_groups_are_named():
    context = make_context(make_federation().train)
    with pytest.raises(ValueError, match="groups=None"):
        aggregators.GIFAIR().init(context)
    with pytest.raises(ValueError, match="cohort_size=7"):
        selectors.DRFA(0.1, 7, 3).init(context)
