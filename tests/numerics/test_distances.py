"""Distances against double precision, for nearly equal vectors."""

import jax
import numpy as np
import pytest

from fedjax_fair.numerics.distances import nearest, pairwise_distances, renewed_distances

measure = jax.jit(pairwise_distances)
renew = jax.jit(renewed_distances)


def exactly(vectors):
    vectors = np.asarray(vectors, np.float32).astype(np.float64)
    gram = [np.linalg.norm(vectors - row, axis=1) for row in vectors]
    return np.array(gram)


def clients(deviation, width=20_000, count=40, seed=0):
    """Returns vectors near a common one, and pairs at all smaller distances."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=width)
    apart = deviation * rng.normal(size=(count, width))
    half = count // 2
    closeness = deviation * np.logspace(-3, 0, half)[:, None]
    apart[half : 2 * half] = apart[:half] + closeness * rng.normal(size=(half, width))
    return (common + apart).astype(np.float32)


@pytest.mark.parametrize("deviation", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("width", [100, 8192, 20_000])
def test_relative_error_is_at_most_1e_5(deviation, width):
    vectors = clients(deviation, width)
    actual, expected = np.asarray(measure(vectors)), exactly(vectors)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    np.testing.assert_array_equal(actual, actual.T)
    assert (np.diag(actual) == 0).all()


def test_outliers_do_not_affect_the_accuracy():
    vectors = clients(1e-4, 100)
    vectors[0] *= 1000
    np.testing.assert_allclose(measure(vectors), exactly(vectors), rtol=1e-5)


def test_equal_rows_are_at_distance_zero():
    vectors = np.repeat(clients(1.0, 300, 8)[:3], 3, axis=0)
    actual = np.asarray(measure(vectors))
    same = np.arange(9)[:, None] // 3 == np.arange(9) // 3
    assert (actual[same] == 0).all()
    np.testing.assert_allclose(actual, exactly(vectors), rtol=1e-5)
    assert (measure(np.ones((5, 7), np.float32)) == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_rows_affect_only_their_own_distances(bad):
    vectors = clients(1e-2, 100)
    spoiled = vectors.copy()
    spoiled[3, 50] = bad
    actual = np.asarray(measure(spoiled))
    assert np.isnan(actual[3]).all()
    assert np.isnan(actual[:, 3]).all()
    rest = np.delete(np.arange(40), 3)
    np.testing.assert_allclose(actual[np.ix_(rest, rest)], exactly(vectors[rest]), rtol=1e-5)
    assert np.isnan(measure(np.full((3, 2), bad, np.float32))).all()


def test_batches_and_single_rows():
    vectors = np.stack([clients(1e-3, 100, seed=seed) for seed in range(3)])
    np.testing.assert_allclose(
        jax.vmap(measure)(vectors), [measure(one) for one in vectors], rtol=1e-5
    )
    assert measure(np.ones((1, 4), np.float32)).tolist() == [[0]]


@pytest.mark.parametrize("deviation", [1e-4, 1.0])
@pytest.mark.parametrize("width", [100, 20_000])
def test_distances_of_changed_rows_are_updated(deviation, width):
    before, after = clients(deviation, width), clients(deviation, width)
    # Two come close to each other, one to another that stays; they are not in order.
    rows = np.array([31, 2, 17, 5], np.int32)
    after[rows] = clients(deviation, width, seed=1)[[0, 20, 1, 2]]
    after[5] = after[9] + 1e-3 * (after[5] - after[9])
    actual = np.asarray(renew(measure(before), after, rows))
    np.testing.assert_allclose(actual, exactly(after), rtol=1e-5)
    np.testing.assert_array_equal(actual, actual.T)
    kept = np.delete(np.arange(40), rows)
    np.testing.assert_array_equal(actual[np.ix_(kept, kept)], measure(before)[np.ix_(kept, kept)])


def test_indices_beyond_the_last_row_are_ignored():
    before, after = clients(1.0, 100), clients(1.0, 100, seed=1)
    beyond = np.iinfo(np.int32).max
    known = measure(before)
    np.testing.assert_array_equal(renew(known, after, np.full(2, beyond)), known)
    after[:39] = before[:39]
    expected = renew(known, after, np.array([39]))
    assert not np.array_equal(expected, known)
    np.testing.assert_allclose(renew(known, after, np.array([beyond, 39])), expected, rtol=1e-6)


def test_rows_may_become_finite_or_nonfinite():
    vectors = clients(1e-2, 100)
    spoiled = vectors.copy()
    spoiled[3, 50] = np.nan
    np.testing.assert_allclose(
        renew(measure(spoiled), vectors, np.array([3, 8])), exactly(vectors), rtol=1e-5
    )
    for rows in ([3], [8, 3]):
        actual = renew(measure(vectors), spoiled, np.array(rows))
        np.testing.assert_allclose(actual, measure(spoiled), rtol=1e-5)
    # Neither is one that stays not finite while others change.
    moved = spoiled.copy()
    moved[8] += 1
    np.testing.assert_allclose(
        renew(measure(spoiled), moved, np.array([8])), measure(moved), rtol=1e-5
    )


def test_nearest_by_brute_force():
    vectors = np.random.default_rng(0).normal(size=(4100, 7)).astype(np.float32) + 100
    vectors[7] = vectors[3]  # Both are chosen, and each is nearest to itself.
    chosen = np.array([4099, 3, 12, 7, 2000])
    places, distances = jax.jit(nearest)(vectors, chosen, np.ones(5, bool))
    exact = np.linalg.norm(vectors[:, None].astype(np.float64) - vectors[chosen], axis=-1)
    assert places[chosen].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(distances, exact[np.arange(4100), places], rtol=1e-6)
    np.testing.assert_allclose(distances, exact.min(axis=1), rtol=1e-5)


def test_masked_rows_are_nearest_to_themselves_only():
    line = np.array([[0.0], [5.0], [1.0], [-1.0], [0.5]], np.float32)
    places, distances = jax.jit(nearest)(line, np.array([1, 0]), np.array([True, False]))
    assert places.tolist() == [1, 0, 0, 0, 0]
    assert distances.tolist() == [0, 0, 4, 6, 4.5]
