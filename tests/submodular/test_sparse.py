"""Functions of sparse similarities equal those of the dense matrix."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.base import clone

from fedjax_fair import submodular as sm
from fedjax_fair.submodular import checked_arrays, estimators
from fedjax_fair.submodular.greedy import _greedy

RNG = np.random.default_rng(0)
POINTS, ITEMS = 90, 140  # Lists longer than what is gone through at a time.


def random_similarity(seed, points=POINTS, items=ITEMS):
    """Integers, so that sums are exact; some lists are empty, some full."""
    present = np.random.default_rng(0).random((points, items)) < 0.08
    present[3], present[:, 5] = True, True
    present[7], present[:, 11] = False, False
    values = np.random.default_rng(seed).integers(1, 9, (points, items))
    return (values * present).astype(np.float32)


def symmetric(seed):
    matrix = random_similarity(seed, ITEMS)
    return matrix + matrix.T


FUNCTIONS = {
    "location": (sm.facility_location, random_similarity),
    "weighted": (
        partial(sm.facility_location, weights=RNG.integers(0, 4, POINTS)),
        random_similarity,
    ),
    "saturated": (partial(sm.saturated_coverage, saturation=0.5), random_similarity),
    "cut": (partial(sm.graph_cut, tradeoff=1.0), symmetric),
}


@partial(jax.jit, static_argnames=("name", "maximize", "k"))
def maximized(similarity, name, maximize, k):
    return maximize(FUNCTIONS[name][0](similarity), k)


@pytest.mark.parametrize(
    ("name", "maximize"),
    [
        *((name, sm.greedy) for name in FUNCTIONS),
        ("location", sm.lazy_greedy),
        ("saturated", sm.lazy_greedy),
        ("cut", sm.lazy_greedy),
    ],
)
def test_greedy_selects_as_of_the_dense_matrix(name, maximize):
    for seed in range(3):
        dense = FUNCTIONS[name][1](seed)
        lists = sm.sparse_similarity(sparse.coo_array(dense))
        thin = maximized(lists, name, maximize, 60)
        full = maximized(dense, name, maximize, 60)
        jax.tree.map(np.testing.assert_array_equal, thin, full)


def test_rounding_errors_do_not_accumulate():
    """Gains decrease to a thousandth after the first item, and stay accurate."""
    dense = (1 - 1e-3 * np.random.default_rng(0).random((60, 300))).astype(np.float32)
    chosen = maximized(sm.sparse_similarity(sparse.csr_array(dense)), "location", sm.greedy, 40)
    best = np.zeros(60)
    for item, gain in zip(*map(np.asarray, chosen[:2]), strict=True):
        gains = np.maximum(dense - best[:, None], 0).sum(axis=0, dtype=float)
        np.testing.assert_allclose(gain, gains[item], rtol=1e-5)
        assert gains[item] >= gains.max() * (1 - 1e-5)  # Rounding may decide between equal ones.
        best = np.maximum(best, dense[:, item])


ROWS = np.random.default_rng(1).normal(size=(30, 4))
ESTIMATORS = {
    "location": estimators.FacilityLocation(8),
    "saturated": estimators.SaturatedCoverage(8, 0.4),
    "cut": estimators.GraphCut(8, 1.0),
}


def neighborhoods(metric, symmetric):
    """Similarities to the row and its five nearest neighbors, by definition."""
    apart = cdist(ROWS, ROWS, "euclidean" if metric == "rbf" else metric)
    inside = apart.argsort(axis=1).argsort(axis=1) <= 5
    if metric == "rbf":
        near = np.exp(-(apart**2) / 4)
    elif metric == "correlation":
        near = 1 - apart / 2
    else:
        near = apart[inside].max() - apart
    near = np.where(inside, near, 0)
    return np.maximum(near, near.T) if symmetric else near


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        *(("location", metric) for metric in ("euclidean", "sqeuclidean", "correlation", "rbf")),
        ("saturated", "correlation"),
        ("cut", "euclidean"),
        ("cut", "rbf"),
    ],
)
def test_rows_are_similar_to_neighbors_only(name, metric):
    model = clone(ESTIMATORS[name]).set_params(metric=metric, n_neighbors=5).fit(ROWS)
    dense = neighborhoods(metric, symmetric=name == "cut")
    given = clone(ESTIMATORS[name]).set_params(metric="precomputed").fit(dense)
    assert model.ranking_.tolist() == given.ranking_.tolist()
    np.testing.assert_allclose(model.gains_, given.gains_, rtol=1e-4, atol=1e-5)


def test_neighbors_are_weighted_and_fitting_again_compiles_nothing():
    weights = np.arange(30) % 4
    model = estimators.FacilityLocation(8, n_neighbors=5).fit(ROWS, sample_weight=weights)
    given = estimators.FacilityLocation(8, "precomputed")
    dense = given.fit(neighborhoods("euclidean", symmetric=False), sample_weight=weights)
    assert model.ranking_.tolist() == dense.ranking_.tolist()
    compiled = _greedy._cache_size()
    again = clone(model).fit(ROWS[::-1], sample_weight=weights[::-1])
    assert (29 - again.ranking_).tolist() == model.ranking_.tolist()
    assert _greedy._cache_size() == compiled


def test_sparse_similarities_are_never_dense(monkeypatch):
    near = sparse.csr_array(neighborhoods("rbf", symmetric=True))
    monkeypatch.setattr(sparse.csr_array, "toarray", None)
    for model in ESTIMATORS.values():
        given = clone(model).set_params(metric="precomputed").fit(near)
        made = clone(model).set_params(metric=lambda rows: near).fit(ROWS)
        assert given.ranking_.tolist() == made.ranking_.tolist()


# The first as JAX would take it without a copy.
@pytest.mark.parametrize("form", [checked_arrays._aligned_copy, sparse.csr_array, sparse.csc_array])
def test_arguments_are_copied(form):
    given = form(np.ones((40, 2), np.float32))
    function = sm.facility_location(given)
    (given.data if sparse.issparse(given) else given)[:] = 0
    assert sm.greedy(function, 1).value == 40


def test_explicit_zeros_and_repeated_entries_are_as_in_scipy():
    repeated = (np.float32([1, 2, 0, 4]), [1, 1, 0, 2], [0, 2, 3, 4])  # Rows as compressed.
    function = sm.facility_location(sparse.csr_array(repeated, shape=(3, 3)))
    nothing = sm.saturated_coverage(sparse.csr_array((2, 3)), 0.5)

    @jax.jit
    def gains(function, nothing):
        value = function.value(jnp.array([False, True, False]))
        return value, function.gains(function.init()), nothing.gains(nothing.init())

    value, some, none = gains(function, nothing)
    assert (float(value), some.tolist(), none.tolist()) == (3, [0, 3, 4], [0, 0, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: sm.facility_location(sparse.csr_array([[0.0, 1.0], [0.0, -2.0]])),
            r"similarity\[",
        ),
        (lambda: sm.facility_location(sparse.coo_array([[np.nan]])), r"similarity\["),
        (lambda: sm.facility_location(sparse.csr_array((0, 3))), r"\[points, items\], got \(0, 3"),
        (
            lambda: sm.facility_location(sparse.csr_array(np.eye(3)), weights=[1.0]),
            "weights:",
        ),
        (lambda: sm.graph_cut(sparse.csr_array(np.ones((2, 3)))), "a square matrix, got .*2, 3"),
        (lambda: sm.graph_cut(sparse.csr_array([[0, 1], [2, 0]])), "a symmetric matrix"),
        (lambda: sm.graph_cut(sparse.csr_array([[0, 1], [0, 1]])), "a symmetric matrix"),
        (
            lambda: estimators.FacilityLocation(1, n_neighbors=30).fit(ROWS),
            "n_neighbors=30",
        ),
        (
            lambda: estimators.SaturatedCoverage(1, n_neighbors=0).fit(ROWS),
            "n_neighbors=0",
        ),
        (
            lambda: estimators.FacilityLocation(1, "precomputed", 5).fit(np.eye(9)),
            "n_neighbors=5",
        ),
        (
            lambda: estimators.GraphCut(1, metric="precomputed").fit(
                sparse.csr_array([[0, 1.0], [0, 0]])
            ),
            "X:",
        ),
        (
            lambda: estimators.FacilityLocation(1, "precomputed").fit(
                sparse.csr_array([[0, -1.0]])
            ),
            r"X\[",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
