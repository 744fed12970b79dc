"""Estimators: greedy on definitions in double precision, and the conventions of scikit-learn."""

from functools import partial

import jax
import numpy as np
import pytest
from compilations import compilations
from rich.progress import Progress
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from fedjax_fair.submodular import MaximizationResult, estimators
from fedjax_fair.submodular.estimators import base_estimator, metrics
from fedjax_fair.submodular.estimators import similarities as similarity_estimators

POINTS = np.random.default_rng(0).normal(size=(12, 4))
AMOUNTS = np.random.default_rng(1).gamma(1.0, size=(12, 4)) * (POINTS > -0.5)
MEMBERSHIP = (POINTS > 0.5).astype(int)
WEIGHTS = np.random.default_rng(2).gamma(1.0, size=12)
K = 4


def similarities(points, metric):
    """Similarities by the documentation of ``FacilityLocation``."""
    if metric == "rbf":
        return np.exp(-cdist(points, points, "sqeuclidean") / points.shape[1])
    distances = cdist(points, points, metric)
    if metric in ("cosine", "correlation"):
        return 1 - distances / 2  # Of which the distance is 1 - r.
    return distances.max() - distances


def reduction(metric, weights, items):
    distances = cdist(POINTS, POINTS, metric)
    farthest = distances.max(axis=1, keepdims=True)
    return weights @ (farthest[:, 0] - np.hstack([farthest, distances[:, items]]).min(axis=1))


def location(metric, weights, items):
    return weights @ similarities(POINTS, metric)[:, items].max(axis=1, initial=0)


def saturated(items):
    near = similarities(POINTS, "correlation")
    return np.minimum(near[:, items].sum(axis=1), 0.2 * near.sum(axis=1)).sum()


def cut(items):
    near = similarities(POINTS, "cosine")
    return 2.5 * near[items].sum() - near[np.ix_(items, items)].sum()


def volume(items):
    return np.linalg.slogdet(
        np.eye(len(items)) + similarities(POINTS, "rbf")[np.ix_(items, items)]
    )[1]


EVEN = np.ones(12)
# name: (estimator, data, value of a list of items by definition)
ESTIMATORS = {
    "euclidean": (estimators.FacilityLocation(K), POINTS, partial(reduction, "euclidean", EVEN)),
    "sqeuclidean": (
        estimators.FacilityLocation(K, metric="sqeuclidean"),
        POINTS,
        partial(reduction, "sqeuclidean", EVEN),
    ),
    "cosine": (
        estimators.FacilityLocation(K, metric="cosine"),
        POINTS,
        partial(location, "cosine", EVEN),
    ),
    "saturated": (estimators.SaturatedCoverage(K, 0.2, metric="correlation"), POINTS, saturated),
    "cut": (estimators.GraphCut(K, 2.5, metric="cosine"), POINTS, cut),
    "volume": (estimators.LogDet(K), POINTS, volume),
    "features": (
        estimators.FeatureBased(K, "log1p", weights=WEIGHTS[:4]),
        AMOUNTS,
        lambda items: np.log1p(AMOUNTS[items].sum(axis=0)) @ WEIGHTS[:4],
    ),
    "coverage": (
        estimators.MaxCoverage(3, weights=WEIGHTS[:4]),
        MEMBERSHIP,
        lambda items: MEMBERSHIP[items].any(axis=0) @ WEIGHTS[:4],
    ),
}


def check_greedy(model, value, size=12):
    """Checks that every selection is the best by definition and has the stated gain."""
    items = []
    for item, gain in zip(model.ranking_.tolist(), model.gains_, strict=True):
        gains = np.array([value([*items, j]) - value(items) for j in range(size)])
        assert item not in items
        assert gains[item] >= np.delete(gains, items).max() - 1e-4
        np.testing.assert_allclose(gain, gains[item], rtol=1e-3, atol=1e-4)
        items.append(item)
    assert len(items) == model.k


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_are_selected_by_the_definition(name):
    model, data, value = ESTIMATORS[name]
    check_greedy(clone(model).fit(data), value)
    with compilations() as compiled:
        again = clone(model).fit(data[::-1])
    check_greedy(again, lambda items: value([11 - item for item in items]))
    assert not compiled


@pytest.mark.parametrize("name", ESTIMATORS)
def test_sparse_rows_are_selected_as_dense_ones(name):
    model, data, _ = ESTIMATORS[name]
    dense, thin = clone(model).fit(data), clone(model)
    selected = thin.fit_transform(sparse.coo_array(data))
    assert thin.ranking_.tolist() == dense.ranking_.tolist()
    np.testing.assert_array_equal(selected.toarray(), data[dense.ranking_])


def test_metrics_are_those_of_scipy():
    @jax.jit
    def solve(rows):
        return {metric: metrics.similarities(rows[metric], metric) for metric in rows}

    far = POINTS + np.where(np.arange(4) == 0, 3e4, 0)  # Which euclidean distances do not see.
    for points in (POINTS, far):
        by_metric = solve({metric: metrics.prepared(points, metric) for metric in metrics.METRICS})
        for metric, near in by_metric.items():
            np.testing.assert_allclose(near, similarities(points, metric), rtol=1e-4, atol=1e-5)


GIVEN = [
    estimators.FacilityLocation(K, metric="precomputed"),
    estimators.SaturatedCoverage(K, 0.4, metric="precomputed"),
    estimators.GraphCut(K, metric="precomputed"),
    estimators.LogDet(K, metric="precomputed"),
]


@pytest.mark.parametrize("model", GIVEN, ids=lambda model: type(model).__name__)
def test_similarities_are_precomputed_computed_or_named(model):
    near = similarities(POINTS, "rbf")
    given = clone(model).fit(near)
    computed = clone(model).set_params(metric=partial(similarities, metric="rbf")).fit(POINTS)
    named = clone(model).set_params(metric="rbf").fit(POINTS)
    thin = clone(model).fit(sparse.csr_matrix(near))
    for other in (computed, named, thin):
        assert other.ranking_.tolist() == given.ranking_.tolist()
        np.testing.assert_allclose(other.gains_, given.gains_, rtol=1e-4, atol=1e-5)


class TestFacilityLocation:
    def test_rows_far_from_the_origin_stay_distinct(self):
        model, far = (
            estimators.FacilityLocation(K).fit(POINTS),
            estimators.FacilityLocation(K).fit(POINTS + 1e7),
        )
        assert far.ranking_.tolist() == model.ranking_.tolist()
        np.testing.assert_allclose(far.gains_, model.gains_, rtol=1e-5)
        line = np.array([[0.0], [0.1], [1.0], [1.1]]) + 1e7
        first, second = estimators.FacilityLocation(2).fit(line).ranking_
        assert first in (1, 2)  # Which are equally near to all, and then one of the other pair.
        assert (second >= 2) == (first == 1)

    def test_takes_rectangular_similarities(self):
        near = np.random.default_rng(0).integers(0, 20, (9, 7))
        model = estimators.FacilityLocation(3, metric="precomputed").fit(near)
        check_greedy(model, lambda items: near[:, items].max(axis=1, initial=0).sum(), 7)
        assert model.transform(np.arange(7)).tolist() == model.ranking_.tolist()
        with pytest.raises(ValueError, match="X:"):
            model.transform(near)

    def test_a_weight_counts_as_repeated_rows(self):
        rng = np.random.default_rng(0)
        near, weights = rng.integers(0, 20, (9, 7)), rng.integers(0, 4, 9)
        model = estimators.FacilityLocation(3, metric="precomputed")
        weighted = clone(model).fit(near, sample_weight=weights)
        repeated = clone(model).fit(np.repeat(near, weights, axis=0))
        assert weighted.ranking_.tolist() == repeated.ranking_.tolist()
        assert weighted.gains_.tolist() == repeated.gains_.tolist()

    @pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
    def test_distances_are_weighted(self, metric):
        model = estimators.FacilityLocation(K, metric=metric).fit(POINTS, sample_weight=WEIGHTS)
        check_greedy(model, partial(reduction, metric, WEIGHTS))

    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    def test_makes_no_matrix_of_many_rows(self, monkeypatch, weights):
        exact = estimators.FacilityLocation(K).fit(POINTS, sample_weight=weights).ranking_
        monkeypatch.setattr(similarity_estimators, "_MATRIX", 11)
        monkeypatch.setattr(similarity_estimators, "pairwise_distances", None)
        similarity_estimators._facility_location.clear_cache()
        many = estimators.FacilityLocation(K).fit(POINTS, sample_weight=weights)
        np.testing.assert_array_equal(many.ranking_, exact)
        similarity_estimators._facility_location.clear_cache()


def test_the_progress_bar_counts_items_and_changes_nothing(capsys, monkeypatch):
    moves = []
    advance = Progress.advance
    monkeypatch.setattr(
        Progress, "advance", lambda bar, task: (moves.append(task), advance(bar, task))
    )
    quiet = estimators.FacilityLocation(K).fit(POINTS)
    assert capsys.readouterr() == ("", "")
    shown = estimators.FacilityLocation(K, verbose=True)
    for _ in range(2):  # The second fit reuses the compiled function with another bar.
        moves.clear()
        shown.fit(POINTS)
        out, err = capsys.readouterr()
        assert (out, len(moves)) == ("", K - 1)
        assert f"{K}/{K}" in err
        np.testing.assert_array_equal(shown.ranking_, quiet.ranking_)
        np.testing.assert_array_equal(shown.gains_, quiet.gains_)


def test_transform_selects_rows_of_any_array():
    model = estimators.MaxCoverage(2)
    with pytest.raises(NotFittedError):
        model.transform(MEMBERSHIP)
    model.fit(MEMBERSHIP)
    labels = np.array([f"row {i}" for i in range(12)])
    assert model.transform(labels).tolist() == [f"row {i}" for i in model.ranking_]


# Checks of scikit-learn that cannot apply, and why.
OTHERWISE = (
    dict.fromkeys(
        ["check_transformer_data_not_an_array", "check_transformer_general"],
        "transform returns fewer rows than it is given",
    )
    | dict.fromkeys(
        ["check_n_features_in_after_fitting", "check_estimators_nan_inf"],
        "transform selects rows of anything that has a row for each item",
    )
    | dict.fromkeys(
        [
            "check_methods_sample_order_invariance",
            "check_methods_subset_invariance",
            "check_fit_idempotent",
            "check_fit2d_predict1d",
        ],
        "transform takes a row for each item, and no others",
    )
)
OF_AMOUNTS = {"check_positive_only_tag_during_fit": "the error names the negative entry instead"}
OF_WEIGHTS = dict.fromkeys(
    [
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ],
    "transform takes a row for each item; a weight counts as repeated rows in a test above",
)


class Thresholded(estimators.MaxCoverage):
    """Maximum coverage for the amounts that scikit-learn's checks generate."""

    def _validated(self, X):
        values = super()._validated(X)
        return np.where(values < 0, values, values > 1)


class Rows:
    """Stands for a function, so that nothing is compiled for each of the many shapes of data."""

    def __init__(self, rows):
        self.size = rows.shape[0]


def first_rows(function, k):
    return MaximizationResult(np.arange(k), np.zeros(k), 0.0, 0)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("make", "others", "selects"),
    [
        (estimators.FacilityLocation, OF_WEIGHTS, True),
        (partial(estimators.FacilityLocation, n_neighbors=1), OF_WEIGHTS, False),
        (estimators.SaturatedCoverage, {}, False),
        (estimators.GraphCut, {}, False),
        (estimators.LogDet, {}, False),
        (estimators.FeatureBased, OF_AMOUNTS, False),
        (Thresholded, OF_AMOUNTS, True),
    ],
)
def test_conventions_are_kept(make, others, selects, monkeypatch):
    """Conventions concern input and attributes, which estimators of similarities share."""
    if not selects:
        monkeypatch.setattr(base_estimator, "greedy", first_rows)
        monkeypatch.setattr(similarity_estimators, "_build", lambda make, rows, *_: Rows(rows))
        monkeypatch.setattr(
            similarity_estimators, "_facility_location", lambda rows, *_: Rows(rows)
        )
    expected = OTHERWISE | others
    results = check_estimator(make(1), expected_failed_checks=expected, on_skip=None)
    failed = {result["check_name"] for result in results if result["status"] == "xfail"}
    assert failed == set(expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_parameters_are_copied_and_shown(name):
    model = ESTIMATORS[name][0]
    assert repr(clone(model)) == repr(model)
    assert f"k={model.k}" in repr(model)
    assert model.set_params(k=model.k) is model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: estimators.FacilityLocation(0).fit(POINTS), "k=0"),
        (lambda: estimators.FacilityLocation(5).fit(np.zeros((4, 2))), "k=5"),
        (lambda: estimators.FacilityLocation(1).fit(np.zeros(4)), "Expected 2D array, got 1D"),
        (lambda: estimators.FacilityLocation(1).fit([[np.nan]]), "Input X contains NaN"),
        (
            lambda: estimators.FacilityLocation(1, metric="precomputed").fit([[-1.0]]),
            r"X\[",
        ),
        (
            lambda: estimators.FacilityLocation(1, metric="cube").fit(POINTS),
            "metric='cube'",
        ),
        (
            lambda: estimators.FacilityLocation(1).fit(POINTS, sample_weight=[1.0]),
            "sample_weight:",
        ),
        (
            lambda: estimators.FacilityLocation(1).fit(POINTS, sample_weight=-EVEN),
            r"sample_weight\[0\]=",
        ),
        (
            lambda: estimators.FacilityLocation(1).fit(POINTS, sample_weight=0 * EVEN),
            "sample_weight:",
        ),
        (
            lambda: estimators.FacilityLocation(1, metric=lambda X: -X).fit(AMOUNTS + 1),
            r"X\[",
        ),
        (
            lambda: estimators.GraphCut(1, metric="precomputed").fit(POINTS**2),
            "X:",
        ),
        (
            lambda: estimators.LogDet(1).set_params(verbose="on").fit(POINTS),
            "verbose='on'",
        ),
        (lambda: estimators.GraphCut(1, tradeoff=-1).fit(POINTS), "tradeoff=-1"),
        (lambda: estimators.SaturatedCoverage(1, saturation=-1).fit(POINTS), "saturation=-1"),
        (
            lambda: estimators.LogDet(1, metric="euclidean").fit(POINTS),
            "metric='euclidean'",
        ),
        (
            lambda: estimators.LogDet(1, metric="precomputed").fit([[0.0, 1.0], [1.0, 0.0]]),
            "X:",
        ),
        (
            lambda: estimators.GraphCut(1, metric="cosine").fit([[1.0], [0.0]]),
            "X:",
        ),
        (
            lambda: estimators.GraphCut(1, metric="correlation").fit([[1.0, 2.0], [0.1, 0.1]]),
            "X:",
        ),
        (
            lambda: estimators.FeatureBased(1).fit(POINTS),
            r"X\[",
        ),
        (lambda: estimators.FeatureBased(1, "cube").fit(AMOUNTS), "concave='cube'"),
        (
            lambda: estimators.FeatureBased(1, weights=[1.0]).fit(AMOUNTS),
            "weights:",
        ),
        (lambda: estimators.MaxCoverage(1).fit(AMOUNTS), "expected 0 or 1"),
        (
            lambda: estimators.MaxCoverage(1, [1.0]).fit(MEMBERSHIP),
            "weights:",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
