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
        (lambda: sm.FacilityLocation([[1, -2.0]]), r"similarity\["),
        (lambda: sm.FacilityLocation([1.0]), "similarity:"),
        (lambda: sm.facility_location([[1.0]], [1, 2]), "weights:"),
        (lambda: sm.facility_location([[1.0]], [-1.0]), r"weights\[0\]=-1.0"),
        (
            lambda: sm.facility_location_from_distances(DISTANCES, [1.0]),
            "weights:",
        ),
        (
            lambda: sm.facility_location_from_features(POINTS, weights=[1.0]),
            "weights:",
        ),
        (lambda: sm.facility_location_from_distances(SIMILARITY), "square matrix, got shape"),
        (lambda: sm.facility_location_from_distances(ASYMMETRIC), r"distances\["),
        (lambda: sm.facility_location_from_distances(-SQUARE), r"distances\["),
        (
            lambda: sm.facility_location_from_distances(np.full((2, 2), np.nan)),
            r"distances\[",
        ),
        (lambda: sm.facility_location_from_features([[0.0], [np.inf]]), r"features\["),
        (lambda: sm.facility_location_from_features(POINTS, [0, 6]), "items="),
        (lambda: sm.facility_location_from_features(POINTS, [1, 1]), "expected different items"),
        (lambda: sm.facility_location_from_features(POINTS, []), "items:"),
        (lambda: sm.facility_location_from_features(POINTS, None, [True]), "counted:"),
        (
            lambda: sm.facility_location_from_distances(DISTANCES, counted=[True]),
            "counted:",
        ),
        (
            lambda: sm.facility_location_from_features(POINTS, [0, 1], valid_items=[True]),
            "valid_items:",
        ),
        (lambda: sm.Modular([1.0, np.nan]), r"weights\[1\]=nan"),
        (lambda: sm.truncated_modular([1.0, -1.0], 1.0), r"weights\[1\]=-1.0"),
        (lambda: sm.truncated_modular([1.0], -1.0), "bound=-1.0"),
        (lambda: sm.truncated_modular([1.0], 1.0, -0.5), "scale=-0.5"),
        (lambda: sm.union_penalty(HISTORY, -1.0), "mu=-1.0"),
        (lambda: sm.union_penalty(np.zeros((0, 4), bool), 1.0), "history:"),
        (lambda: sm.Coverage(MEMBERSHIP, WEIGHTS[:2]), "expected 5 topics, got 2"),
        (lambda: sm.Coverage([[0.0, np.nan]]), r"membership\["),
        (lambda: sm.Coverage([[1, -1]]), r"membership\["),
        (lambda: sm.Coverage(jnp.array([[0.2]])), r"membership\["),
        (lambda: sm.Restricted(sm.Modular([1.0]), [2]), r"mask\[0\]=2.0"),
        (lambda: sm.union_penalty([[0.5]], 1.0), r"history\["),
        (lambda: sm.facility_location_from_features(POINTS, [0.7]), "items="),
        (lambda: sm.LogDet([[1.0, 2.0], [2.0, 1.0]]), "positive semi-definite.* eigenvalue is -1"),
        (lambda: sm.LogDet([[0.0, 1.0], [1.0, 0.0]]), "positive semi-definite.* eigenvalue is -1"),
        (lambda: sm.Modular([1e39]), r"weights\[0\]="),
        (lambda: sm.Coverage([True]), r"expected shape \[items, topics\]"),
        (
            lambda: sm.ProbabilisticCoverage([[0.2, 1.1]]),
            r"probabilities\[",
        ),
        (lambda: sm.ProbabilisticCoverage([[0.2]], [1, 1]), "weights:"),
        (lambda: sm.ConditionalGain(sm.Modular([1.0]), [1]), "private="),
        (lambda: sm.MutualInformation(sm.Modular([1.0]), [0, 0]), "query="),
        (lambda: sm.DisparitySum(SIMILARITY), "distances:"),
        (lambda: sm.DisparityMin(-SQUARE), r"distances\["),
        (lambda: sm.SaturatedCoverage(SIMILARITY, -0.1), "saturation=-0.1"),
        (lambda: sm.FeatureBased(FEATURES, "cube"), "concave='cube'"),
        (lambda: sm.FeatureBased(-FEATURES), r"features\["),
        (lambda: sm.GraphCut(SQUARE, -1.0), "tradeoff=-1.0"),
        (lambda: sm.LogDet(SIMILARITY), "kernel:"),
        (lambda: sm.Sum(()), "got no function"),
        (lambda: sm.Sum((sm.Modular([1.0]), sm.Modular([1.0, 2.0]))), r"got \[1, 2\]"),
        (lambda: sm.Scaled(sm.Modular([1.0]), -1.0), "factor=-1.0"),
        (lambda: sm.Truncated(sm.Modular([1.0]), np.nan), "bound=nan"),
        (lambda: sm.Restricted(sm.Modular([1.0]), [True, False]), "mask:"),
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
    with pytest.raises(ValueError, match="symmetric"):
        jax.eval_shape(lambda: sm.GraphCut(bad, 0.5))
    with pytest.raises(ValueError, match=r"\[1\]=-1.0"):
        jax.eval_shape(lambda: sm.truncated_modular(weights, 1.0))
    # Of NumPy, which the first operation would make unknown.
    with pytest.raises(ValueError, match="symmetric"):
        jax.eval_shape(lambda: sm.GraphCut(np.asarray(bad), 0.5))
    with pytest.raises(ValueError, match=r"\[1\]=-1.0"):
        jax.eval_shape(lambda: sm.truncated_modular(np.array([1.0, -1.0]), 1.0))
    with pytest.raises(ValueError, match=r"\[1\]=-1.0"):
        jax.eval_shape(lambda: sm.truncated_modular([1.0, -1.0], 1.0))
    with pytest.raises(ValueError, match="expected 0 or 1"):
        jax.eval_shape(lambda: sm.Coverage(np.array([[2]])))
    with pytest.raises(ValueError, match="semi-definite"):
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
