"""Metrics against their definitions, written out over all pairs in float64 NumPy."""

import itertools
import math
from functools import cache

import chex
import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair.base import ClientMetrics, Variables
from fedjax_fair.metrics import SUMMARIES, bytes_per_round, fairness, performance


def _pair_differences(x):
    return [abs(a - b) for a, b in itertools.combinations(x, 2)]


def _shares(x):
    return x / x.sum() if x.sum() else np.full(x.size, 1 / x.size)


# Definitions for values without NaN. Pairwise ones form every pair.
DEFINITIONS = {
    performance.mean_over_clients: np.mean,
    performance.minimum: min,
    performance.worst_10pct: lambda x: np.mean(sorted(x)[: math.ceil(x.size / 10)]),
    performance.best_10pct: lambda x: np.mean(sorted(x)[-math.ceil(x.size / 10) :]),
    fairness.standard_deviation: np.std,
    fairness.client_dissimilarity: lambda x: (
        np.mean(_pair_differences(x)) if x.size > 1 else np.nan
    ),
    fairness.gini: lambda x: np.abs(_shares(x)[:, None] - _shares(x)[None]).sum() / (2 * x.size),
    fairness.jain_index: lambda x: 1 / (x.size * (_shares(x) ** 2).sum()),
    fairness.entropy: lambda x: -sum(s * math.log(s) for s in _shares(x) if s > 0),
}
EVENNESS = [fairness.gini, fairness.jain_index, fairness.entropy]
METRICS = pytest.mark.parametrize("metric", DEFINITIONS, ids=lambda metric: metric.__name__)
jit = cache(jax.jit)

# Fractions of 128 are exact in float32, as are their differences and sums. Few sizes, because
# each is compiled anew; 9, 10 and 11 are where the number in a tenth changes.
accuracies = hnp.arrays(
    np.int64, st.sampled_from([1, 2, 9, 10, 11, 31]), elements=st.integers(0, 128)
).map(lambda correct: correct / 128)
# The angle's float64 reference goes through acos, which leaves 1e-6 degrees near 0.
TOLERANCE = {"rtol": 5e-6, "atol": 5e-6}


@METRICS
@given(accuracies)
@settings(max_examples=25, deadline=None)
def test_each_metric_is_its_definition(metric, values):
    got = jit(metric)(jnp.asarray(values, jnp.float32))
    np.testing.assert_allclose(got, DEFINITIONS[metric](values), **TOLERANCE)


@METRICS
@given(accuracies, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_nan_is_ignored_at_any_position(metric, values, random):
    scattered = [*values, *[math.nan] * (40 - values.size)]
    random.shuffle(scattered)
    got = jit(metric)(jnp.asarray(scattered, jnp.float32))
    np.testing.assert_allclose(got, DEFINITIONS[metric](values), **TOLERANCE)


@METRICS
def test_jit_and_vmap_change_nothing(metric):
    values = jax.random.uniform(jax.random.key(0), (3, 25)).at[1, 4].set(jnp.nan)
    eager = jnp.stack([metric(row) for row in values])
    # Reassociated float32 sums of 25 terms.
    np.testing.assert_allclose(jax.jit(jax.vmap(metric))(values), eager, rtol=1e-6)
    assert eager.shape == (3,)


@METRICS
@pytest.mark.parametrize("size", [1, 2, 12])
def test_no_client_to_measure_gives_nan(metric, size):
    assert np.isnan(jit(metric)(np.full(size, np.nan, np.float32)))


@given(accuracies, st.sampled_from([2.0**-8, 0.5, 1024.0]))
@settings(max_examples=25, deadline=None)
def test_evenness_does_not_depend_on_the_scale(values, factor):
    values = np.asarray(values, np.float32)
    for metric in EVENNESS:
        np.testing.assert_allclose(
            jit(metric)(values * np.float32(factor)), jit(metric)(values), rtol=1e-6
        )


@given(accuracies)
@settings(max_examples=25, deadline=None)
def test_spread_does_not_depend_on_the_level(values):
    values = np.asarray(values, np.float32)
    for metric in (fairness.client_dissimilarity, fairness.standard_deviation):
        # The shifted values are exact (at most 9 bits); the sums are rounded.
        np.testing.assert_allclose(
            jit(metric)(values + np.float32(2)), jit(metric)(values), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("num_clients", [1, 2, 7, 1000])
def test_equal_clients_are_perfectly_even(num_clients):
    for level in (0.0, 0.25):
        values = jnp.full(num_clients, level)
        assert jit(fairness.gini)(values) == 0
        assert jit(fairness.jain_index)(values) == 1
        np.testing.assert_allclose(jit(fairness.entropy)(values), math.log(num_clients), rtol=1e-6)


@pytest.mark.parametrize("num_clients", [2, 7, 1000, 1_000_000])
def test_one_client_with_everything_is_the_extreme(num_clients):
    values = jnp.zeros(num_clients).at[num_clients // 2].set(1.0)
    np.testing.assert_allclose(jit(fairness.gini)(values), 1 - 1 / num_clients, rtol=1e-6)
    np.testing.assert_allclose(jit(fairness.jain_index)(values), 1 / num_clients, rtol=1e-6)
    np.testing.assert_allclose(jit(fairness.entropy)(values), 0.0, atol=2e-6)  # log n is up to 13.8
    np.testing.assert_allclose(
        jit(fairness.client_dissimilarity)(values), 2 / num_clients, rtol=1e-6
    )


@pytest.mark.parametrize("center", [0.5, 0.99])
def test_a_million_clients_keep_six_digits(center):
    # 3 % spread around a large mean: an uncentered float32 sum would lose half of the digits.
    values = np.random.default_rng(0).normal(center, 0.03, 1_000_000).astype(np.float32)
    exact = np.sort(values.astype(np.float64))
    n = exact.size
    ordered_pairs = 2 * np.sum((2 * np.arange(n) + 1 - n) * exact)
    cv = exact.std() / exact.mean()
    expected = {
        performance.mean_over_clients: exact.mean(),
        performance.worst_10pct: exact[: n // 10].mean(),
        performance.best_10pct: exact[-n // 10 :].mean(),
        fairness.standard_deviation: exact.std(),
        fairness.client_dissimilarity: ordered_pairs / (n * (n - 1)),
        fairness.gini: ordered_pairs / (2 * n**2 * exact.mean()),
        fairness.jain_index: 1 / (1 + cv**2),
        fairness.entropy: -np.sum(exact / exact.sum() * np.log(exact / exact.sum())),
    }
    for metric, value in expected.items():
        # A float32 rounding is 6e-8; a tree of 20 levels of additions stays within 20 of them.
        np.testing.assert_allclose(jit(metric)(jnp.asarray(values)), value, rtol=1.2e-6)


sized = st.sampled_from([1, 2, 30]).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.int64, n, elements=st.integers(0, 1000)),
        hnp.arrays(np.int64, n, elements=st.integers(0, 128)),
    )
)


@given(sized)
@settings(max_examples=25, deadline=None)
def test_weighted_means_and_sigma_are_their_definitions(drawn):
    sizes, correct = drawn
    accuracy = np.where(sizes > 0, correct / 128, np.nan)
    tested = sizes > 0
    arguments = jnp.asarray(accuracy, jnp.float32), jnp.asarray(sizes, jnp.int32)
    pooled, sigma = math.nan, math.nan
    if tested.any():
        pooled = np.average(accuracy[tested], weights=sizes[tested])
        sigma = np.sqrt(np.mean((accuracy[tested] - pooled) ** 2))
    np.testing.assert_allclose(performance.mean_over_examples(*arguments), pooled, rtol=1e-6)
    np.testing.assert_allclose(fairness.sigma_acc(*arguments), sigma, rtol=1e-5, atol=1e-6)


def test_sigma_differs_from_the_standard_deviation_by_the_shift_of_the_center():
    accuracy, sizes = jnp.array([0.9, 0.5, 0.7]), jnp.array([100, 10, 1])
    shift = performance.mean_over_examples(accuracy, sizes) - jnp.mean(accuracy)
    expected = jnp.hypot(jnp.std(accuracy), shift)
    np.testing.assert_allclose(fairness.sigma_acc(accuracy, sizes), expected, rtol=1e-6)


def _noise_dissimilarity(truth, sizes, repeats=2000):
    """Mean pairwise difference of sampling noise alone, and the mean estimate of it."""
    rng = np.random.default_rng(1)
    measured = rng.binomial(sizes, truth, (repeats, sizes.size)) / sizes
    noise = np.sort(measured - truth, axis=1)
    n = sizes.size
    pairs = 2 * np.sum((2 * np.arange(n) + 1 - n) * noise, axis=1) / (n * (n - 1))
    estimate = jax.vmap(fairness.dissimilarity_noise, in_axes=(0, None))
    floors = estimate(jnp.asarray(measured, jnp.float32), jnp.asarray(sizes, jnp.int32))
    return pairs.mean(), float(floors.mean())


# The Monte Carlo error of the means is below 0.3 %; the rest is said beside each case.
@pytest.mark.parametrize(
    ("truth", "sizes", "excess"),
    [
        (np.full(100, 0.83), np.full(100, 100), (-0.01, 0.01)),  # binomial is not quite normal
        (np.full(100, 0.83), np.full(100, 10), (0.02, 0.05)),  # many ties: 3.5 %
        (np.linspace(0.3, 0.9, 100), np.full(100, 50), (-0.01, 0.02)),  # unequal variances
        (np.full(100, 0.5), np.repeat([400, 100], 50), (0.015, 0.04)),  # 2.6 % by the formula
    ],
)
def test_noise_floor_is_what_repeated_test_sets_show(truth, sizes, excess):
    simulated, estimated = _noise_dissimilarity(truth, sizes)
    assert excess[0] < estimated / simulated - 1 < excess[1]


def test_noise_floor_ignores_clients_with_one_example():
    accuracy, sizes = jnp.array([0.5, 0.8, 1.0, jnp.nan]), jnp.array([11, 11, 1, 0])
    expected = 2 * math.sqrt((0.25 + 0.16) / 2 / 10 / math.pi)
    np.testing.assert_allclose(fairness.dissimilarity_noise(accuracy, sizes), expected, rtol=1e-6)
    assert jnp.isnan(fairness.dissimilarity_noise(accuracy[1:], sizes[1:]))


def test_disagreement_is_over_the_slots_of_the_cohort():
    loss = jnp.array([0.5, 2.0, 0.75, 4.0, jnp.nan])
    cases = {
        (1, 3): 2.0,
        (3, 0, 1): (3.5 + 2.0 + 1.5) / 3,
        (0, 0, 1): (0.0 + 1.5 + 1.5) / 3,  # a repeated client counts twice
        (0, -1, 1): 1.5,  # an empty slot does not count
        (0, 4, 1): 1.5,  # nor does a client without test examples
        (0, -1, -1): math.nan,
        (-1, -1): math.nan,
        (2,): math.nan,
    }
    for cohort, expected in cases.items():
        got = fairness.client_disagreement(loss, jnp.array(cohort))
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def _client_metrics(key, num_clients=12):
    keys = jax.random.split(key, 6)
    sizes = jax.random.randint(keys[0], (num_clients,), 1, 50).at[3].set(0)
    tested = sizes > 0
    return ClientMetrics(
        test_accuracy=jnp.where(tested, jax.random.uniform(keys[1], (num_clients,)), jnp.nan),
        test_loss=jnp.where(tested, jax.random.uniform(keys[2], (num_clients,)), jnp.nan),
        train_loss=jax.random.uniform(keys[3], (num_clients,)),
        test_sizes=sizes,
        train_sizes=jax.random.randint(keys[4], (num_clients,), 1, 50),
        participation=jax.random.randint(keys[5], (num_clients,), 0, 3),
        cohort=jnp.array([0, 1, 2, 5]),
    )


def _summaries(metrics):
    return {entry.name: entry.function(metrics) for entry in SUMMARIES}


def test_summaries_are_scalars_of_one_type_eager_jitted_and_vmapped_over_seeds():
    seeds = [_client_metrics(key) for key in jax.random.split(jax.random.key(0), 3)]
    eager = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(_summaries, seeds))
    batched = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)
    compiled = jax.jit(jax.vmap(_summaries))(batched)
    chex.assert_trees_all_close(compiled, eager, rtol=1e-6)
    chex.assert_tree_all_finite(eager)
    for value in compiled.values():
        chex.assert_shape(value, (3,))
        chex.assert_type(value, jnp.float32)


def test_summaries_do_not_depend_on_the_order_of_clients():
    metrics = _client_metrics(jax.random.key(1))
    order = jax.random.permutation(jax.random.key(2), metrics.test_sizes.size)
    moved = jax.tree.map(lambda leaf: leaf[order], metrics._replace(cohort=metrics.test_sizes))
    moved = moved._replace(cohort=jnp.argsort(order)[metrics.cohort])
    chex.assert_trees_all_close(_summaries(moved), _summaries(metrics), rtol=1e-6)


def test_summaries_read_the_right_columns():
    metrics = ClientMetrics(
        test_accuracy=jnp.array([0.5, 1.0, jnp.nan, 0.0]),
        test_loss=jnp.array([1.0, 2.0, jnp.nan, 4.0]),
        train_loss=jnp.array([3.0, 5.0, 7.0, jnp.nan]),
        test_sizes=jnp.array([2, 6, 0, 2]),
        train_sizes=jnp.array([1, 1, 2, 9]),
        participation=jnp.array([0, 0, 3, 3]),
        cohort=jnp.array([3, 0, 2]),
    )
    expected = {
        "accuracy_mean_clients": 0.5,
        "accuracy_mean_examples": 0.7,
        "accuracy_minimum": 0.0,
        "accuracy_worst_10pct": 0.0,
        "accuracy_best_10pct": 1.0,
        "accuracy_standard_deviation": math.sqrt(1 / 6),
        "sigma_acc": math.sqrt((0.04 + 0.09 + 0.49) / 3),
        "client_dissimilarity": 2 / 3,
        "client_dissimilarity_noise": 2 * math.sqrt(0.25 / 3 / math.pi),
        "accuracy_gini": 4 / 9,
        "accuracy_jain_index": 0.6,
        "accuracy_entropy": -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3),
        "test_loss_mean_clients": 7 / 3,
        "test_loss_mean_examples": 2.2,
        "train_loss_mean_clients": 5.0,
        "train_loss_mean_examples": 5.5,
        "client_disagreement": 3.0,
        "participation_gini": 0.5,
        "num_clients_participated": 2.0,
    }
    chex.assert_trees_all_close(_summaries(metrics), expected, rtol=1e-6)


def test_before_the_first_round_only_the_cohort_is_undefined():
    metrics = _client_metrics(jax.random.key(3))
    start = metrics._replace(participation=jnp.zeros(12, jnp.int32), cohort=jnp.full(4, -1))
    undefined = {name for name, value in _summaries(start).items() if jnp.isnan(value)}
    assert undefined == {"client_disagreement"}
    assert _summaries(start)["participation_gini"] == 0


def test_summaries_describe_themselves():
    assert len({entry.name for entry in SUMMARIES}) == len(SUMMARIES)
    for entry in SUMMARIES:
        assert entry.name.isidentifier()
        assert entry.weighting in ("uniform", "examples")
        assert entry.description
        assert entry.unit
        assert entry.population


def test_bytes_count_state_and_each_dtype_and_never_overflow():
    variables = Variables(
        params={"kernel": jnp.zeros((3, 4)), "bias": jnp.zeros(4, jnp.bfloat16)},
        state={"mean": jnp.zeros(5)},
    )
    assert bytes_per_round(variables, 2) == 2 * (48 + 8 + 20)
    giant = Variables({"kernel": jax.ShapeDtypeStruct((100_000, 100_000), jnp.float32)}, {})
    assert bytes_per_round(giant, 1000) == 4 * 10**13


@pytest.mark.parametrize("cohort_size", [0, -1, True])
def test_bytes_reject_an_impossible_cohort(cohort_size):
    with pytest.raises(ValueError, match=f"cohort_size={cohort_size!r}"):
        bytes_per_round(Variables({}, {}), cohort_size)
