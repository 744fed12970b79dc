"""Metrics against their definitions, written out over all pairs in float64 NumPy."""

import itertools
import math
from itertools import combinations

import chex
import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair.metrics import (
    CLIENT_GROUP_SUMMARIES,
    SEQUENCE_SUMMARIES,
    SUMMARIES,
    bytes_per_round,
    fairness,
    performance,
)
from fedjax_fair.metrics.definitions import SYMBOLS
from fedjax_fair.results import RECORDED
from fedjax_fair.roles import ClientMetrics, Variables
from fedjax_fair.rounds.round_state import RoundState


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
compiled = jax.jit(lambda values: [metric(values) for metric in DEFINITIONS])
weighted = jax.jit(
    lambda *arrays: (performance.mean_over_examples(*arrays), fairness.sigma_acc(*arrays))
)
noise_floor = jax.jit(fairness.dissimilarity_noise)


def measure(values):
    """All metrics of values, by function: one compilation for each number of clients."""
    measured = compiled(np.asarray(values, np.float32))
    return dict(zip(DEFINITIONS, map(np.asarray, measured), strict=True))


def assert_defined(measured, values):
    for metric, definition in DEFINITIONS.items():
        np.testing.assert_allclose(
            measured[metric], definition(values), **TOLERANCE, err_msg=metric.__name__
        )


# Fractions of 128 are exact in float32, as are their differences and sums. Few sizes, because
# each compiles again; the number of clients in a tenth changes at 9, 10 and 11.
accuracies = hnp.arrays(
    np.int64, st.sampled_from([1, 2, 9, 10, 11, 31]), elements=st.integers(0, 128)
).map(lambda correct: correct / 128)
TOLERANCE = {"rtol": 5e-6, "atol": 5e-6}


@given(accuracies)
@settings(max_examples=50, deadline=None)
def test_each_metric_is_its_definition(values):
    assert_defined(measure(values), values)


@given(accuracies, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_nan_is_ignored_at_any_position(values, random):
    scattered = [*values, *[math.nan] * (40 - values.size)]
    random.shuffle(scattered)
    assert_defined(measure(scattered), values)


def test_vmap_changes_nothing():
    values = np.random.default_rng(0).uniform(size=(3, 40)).astype(np.float32)
    values[1, 4] = np.nan
    alone = [list(measure(row).values()) for row in values]
    # Reassociated float32 sums of 40 terms.
    np.testing.assert_allclose(np.transpose(jax.vmap(compiled)(values)), alone, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 40])
def test_no_client_to_measure_gives_nan(size):
    assert all(map(np.isnan, measure(np.full(size, np.nan)).values()))


@pytest.mark.parametrize("values", [[np.inf, 0.5], [np.inf, np.inf], [3e38, 3e38]], ids=str)
def test_evenness_relative_to_an_infinite_mean_is_undefined(values):
    """Otherwise all clients would seem equal, since their shares are all zero or all NaN."""
    measured = measure([*values, *[np.nan] * 38])
    assert all(np.isnan(measured[metric]) for metric in EVENNESS)


@given(accuracies, st.sampled_from([2.0**-8, 0.5, 1024.0]))
@settings(max_examples=25, deadline=None)
def test_evenness_does_not_depend_on_the_scale(values, factor):
    scaled, original = measure(values * factor), measure(values)
    for metric in EVENNESS:
        np.testing.assert_allclose(scaled[metric], original[metric], rtol=1e-6)


@given(accuracies)
@settings(max_examples=25, deadline=None)
def test_spread_does_not_depend_on_the_level(values):
    shifted, original = measure(values + 2), measure(values)
    for metric in (fairness.client_dissimilarity, fairness.standard_deviation):
        # The shifted values are exact (at most 9 bits); the sums are rounded.
        np.testing.assert_allclose(shifted[metric], original[metric], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_clients", [1, 2, 9, 1_000_000])
def test_equal_clients_are_perfectly_even(num_clients):
    for level in (0.0, 0.25):
        measured = measure(np.full(num_clients, level))
        assert measured[fairness.gini] == 0
        assert measured[fairness.jain_index] == 1
        np.testing.assert_allclose(measured[fairness.entropy], math.log(num_clients), rtol=1e-6)


@pytest.mark.parametrize("num_clients", [2, 9, 1_000_000])
def test_one_client_with_everything_is_the_extreme(num_clients):
    measured = measure(np.arange(num_clients) == num_clients // 2)
    for metric, expected in (
        (fairness.gini, 1 - 1 / num_clients),
        (fairness.jain_index, 1 / num_clients),
        (fairness.client_dissimilarity, 2 / num_clients),
    ):
        np.testing.assert_allclose(measured[metric], expected, rtol=1e-6)
    np.testing.assert_allclose(measured[fairness.entropy], 0.0, atol=2e-6)  # log n is up to 13.8


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
    measured = measure(values)
    for metric, value in expected.items():
        # A float32 rounding is 6e-8; a tree of 20 levels of additions stays within 20 of them.
        np.testing.assert_allclose(measured[metric], value, rtol=1.2e-6)


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
    got_pooled, got_sigma = weighted(accuracy.astype(np.float32), sizes.astype(np.int32))
    pooled, sigma = math.nan, math.nan
    if tested.any():
        pooled = np.average(accuracy[tested], weights=sizes[tested])
        sigma = np.sqrt(np.mean((accuracy[tested] - pooled) ** 2))
    np.testing.assert_allclose(got_pooled, pooled, rtol=1e-6)
    np.testing.assert_allclose(got_sigma, sigma, rtol=1e-5, atol=1e-6)


def test_sigma_differs_from_the_standard_deviation_by_the_shift_of_the_center():
    accuracy, sizes = np.array([0.9, 0.5], np.float32), np.array([100, 10], np.int32)
    pooled, sigma = weighted(accuracy, sizes)
    expected = np.hypot(np.std(accuracy), pooled - np.mean(accuracy))
    np.testing.assert_allclose(sigma, expected, rtol=1e-6)


def _noise_dissimilarity(truth, sizes, repeats=2000):
    """Mean pairwise difference of sampling noise alone, and the mean estimate of it."""
    rng = np.random.default_rng(1)
    measured = rng.binomial(sizes, truth, (repeats, sizes.size)) / sizes
    noise = np.sort(measured - truth, axis=1)
    n = sizes.size
    pairs = 2 * np.sum((2 * np.arange(n) + 1 - n) * noise, axis=1) / (n * (n - 1))
    estimate = jax.vmap(noise_floor, in_axes=(0, None))
    floors = estimate(measured.astype(np.float32), sizes.astype(np.int32))
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
    accuracy, sizes = np.array([0.5, 0.8, 1.0, np.nan], np.float32), np.array([11, 11, 1, 0])
    expected = 2 * math.sqrt((0.25 + 0.16) / 2 / 10 / math.pi)
    np.testing.assert_allclose(noise_floor(accuracy, sizes), expected, rtol=1e-6)
    assert np.isnan(noise_floor(accuracy, np.array([1, 11, 1, 0])))


def test_disagreement_is_over_the_slots_of_the_cohort():
    loss = np.array([0.5, 2.0, 0.75, 4.0, np.nan], np.float32)
    disagreement = jax.jit(fairness.client_disagreement)
    cases = {
        (1, 3, -1): 2.0,
        (3, 0, 1): (3.5 + 2.0 + 1.5) / 3,
        (0, 0, 1): (0.0 + 1.5 + 1.5) / 3,  # a repeated client counts twice
        (0, -1, 1): 1.5,  # an empty slot does not count
        (0, 4, 1): 1.5,  # nor does a client without test examples
        (0, -1, -1): math.nan,
        (-1, -1, -1): math.nan,
        (2,): math.nan,
    }
    for cohort, expected in cases.items():
        got = disagreement(loss, np.array(cohort))
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def _client_metrics(seed, num_clients=12):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 50, num_clients).astype(np.int32)
    sizes[3] = 0
    accuracy, loss, train_loss = rng.uniform(size=(3, num_clients)).astype(np.float32)
    accuracy[3] = loss[3] = np.nan
    return ClientMetrics(
        test_accuracy=accuracy,
        test_loss=loss,
        train_loss=train_loss,
        test_sizes=sizes,
        train_sizes=rng.integers(1, 50, num_clients).astype(np.int32),
        participation=rng.integers(0, 3, num_clients).astype(np.int32),
        cohort=np.array([0, 1, 2, 5], np.int32),
    )


@jax.jit
def _summaries(metrics):
    return {entry.name: entry.function(metrics) for entry in SUMMARIES}


def test_summaries_are_scalars_of_one_type_jitted_and_vmapped_over_seeds():
    seeds = [_client_metrics(seed) for seed in range(3)]
    jitted = jax.tree.map(lambda *leaves: np.stack(leaves), *map(_summaries, seeds))
    batched = jax.tree.map(lambda *leaves: np.stack(leaves), *seeds)
    vmapped = jax.vmap(_summaries)(batched)
    chex.assert_trees_all_close(vmapped, jitted, rtol=1e-6)
    chex.assert_tree_all_finite(jitted)
    for value in vmapped.values():
        chex.assert_shape(value, (3,))
        chex.assert_type(value, np.float32)


def test_summaries_do_not_depend_on_the_order_of_clients():
    metrics = _client_metrics(1)
    order = np.random.default_rng(2).permutation(metrics.test_sizes.size)
    moved = jax.tree.map(lambda leaf: leaf[order], metrics._replace(cohort=metrics.test_sizes))
    moved = moved._replace(cohort=np.argsort(order)[metrics.cohort].astype(np.int32))
    chex.assert_trees_all_close(_summaries(moved), _summaries(metrics), rtol=1e-6)


def test_summaries_read_the_right_columns():
    metrics = ClientMetrics(
        test_accuracy=np.float32([0.5, 1.0, np.nan, 0.0]),
        test_loss=np.float32([1.0, 2.0, np.nan, 4.0]),
        train_loss=np.float32([3.0, 5.0, 7.0, np.nan]),
        test_sizes=np.int32([2, 6, 0, 2]),
        train_sizes=np.int32([1, 1, 2, 9]),
        participation=np.int32([0, 0, 3, 3]),
        cohort=np.int32([3, 0, 2]),
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


def test_participation_is_described_as_a_number_of_times():
    """A client in two slots of a cohort trains twice in a round."""
    (gini,) = (metric for metric in SUMMARIES if metric.name == "participation_gini")
    assert gini.description == "Times trained, Gini index over clients"
    assert RECORDED["participation"] == ("client", "Times trained", "1")
    assert "trained r_i times" in SYMBOLS
    for documented in (ClientMetrics, RoundState):
        assert "participation: Times each client has trained" in documented.__doc__


def test_before_the_first_round_only_the_cohort_is_undefined():
    start = _client_metrics(3)._replace(
        participation=np.zeros(12, np.int32), cohort=np.full(4, -1, np.int32)
    )
    summaries = _summaries(start)
    assert [name for name, value in summaries.items() if np.isnan(value)] == ["client_disagreement"]
    assert summaries["participation_gini"] == 0


@jax.jit
def _with_groups(metrics):
    return {entry.name: entry.function(metrics) for entry in SUMMARIES + CLIENT_GROUP_SUMMARIES}


OF_PAIRS = {"client_dissimilarity", "client_dissimilarity_noise", "client_disagreement"}


@pytest.mark.parametrize(
    ("num_clients", "tested", "undefined"),
    [
        (1, 1, OF_PAIRS),  # Neither a pair of clients nor a second group.
        (
            12,
            0,
            {entry.name for entry in SUMMARIES + CLIENT_GROUP_SUMMARIES if "test_" in str(entry)},
        ),
        (12, 1, OF_PAIRS),
        (12, 12, set()),
    ],
)
def test_summaries_of_equal_or_unmeasured_clients(num_clients, tested, undefined):
    """In groups of one client each, with equal values of all that have test examples."""
    has_tests = np.arange(num_clients) < tested
    metrics = _client_metrics(0, 12)
    metrics = jax.tree.map(lambda leaf: leaf[:num_clients], metrics)._replace(
        test_accuracy=np.where(has_tests, np.float32(0.7), np.nan),
        test_loss=np.where(has_tests, np.float32(0.3), np.nan),
        test_sizes=np.where(has_tests, 5, 0).astype(np.int32),
        groups=np.arange(num_clients, dtype=np.int32),
    )
    summaries = _with_groups(metrics)
    participation = {"participation_gini", "num_clients_participated"}
    assert {name for name, value in summaries.items() if np.isnan(value)} == (
        undefined - participation
    )
    for name in ("accuracy_standard_deviation", "sigma_acc", "accuracy_gini", "group_accuracy_gap"):
        assert summaries[name] < 1e-6 or np.isnan(summaries[name])  # A mean is rounded.


def test_perplexities_equal_their_definitions():
    metrics = _client_metrics(5)
    losses, sizes = (np.asarray(values) for values in (metrics.test_loss, metrics.test_sizes))
    known = ~np.isnan(losses)
    each = np.exp(losses[known].astype(np.float64))
    expected = {
        "perplexity_pooled": np.prod(each ** (sizes[known] / sizes[known].sum())),
        "perplexity_mean_clients": each.mean(),
        "perplexity_worst_10pct": np.sort(each)[-math.ceil(each.size / 10) :].mean(),
        "perplexity_standard_deviation": each.std(),
        "perplexity_dissimilarity": np.mean([abs(a - b) for a, b in combinations(each, 2)]),
    }
    measured = {entry.name: entry.function(metrics) for entry in SEQUENCE_SUMMARIES}
    chex.assert_trees_all_close(measured, expected, rtol=1e-5)


def test_summaries_describe_themselves():
    every = SUMMARIES + SEQUENCE_SUMMARIES
    assert len({entry.name for entry in every}) == len(every)
    for entry in every:
        assert entry.name.isidentifier()
        assert entry.weighting in ("uniform", "examples")
        assert entry.description
        assert entry.unit
        assert entry.population


def test_bytes_count_state_and_each_dtype_and_never_overflow():
    variables = Variables(
        params={"kernel": np.zeros((3, 4), np.float32), "bias": np.zeros(4, jnp.bfloat16)},
        state={"mean": np.zeros(5, np.float32)},
    )
    assert bytes_per_round(variables, 2) == 2 * (48 + 8 + 20)
    giant = Variables({"kernel": jax.ShapeDtypeStruct((100_000, 100_000), jnp.float32)}, {})
    assert bytes_per_round(giant, 1000) == 4 * 10**13


@pytest.mark.parametrize("cohort_size", [0, -1, True])
def test_bytes_reject_an_impossible_cohort(cohort_size):
    with pytest.raises(ValueError, match=f"cohort_size={cohort_size!r}"):
        bytes_per_round(Variables({}, {}), cohort_size)


def test_loss_angles_are_those_of_vectors():
    losses = np.random.default_rng(0).exponential(size=7)
    cosine = losses.sum() / np.linalg.norm(losses) / np.sqrt(7)
    found = fairness.loss_angle(jnp.asarray([*losses, np.nan], jnp.float32))
    np.testing.assert_allclose(found, np.degrees(np.arccos(cosine)), rtol=1e-5)
    index = fairness.jain_index(jnp.asarray(losses, jnp.float32))
    np.testing.assert_allclose(jnp.cos(jnp.radians(found)) ** 2, index, rtol=1e-5)
    assert fairness.loss_angle(jnp.full(3, 0.7)) < 1e-4


@pytest.mark.parametrize(
    ("received", "expected"),
    [((79.8, 75.4, 69.0, 75.0), 0.901), ((74.6, 70.2, 70.2, 76.0), 0.537)],
)
def test_collaborative_fairness_is_a_correlation(received, expected):
    """Of a published table, with a client that has no test examples."""
    alone = jnp.array([75.2, 68.8, jnp.nan, 66.8, 69.0])
    received = jnp.insert(jnp.array(received), 2, 50.0)
    found = fairness.collaborative_fairness(alone, received)
    np.testing.assert_allclose(found, expected, atol=5e-4)
    known = np.array([0, 1, 3, 4])
    pair = np.corrcoef(np.asarray(alone)[known], np.asarray(received)[known])
    np.testing.assert_allclose(found, pair[0, 1], rtol=1e-4)
    assert jnp.isnan(fairness.collaborative_fairness(alone, jnp.ones(5)))
