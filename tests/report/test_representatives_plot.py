"""The figure of selected items, read back from its artists."""

import numpy as np
import pytest
from synthetic import render

from fedjax_fair.report.plots import representatives

POINTS = np.random.default_rng(0).normal(size=(50, 2))


def test_selections_stand_where_they_are_in_their_order():
    left, right = render(representatives(POINTS, [7, 3, 20], [5.0, 2.0, 1.5])).axes
    everything, selections = left.collections
    np.testing.assert_array_equal(everything.get_offsets(), POINTS)
    np.testing.assert_array_equal(selections.get_offsets(), POINTS[[7, 3, 20]])
    numbers = {text.get_text(): text.xy for text in left.texts}
    assert list(numbers) == ["1", "2", "3"]
    np.testing.assert_array_equal(np.stack(list(numbers.values())), POINTS[[7, 3, 20]])
    (curve,) = right.lines
    assert curve.get_xdata().tolist() == [1, 2, 3]
    assert curve.get_ydata().tolist() == [5.0, 2.0, 1.5]
    assert left.get_title(loc="left") == "3 of 50 items"
    assert right.get_title(loc="left") == "sum of gains 8.5"


def test_empty_places_are_left_out_and_many_selections_have_no_numbers():
    left, right = representatives(POINTS, [7, -1, 3], [5.0, 0.0, 2.0]).axes
    assert len(left.collections[1].get_offsets()) == 2
    assert right.lines[0].get_ydata().tolist() == [5.0, 2.0]
    assert len(representatives(POINTS, range(30), np.ones(30)).axes[0].texts) == 30
    assert not representatives(POINTS, range(31), np.ones(31)).axes[0].texts
    render(representatives(POINTS, [-1], [0.0]))


def test_many_coordinates_become_two_principal_components():
    """Distances within a plane, turned into space, are kept; shares of variance are those of it."""
    stretched = POINTS * [3.0, 1.0]
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))
    (left, _) = render(representatives(stretched @ turn[:2] + 9, [0, 1], [1.0, 1.0])).axes
    drawn = np.asarray(left.collections[0].get_offsets())
    centered = stretched - stretched.mean(axis=0)
    np.testing.assert_allclose(
        np.linalg.norm(drawn, axis=1), np.linalg.norm(centered, axis=1), rtol=1e-6
    )
    singular = np.linalg.svd(centered, compute_uv=False) ** 2
    np.testing.assert_allclose(drawn.T @ drawn, np.diag(singular), atol=1e-8 * singular[0])
    share = f"({singular[0] / singular.sum():.0%} of variance)"
    assert left.get_xlabel() == f"First component {share}"
    render(representatives(np.zeros((4, 3)), [0], [0.0]))  # Without any variance.


@pytest.mark.parametrize(
    ("points", "items", "gains", "message"),
    [
        (POINTS[:, 0], [0], [1.0], "points:"),
        (POINTS[:, :1], [0], [1.0], "points:"),
        ([[0.0, np.nan]], [0], [1.0], "points:"),
        (POINTS, [0, 1], [1.0], "gains:"),
        (POINTS, [50], [1.0], "items="),
        (POINTS, [1, 1], [1.0, 1.0], "expected different items"),
    ],
)
def test_bad_input_is_named(points, items, gains, message):
    with pytest.raises(ValueError, match=message):
        representatives(points, items, gains)
