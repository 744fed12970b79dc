"""FairFATE: the worked example, rates of groups, and momentum over rounds in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context

from fedjax_fair import aggregators
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.roles import Model, Variables

SIZES = (10, 20, 10)
RATES = (0.6, 0.9, 0.5, 0.7)
"""Rates of group 1 for models (0, 0), (1, 0), (0, 1) and (1, 1); those of group 0 are 1."""


def model():
    """A classifier whose parameters select the feature that is its prediction."""

    def apply(params, state, x, *, train, key):
        w = params["w"]
        products = jnp.stack(
            [(1 - w[0]) * (1 - w[1]), w[0] * (1 - w[1]), (1 - w[0]) * w[1], w[0] * w[1]]
        )
        score = jnp.sum(x * products[None], axis=1)
        return jnp.stack([jnp.full_like(score, 0.5), score], axis=1), state

    return Model.from_functions(
        lambda key, x: Variables({"w": jnp.zeros(2)}, {}), apply, lambda params, state, x: x
    )


def root():
    """Twenty people, ten of each group, with five positive labels each."""
    of_one = np.stack([np.arange(10) < round(10 * rate) for rate in RATES], axis=1)
    features = np.concatenate([np.ones((10, 4)), of_one]).astype(np.float32)
    labels = np.tile([0, 1], 10)
    return (features, labels), np.repeat([0, 1], 10)


def context_of(round, w=(0, 0)):
    total = sum(SIZES)
    sizes = np.array(SIZES, np.int32)
    examples = ClientExamples(
        np.zeros((total, 4), np.float32),
        np.zeros(total, np.int32),
        np.arange(total, dtype=np.int32),
        (np.cumsum(sizes) - sizes).astype(np.int32),
        sizes,
    )
    variables = Variables({"w": jnp.asarray(w, jnp.float32)}, {})
    return make_context(examples, variables, model(), round=round)


def combine(aggregator, updates, *context, **given):
    return aggregate_rows(aggregator, updates, range(len(updates)), *context, **given)


UPDATES = np.array([[1.0, 0], [0, 1], [1, 1]])


def fair_fate(**settings):
    return aggregators.FairFATE(*root(), **{"num_rounds": 100} | settings)


def test_the_worked_example():
    step, velocity, aggregation = combine(fair_fate(), UPDATES, context_of(0))
    np.testing.assert_allclose(aggregation.info["fairness"], [1, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(aggregation.info["server_fairness"], 0.25, rtol=1e-5)
    np.testing.assert_allclose(step, [0.5525, 0.70625], rtol=1e-5)
    np.testing.assert_allclose(velocity["w"], (1 - 0.899092) * np.array([1, 1 / 3]), rtol=2e-5)
    weights = 0.105 * np.array([2 / 3, 0, 1 / 3]) + 0.895 * np.array([0.25, 0.5, 0.25])
    np.testing.assert_allclose(aggregation.weights, weights, rtol=1e-5)


def test_momentum_over_rounds_equals_numpy():
    """The server's model stays (0, 0), so that fairness is the same in all rounds."""
    settings = {"num_rounds": 4, "momentum": 0.8, "strength": 0.5, "growth": 0.2}
    aggregator, state, velocity = fair_fate(**settings), None, np.zeros(2)
    for number in range(5):
        step, state, _ = combine(aggregator, UPDATES, context_of(number), state)
        time, rest = number + 1, max(1 - (number + 1) / 4, 0)
        beta = 0.8 * rest / (0.2 + 0.8 * rest)
        velocity = beta * velocity + (1 - beta) * np.array([1, 1 / 3])
        share = min(0.5 * 1.2**time, 1)
        expected = share * velocity / (1 - beta**time) + (1 - share) * np.array([0.5, 0.75])
        np.testing.assert_allclose(step, expected, rtol=1e-5)


def test_limits():
    mean = np.array([0.25, 0.5, 0.25]) @ UPDATES
    step, _, aggregation = combine(fair_fate(strength=0.0), UPDATES, context_of(0))
    np.testing.assert_allclose(step, mean, rtol=1e-6)
    np.testing.assert_allclose(aggregation.weights, [0.25, 0.5, 0.25], rtol=1e-6)
    # All models are as fair as the server's.
    step, velocity, _ = combine(fair_fate(), 0 * UPDATES, context_of(0))
    np.testing.assert_array_equal(velocity["w"], 0)
    gone = np.array([False, True, True])
    step, _, aggregation = combine(fair_fate(), UPDATES, context_of(0), responded=gone)
    # The range is that of 0.5, 0.7 and the server's 0.6; only the last client is fairer.
    np.testing.assert_allclose(aggregation.info["fairness"], [0, 0, 1], atol=1e-6)
    np.testing.assert_allclose(step, 0.105 * UPDATES[2] + 0.895 * UPDATES[1:].T @ [2 / 3, 1 / 3])


@pytest.mark.parametrize("metric", ["demographic_parity", "equal_opportunity", "equalized_odds"])
def test_metrics_are_ratios_of_rates(metric):
    """Of people with label 1 in group 1, every second one, the rates are other ones."""
    (features, labels), groups = root()
    rates = []
    for place in range(4):
        predicted = features[:, place] == 1
        ratio = lambda mask: predicted[mask & (groups == 1)].mean()  # noqa: B023, E731
        positive, negative = ratio(labels == 1), ratio(labels == 0)
        rates.append(
            {
                "demographic_parity": ratio(labels >= 0),
                "equal_opportunity": positive,
                "equalized_odds": min(positive, negative),
            }[metric]
        )
    aggregator = fair_fate(metrics=(metric,))
    for place, w in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        found = aggregator._ratios(context_of(0, w).variables, context_of(0))
        np.testing.assert_allclose(found, [rates[place]], rtol=1e-6)
    both = fair_fate(metrics=("demographic_parity", metric))
    _, _, aggregation = combine(both, UPDATES, context_of(0))
    scaled = [
        (np.array(values) - min(values)) / (max(values) - min(values)) for values in (RATES, rates)
    ]
    np.testing.assert_allclose(aggregation.info["fairness"], sum(scaled)[1:], rtol=1e-5)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metrics": ()}, "metrics=\\(\\)"),
        ({"metrics": ("accuracy",)}, "metrics='accuracy'"),
        ({"root_groups": np.zeros(20, int)}, "root_groups of shape \\(20,\\)"),
        ({"root_groups": np.zeros(3, int)}, "root_groups of shape \\(3,\\)"),
    ],
)
def test_bad_settings_are_named(settings, said):
    examples, groups = root()
    given = {"root": examples, "root_groups": groups, "num_rounds": 10} | settings
    with pytest.raises(ValueError, match=said):
        aggregators.FairFATE(**given)
