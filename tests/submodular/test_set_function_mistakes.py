"""Mistakes in arguments of set functions are named, also in traced functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import submodular as sm

N = 6
RNG = np.random.default_rng(0)
SIMILARITY = RNG.uniform(0, 2, (4, N))
SQUARE = RNG.uniform(0, 2, (N, N))
SQUARE = (SQUARE + SQUARE.T) / 2
FEATURES = RNG.gamma(1.0, size=(N, 3))
POINTS = RNG.normal(size=(N, 3))
DISTANCES = np.linalg.norm(POINTS[:, None] - POINTS[None], axis=-1)
MEMBERSHIP = RNG.random((N, 5)) < 0.4
WEIGHTS = RNG.gamma(1.0, size=5)
INCLUDED = np.array([True, False, True, True, False, True])
HISTORY = RNG.random((3, N)) < 0.3
ASYMMETRIC = np.where(np.eye(3)[::-1], 1.0, 0.0) + np.array([[0, 5, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sm.FacilityLocation([[1, -2.0]]), r"similarity\[0, 1\]=-2.0: expected finite"),
        (lambda: sm.FacilityLocation([1.0]), r"similarity: expected shape \[points, items\]"),
        (lambda: sm.facility_location([[1.0]], [1, 2]), "weights: expected 1 points, got 2"),
        (lambda: sm.facility_location([[1.0]], [-1.0]), r"weights\[0\]=-1.0: .* >= 0"),
        (
            lambda: sm.facility_location_from_distances(DISTANCES, [1.0]),
            "weights: expected 6 points, got 1",
        ),
        (
            lambda: sm.facility_location_from_features(POINTS, weights=[1.0]),
            "weights: expected 6 points, got 1",
        ),
        (lambda: sm.facility_location_from_distances(SIMILARITY), "square matrix, got shape"),
        (lambda: sm.facility_location_from_distances(ASYMMETRIC), r"distances\[0, 1\]=5.0 and"),
        (lambda: sm.facility_location_from_distances(-SQUARE), r"distances\[0, 0\]=-.*>= 0"),
        (
            lambda: sm.facility_location_from_distances(np.full((2, 2), np.nan)),
            r"distances\[0, 0\]=nan",
        ),
        (lambda: sm.facility_location_from_features([[0.0], [np.inf]]), r"features\[1, 0\]=inf"),
        (lambda: sm.facility_location_from_features(POINTS, [0, 6]), r"items=\[0, 6\]: .*\[0, 6\)"),
        (lambda: sm.facility_location_from_features(POINTS, [1, 1]), "expected different items"),
        (lambda: sm.facility_location_from_features(POINTS, []), r"items: .* got shape \(0,\)"),
        (lambda: sm.facility_location_from_features(POINTS, None, [True]), r"counted: .*\(6,\)"),
        (
            lambda: sm.facility_location_from_distances(DISTANCES, counted=[True]),
            r"counted: .*\(6,\)",
        ),
        (
            lambda: sm.facility_location_from_features(POINTS, [0, 1], valid_items=[True]),
            r"valid_items: expected shape \(2,\), got \(1,\)",
        ),
        (lambda: sm.Modular([1.0, np.nan]), r"weights\[1\]=nan: expected finite"),
        (lambda: sm.truncated_modular([1.0, -1.0], 1.0), r"weights\[1\]=-1.0"),
        (lambda: sm.truncated_modular([1.0], -1.0), "bound=-1.0"),
        (lambda: sm.truncated_modular([1.0], 1.0, -0.5), "scale=-0.5"),
        (lambda: sm.union_penalty(HISTORY, -1.0), "mu=-1.0"),
        (lambda: sm.union_penalty(np.zeros((0, 4), bool), 1.0), r"history: .* got \(0, 4\)"),
        (lambda: sm.Coverage(MEMBERSHIP, WEIGHTS[:2]), "expected 5 topics, got 2"),
        (lambda: sm.Coverage([[0.0, np.nan]]), r"membership\[0, 1\]=nan: expected 0 or 1"),
        (lambda: sm.Coverage([[1, -1]]), r"membership\[0, 1\]=-1.0"),
        (lambda: sm.Coverage(jnp.array([[0.2]])), r"membership\[0, 0\]=0.2"),
        (lambda: sm.Restricted(sm.Modular([1.0]), [2]), r"mask\[0\]=2.0: expected 0 or 1"),
        (lambda: sm.union_penalty([[0.5]], 1.0), r"history\[0, 0\]=0.5"),
        (lambda: sm.facility_location_from_features(POINTS, [0.7]), r"items=\[0.7\]: .* integers"),
        (lambda: sm.LogDet([[1.0, 2.0], [2.0, 1.0]]), "positive semi-definite.* eigenvalue is -1"),
        (lambda: sm.LogDet([[0.0, 1.0], [1.0, 0.0]]), "positive semi-definite.* eigenvalue is -1"),
        (lambda: sm.Modular([1e39]), r"weights\[0\]=1e\+39: expected finite numbers in single"),
        (lambda: sm.Coverage([True]), r"expected shape \[items, topics\]"),
        (
            lambda: sm.ProbabilisticCoverage([[0.2, 1.1]]),
            r"probabilities\[0, 1\]=1.1.*in \[0, 1\]",
        ),
        (lambda: sm.ProbabilisticCoverage([[0.2]], [1, 1]), "weights: expected 1 topics, got 2"),
        (lambda: sm.ConditionalGain(sm.Modular([1.0]), [1]), r"private=\[1\]: .* in \[0, 1\)"),
        (lambda: sm.MutualInformation(sm.Modular([1.0]), [0, 0]), "query=.*: expected different"),
        (lambda: sm.DisparitySum(SIMILARITY), "distances: expected a square"),
        (lambda: sm.DisparityMin(-SQUARE), r"distances\[0, 0\]=-"),
        (lambda: sm.SaturatedCoverage(SIMILARITY, -0.1), "saturation=-0.1"),
        (lambda: sm.FeatureBased(FEATURES, "cube"), "concave='cube'"),
        (lambda: sm.FeatureBased(-FEATURES), r"features\[0, 0\]=-"),
        (lambda: sm.GraphCut(SQUARE, -1.0), "tradeoff=-1.0"),
        (lambda: sm.LogDet(SIMILARITY), "kernel: expected a square"),
        (lambda: sm.Sum(()), "got no function"),
        (lambda: sm.Sum((sm.Modular([1.0]), sm.Modular([1.0, 2.0]))), r"got \[1, 2\]"),
        (lambda: sm.Scaled(sm.Modular([1.0]), -1.0), "factor=-1.0"),
        (lambda: sm.Truncated(sm.Modular([1.0]), np.nan), "bound=nan"),
        (lambda: sm.Restricted(sm.Modular([1.0]), [True, False]), r"mask: expected shape \(1,\)"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_constants_in_a_traced_function_are_checked():
    good, bad = jnp.asarray(SQUARE), jnp.asarray(SQUARE).at[0, 1].add(1.0)
    weights = jnp.array([1.0, -1.0])
    value = jax.jit(lambda mask: sm.GraphCut(good, 0.5).value(mask))
    np.testing.assert_allclose(
        value(INCLUDED), sm.GraphCut(good, 0.5).value(jnp.asarray(INCLUDED)), rtol=1e-6
    )
    with pytest.raises(ValueError, match="expected a symmetric matrix"):
        jax.eval_shape(lambda: sm.GraphCut(bad, 0.5))
    with pytest.raises(ValueError, match=r"\[1\]=-1.0"):
        jax.eval_shape(lambda: sm.truncated_modular(weights, 1.0))
    # Of NumPy, which the first operation would make unknown.
    with pytest.raises(ValueError, match="expected a symmetric matrix"):
        jax.eval_shape(lambda: sm.GraphCut(np.asarray(bad), 0.5))
    with pytest.raises(ValueError, match=r"\[1\]=-1.0"):
        jax.eval_shape(lambda: sm.truncated_modular(np.array([1.0, -1.0]), 1.0))
    with pytest.raises(ValueError, match=r"\[1\]=-1.0"):
        jax.eval_shape(lambda: sm.truncated_modular([1.0, -1.0], 1.0))
    with pytest.raises(ValueError, match="expected 0 or 1"):
        jax.eval_shape(lambda: sm.Coverage(np.array([[2]])))
    with pytest.raises(ValueError, match="positive semi-definite"):
        jax.eval_shape(lambda: sm.LogDet(np.array([[0.0, 1.0], [1.0, 0.0]])))


def test_traced_values_are_not_checked():
    """Also within a list."""
    total = jax.jit(lambda x: sm.truncated_modular([x, 1.0], 5.0).value(jnp.array([True, True])))
    assert total(-3.0) == -2
    masked = jax.jit(lambda x: sm.Coverage(x).value(jnp.array([True])))
    assert masked(np.array([[2, 0]])) == 1


def test_kernels_of_low_rank_are_accepted_with_their_rounding_errors():
    features = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    for kernel in (features @ features.T, 1e-3 * features @ features.T, np.zeros((3, 3))):
        assert np.isfinite(sm.LogDet(kernel).value(jnp.ones(len(kernel), bool)))
