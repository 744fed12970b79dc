"""FairFATE: the worked example, rates of groups, and momentum over rounds in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate_rows, make_context

from fedjax_fair import aggregators
from fedjax_fair.aggregators.cells import pooled_counts
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.sensitive import SensitiveFeature, SensitiveGroups
from fedjax_fair.roles import Model, Variables

SIZES = (10, 20, 10)
RATES = (0.6, 0.9, 0.5, 0.7)
"""Rates of group 1 for models (0, 0), (1, 0), (0, 1) and (1, 1); those of group 0 are 1."""

ORDER = np.random.default_rng(0).permutation(20).astype(np.int32)
NAMES = (SensitiveFeature("sex", ("F", "M")),)
THREE = (SensitiveFeature("age", ("a", "b", "c")),)


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


def people():
    """Features, labels and groups of ten people per group, of whom five have label 1."""
    of_one = np.stack([np.arange(10) < round(10 * rate) for rate in RATES], axis=1)
    features = np.concatenate([np.ones((10, 4)), of_one]).astype(np.float32)
    return features, np.tile([0, 1], 10).astype(np.int32), np.repeat([0, 1], 10)


def validation(order=ORDER, sizes=(13, 0, 7)):
    """The people as validation examples of three clients, of which one has none."""
    features, labels, groups = people()
    sizes = np.array(sizes, np.int32)
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    codes = groups[:, None].astype(np.int32)
    return jax.tree.map(
        jnp.asarray,
        ClientExamples(features, labels, order, offsets, sizes, sensitive_features=codes),
    )


def context_of(round, w=(0, 0), validation=validation, names=NAMES):
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
    context = make_context(examples, variables, model(), round=round)
    return context._replace(validation=validation and validation(), sensitive_names=names)


def combine(aggregator, updates, *context, **given):
    return aggregate_rows(aggregator, updates, range(len(updates)), *context, **given)


UPDATES = np.array([[1.0, 0], [0, 1], [1, 1]])


def fair_fate(**settings):
    return aggregators.FairFATE(**{"num_rounds": 100} | settings)


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
    settings = {"num_rounds": 4, "beta": 0.8, "strength": 0.5, "growth": 0.2}
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


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity", "equalized_odds"])
def test_criteria_are_ratios_of_rates(criterion):
    """Of people with label 1 in group 1, every second one, the rates are other ones."""
    features, labels, groups = people()
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
            }[criterion]
        )
    aggregator = fair_fate(criteria=(criterion,))
    for place, w in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        found = aggregator._ratios(context_of(0, w).variables, context_of(0))
        np.testing.assert_allclose(found, [rates[place]], rtol=1e-6)
    both = fair_fate(criteria=("demographic_parity", criterion))
    _, _, aggregation = combine(both, UPDATES, context_of(0))
    scaled = [
        (np.array(values) - min(values)) / (max(values) - min(values)) for values in (RATES, rates)
    ]
    np.testing.assert_allclose(aggregation.info["fairness"], sum(scaled)[1:], rtol=1e-5)


def test_examples_of_no_client_and_groups_without_people_do_not_count():
    """Without people of group 1 with label 1, no model has an equal opportunity ratio."""
    _, labels, groups = people()
    kept = np.flatnonzero((groups == 0) | (labels == 0)).astype(np.int32)
    context = context_of(0, validation=lambda: validation(kept, (7, 8, 0)))
    criteria = ("demographic_parity", "equal_opportunity", "equalized_odds")
    selected = people()[0][kept, 0][groups[kept] == 1].mean()
    negative = selected  # All people of group 1 that are left have label 0.
    found = fair_fate(criteria=criteria)._ratios(context.variables, context)
    np.testing.assert_allclose(found, [selected, 1, negative], rtol=1e-6)
    step, velocity, _ = combine(fair_fate(criteria=("equal_opportunity",)), UPDATES, context)
    np.testing.assert_array_equal(velocity["w"], 0)
    np.testing.assert_allclose(step, 0.895 * np.array([0.5, 0.75]), rtol=1e-5)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"criteria": ()}, "criteria=\\(\\)"),
        ({"criteria": ("accuracy",)}, "criteria='accuracy'"),
        ({"num_rounds": 0}, "num_rounds=0"),
    ],
)
def test_bad_settings_are_named(settings, said):
    with pytest.raises(ValueError, match=said):
        fair_fate(**settings)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"validation": None}, "FairFATE: the data has no validation examples"),
        ({"names": None}, "FairFATE: the data has no sensitive features"),
        ({"names": THREE}, "FairFATE compares two sensitive groups, and the data has 3"),
    ],
)
def test_data_without_what_the_server_needs_is_refused(context, said):
    with pytest.raises(ValueError, match=said):
        fair_fate().init(context_of(0, **context))


def test_padded_positions_count_nobody():
    variables, groups = (
        Variables({"w": jnp.array([1.0, 0.0])}, {}),
        SensitiveGroups(2, np.array([1])),
    )
    padded = validation(np.append(ORDER, [0, 0, 3]).astype(np.int32))
    counts = [
        pooled_counts(model(), variables, examples, groups) for examples in (validation(), padded)
    ]
    np.testing.assert_array_equal(*counts)
    assert counts[0].sum() == 20
