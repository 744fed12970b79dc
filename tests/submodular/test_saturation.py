"""Gains after saturation: a duplicate adds exactly 0, in every form and by every maximizer."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from fedjax_fair import selectors
from fedjax_fair import submodular as sm
from fedjax_fair.submodular import estimators, federated, matroids

NUM_ROWS, COPIES = 40, 8
SIZE = NUM_ROWS * COPIES


def rows_of(seed=1, order="together", shift=0.0):
    distinct = np.random.default_rng(seed).normal(size=(NUM_ROWS, 6)) + shift
    rows = np.repeat(distinct, COPIES, axis=0)
    return rows if order == "together" else rows[np.random.default_rng(seed).permutation(SIZE)]


def distances_of(rows):
    return cdist(rows, rows).astype(np.float32)


def similarity_of(rows):
    return np.exp(-distances_of(rows))


def gains_by_definition(items, similarity, weights, floor):
    """The gain of each item and the largest gain at its step, in double precision."""
    similarity = similarity.astype(np.float64)
    best, gains, largest = np.zeros(len(similarity)) + floor, [], []
    for item in items:
        all_gains = weights @ np.maximum(similarity - best[:, None], 0)
        gains.append(all_gains[item])
        largest.append(all_gains.max())
        best = np.maximum(best, similarity[:, item])
    return np.array(gains), np.array(largest)


WEIGHTS = np.random.default_rng(3).random(SIZE).astype(np.float32)
FORMS = {
    "similarity": lambda rows: sm.FacilityLocation(similarity_of(rows)),
    "weighted similarity": lambda rows: sm.facility_location(similarity_of(rows), WEIGHTS),
    "sparse": lambda rows: sm.facility_location(csr_array(similarity_of(rows))),
    "weighted sparse": lambda rows: sm.facility_location(csr_array(similarity_of(rows)), WEIGHTS),
    "distances": lambda rows: sm.facility_location_from_distances(distances_of(rows)),
    "weighted distances": lambda rows: sm.facility_location_from_distances(
        distances_of(rows), WEIGHTS
    ),
    "features": sm.facility_location_from_features,
    "weighted features": lambda rows: sm.facility_location_from_features(rows, weights=WEIGHTS),
    "scaled sum": lambda rows: sm.Scaled(
        sm.Sum((sm.facility_location_from_distances(distances_of(rows)),)), 1 / SIZE
    ),
    "federated": lambda rows: federated.facility_location(similarity_of(rows)).total(
        jnp.asarray(WEIGHTS)
    ),
    "federated sparse": lambda rows: federated.facility_location(
        federated.sparse_scores(
            *np.indices((SIZE, SIZE)).reshape(2, -1),
            similarity_of(rows).ravel(),
            num_clients=SIZE,
            size=SIZE,
        )
    ).total(jnp.asarray(WEIGHTS)),
}


@pytest.mark.parametrize("order", ["together", "mixed"])
@pytest.mark.parametrize("form", FORMS)
def test_as_many_gains_are_positive_as_there_are_different_rows(form, order):
    function = FORMS[form](rows_of(order=order))
    result = sm.greedy(function, 80)
    gains = np.asarray(result.gains)
    assert (gains[:NUM_ROWS] > 0).all()
    np.testing.assert_array_equal(gains[NUM_ROWS:], 0)
    # Equal gains go to the smallest index, so that the rest ascends.
    rest = np.asarray(result.items[NUM_ROWS:])
    np.testing.assert_array_equal(rest, np.sort(rest))
    for maximize in (sm.greedy, sm.lazy_greedy):
        limited = maximize(function, 80, min_gain=1e-12)
        assert (np.asarray(limited.items) >= 0).sum() == NUM_ROWS
        np.testing.assert_array_equal(limited.items[:NUM_ROWS], result.items[:NUM_ROWS])
    np.testing.assert_array_equal(sm.lazy_greedy(function, 80).items, result.items)


@pytest.mark.parametrize("form", ["similarity", "sparse", "weighted distances", "distances"])
def test_small_gains_are_those_of_double_precision(form):
    rows, weights = rows_of(2, "mixed"), WEIGHTS if "weighted" in form else np.ones(SIZE)
    near = -distances_of(rows) if "distances" in form else similarity_of(rows)
    result = sm.greedy(FORMS[form](rows), 60)
    floor = near.min(axis=1) if "distances" in form else 0.0
    gains, largest = gains_by_definition(np.asarray(result.items), near, weights, floor)
    np.testing.assert_allclose(result.gains, gains, rtol=2e-5, atol=0)
    np.testing.assert_allclose(gains, largest, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32, np.float64, int])
@pytest.mark.parametrize("size", [64, SIZE])
def test_rows_of_every_type_saturate(dtype, size):
    distinct = (np.random.default_rng(4).normal(size=(size // COPIES, 6)) * 20).astype(dtype)
    rows = np.repeat(distinct, COPIES, axis=0)
    if dtype == np.float16:
        rows = rows / 20  # A sum of all elements must be finite.
    as_double = rows.astype(np.float64)
    for function in (
        sm.facility_location_from_features(rows),
        sm.facility_location_from_distances(cdist(as_double, as_double)),
    ):
        items = np.asarray(sm.greedy(function, size, min_gain=0).items)
        assert (items >= 0).sum() == size // COPIES


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine", "rbf", "correlation"])
@pytest.mark.parametrize("n_neighbors", [None, 20])
def test_estimators_report_gains_of_different_rows_only(metric, n_neighbors):
    estimator = estimators.FacilityLocation(80, metric, n_neighbors).fit(rows_of(shift=5.0))
    assert (estimator.gains_ > 0).sum() == NUM_ROWS
    np.testing.assert_array_equal(estimator.gains_[NUM_ROWS:], 0)


def test_features_know_equal_rows_of_equal_sums():
    """Rows that permute the same numbers have equal lengths, and some are equal."""
    rng = np.random.default_rng(0)
    distinct = np.unique(np.array([rng.permutation(np.arange(7.0)) for _ in range(40)]), axis=0)
    rows = rng.permutation(np.repeat(distinct, 4, axis=0))
    result = sm.greedy(sm.facility_location_from_features(rows), len(rows), min_gain=0)
    assert (np.asarray(result.items) >= 0).sum() == len(distinct)


def test_features_that_do_not_count_or_are_invalid_are_no_duplicates():
    rows = np.repeat(np.random.default_rng(5).normal(size=(6, 3)), 2, axis=0)
    first = np.arange(12) % 2 == 0
    by_first = sm.facility_location_from_features(rows, valid_items=first)
    result = sm.greedy(by_first, 11, initial_items=[1])
    np.testing.assert_array_equal(np.asarray(result.items)[:6] % 2, 0)
    assert (np.asarray(result.gains) > 0).sum() == 6
    by_second = sm.facility_location_from_features(rows, counted=~first)
    reference = sm.facility_location_from_distances(cdist(rows, rows), weights=~first)
    result, expected = sm.greedy(by_second, 8), sm.greedy(reference, 8)
    np.testing.assert_array_equal(result.items, expected.items)
    np.testing.assert_allclose(result.gains, expected.gains, rtol=1e-3)


MAXIMIZERS = {
    "stochastic": lambda f: sm.stochastic_greedy(
        jax.random.key(0), f, SIZE, candidates=SIZE // 2, min_gain=0
    ),
    "matroid": lambda f: sm.greedy(
        f, matroid=matroids.Partition(np.arange(SIZE) % 2, [SIZE // 2, SIZE // 2]), min_gain=0
    ),
    "lazy matroid": lambda f: sm.lazy_greedy(f, matroid=matroids.Uniform(80, SIZE), min_gain=0),
    "budget": lambda f: sm.greedy(f, costs=np.ones(SIZE), budget=100.0, min_gain=0),
    "random": lambda f: sm.random_greedy(jax.random.key(0), f, SIZE),
    "distorted": lambda f: sm.distorted_greedy(f, np.zeros(SIZE), 80),
    "double": lambda f: sm.double_greedy(jax.random.key(0), f),
    "threshold": lambda f: sm.threshold_greedy(f, 80, 0.5),
}


@pytest.mark.parametrize("form", ["similarity", "sparse", "distances", "features"])
@pytest.mark.parametrize("name", MAXIMIZERS)
def test_maximizers_add_no_duplicate_for_its_gain(name, form):
    gains = np.asarray(MAXIMIZERS[name](FORMS[form](rows_of(6))).gains)
    assert (gains > 0).sum() <= NUM_ROWS
    assert (gains[gains != 0] > 1e-4).all()


def test_stacked_functions_saturate():
    stacked = jax.tree.map(
        lambda *parts: jnp.stack(parts), *(FORMS["distances"](rows_of(seed)) for seed in range(3))
    )
    gains = jax.jit(jax.vmap(lambda function: sm.greedy(function, 60)))(stacked).gains
    assert ((np.asarray(gains) > 0).sum(axis=1) == NUM_ROWS).all()


def test_gains_of_a_stream_of_duplicates():
    points = rows_of()[::COPIES]
    batches = np.split(np.exp(-cdist(rows_of(), points)), 10)
    result = sm.sieve_batches(lambda batch: sm.FacilityLocation(batch.T), batches, 60, 0.1)
    assert (np.asarray(result.gains) > 0).sum() <= NUM_ROWS


def test_small_amounts_of_large_features_have_the_gains_of_double_precision():
    amounts = np.array([[1e6, 3e7], [1e-2, 0.0], [0.0, 2.0], [3e-3, 1e-3]], np.float32)
    exact = amounts.astype(np.float64)
    for name, concave in {"sqrt": np.sqrt, "log1p": np.log1p}.items():
        function = sm.FeatureBased(amounts, name)
        gains = function.gains(function.add(function.init(), 0))
        with np.errstate(all="ignore"):
            expected = (concave(exact[0] + exact) - concave(exact[0])).sum(axis=1)
        np.testing.assert_allclose(gains[1:], expected[1:], rtol=2e-6)
    assert sm.FeatureBased(np.zeros((2, 2))).gains(jnp.zeros(2)).tolist() == [0, 0]


@pytest.mark.parametrize("total", [0.0, 1e3, 1e6])
def test_a_bonus_far_from_its_bound_is_the_gain(total):
    weights = np.array([total, 0.1, 0.2, 3e-4], np.float32)
    function = sm.truncated_modular(weights, bound=1e9)
    memo = function.add(function.init(), 0)
    np.testing.assert_array_equal(function.gains(memo)[1:], weights[1:])
    bounded = sm.truncated_modular(weights, bound=total)
    np.testing.assert_array_equal(bounded.gains(bounded.add(bounded.init(), 0))[1:], 0)


def test_items_that_share_nothing_with_a_query_have_no_mutual_information():
    rows = np.repeat(np.random.default_rng(0).normal(size=(2, 6)), SIZE // 2, axis=0)
    similarity = np.exp(-0.1 * np.abs(np.random.default_rng(1).normal(size=(SIZE, SIZE))))
    similarity *= cdist(rows, rows) == 0
    function = sm.MutualInformation(sm.FacilityLocation(similarity), query=[0, 3, 5])
    memo = function.init()
    for item in (1, SIZE // 2 + 3, SIZE // 2 + 8, 7):
        memo = function.add(memo, item)
    np.testing.assert_array_equal(function.gains(memo)[SIZE // 2 :], 0)


@pytest.mark.parametrize("pool", [None, 60])
def test_a_cohort_of_duplicates_is_not_decided_by_noise(pool):
    """Twelve different gradients: the cohort has all of them, then the smallest ids."""
    rng = np.random.default_rng(2)
    kind = rng.permutation(np.arange(60) % 12)
    gradients = jnp.asarray(rng.normal(size=(12, 300)).astype(np.float32)[kind])
    selector = selectors.DivFL(20, candidates="all", pool=pool)
    context = mock.Mock(num_clients=60, available=None)
    source = mock.Mock(updates_only_responders=False)
    source.read.return_value = (mock.Mock(gradient=gradients, loss=jnp.ones(60)), ())
    with mock.patch.object(selectors.DivFL, "_source", source):
        cohort, _, _ = selector.select(jax.random.key(0), ((), (), ()), context)
    ids = np.asarray(cohort.clients)
    assert len(set(kind[ids[:12]])) == 12
    np.testing.assert_array_equal(ids[12:], np.setdiff1d(np.arange(60), ids[:12])[:8])
