"""Figures of selection, read back from their artists."""

import io

import numpy as np
import pytest
import xarray as xr

from fedjax_fair.report.selection import chosen, participation, participation_lorenz, tradeoff

RNG = np.random.default_rng(0)
COHORTS = np.array([[[0, 1], [1, 2], [1, 1]], [[3, 4], [3, 4], [3, 4]]])


def results():
    """Two methods, two seeds, five clients; the second method was not run for the last round."""
    cohorts = np.stack([COHORTS, COHORTS[::-1]]).astype(float)
    cohorts[1, :, 2] = np.nan
    counts = np.zeros((2, 2, 3, 5))
    counts[0, :, -1] = [[1, 3, 1, 0, 0], [0, 0, 0, 3, 3]]
    counts[1, :, -2] = [[0, 0, 0, 2, 2], [1, 2, 1, 0, 0]]
    counts[1, :, -1] = np.nan
    values = RNG.uniform(size=(2, 2, 3))
    shape = ("algorithm", "seed", "round")
    return xr.Dataset(
        {
            "cohort_clients": (("algorithm", "seed", "training_round", "slot"), cohorts),
            "participation": ((*shape, "client"), counts),
            "client_dissimilarity": (shape, values, {"long_name": "Dissimilarity"}),
            "accuracy_mean_clients": (shape, 1 - values),
        },
        {"algorithm": ["one", "two"], "seed": [0, 1], "round": [1, 2, 3]},
        {"data": "digits"},
    )


def render(figure):
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    return figure


def test_participation_shows_who_trained_when_busiest_first():
    first, second = render(participation(results())).axes
    np.testing.assert_array_equal(
        first.images[0].get_array(), [[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    )
    np.testing.assert_array_equal(
        second.images[0].get_array(), [[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    )
    assert first.get_title(loc="left") == "one: 3 of 5 clients"
    other_seed = participation(results(), seed=1).axes[0].images[0].get_array()
    assert other_seed.sum() == 6
    with pytest.raises(ValueError, match="seed=2: expected one of 2 seeds"):
        participation(results(), seed=2)


def test_lorenz_curves_are_means_over_seeds_of_the_last_counts():
    figure = render(participation_lorenz(results()))
    lines = figure.axes[0].lines
    np.testing.assert_allclose(
        lines[0].get_ydata(),
        np.mean([[0, 0, 0, 0.2, 0.4, 1], [0, 0, 0, 0, 0.5, 1]], axis=0),
    )
    # The Gini index of (1, 3, 1, 0, 0) is 0.56, that of (0, 0, 0, 3, 3) 0.6.
    assert figure.legends[0].get_texts()[0].get_text() == "one (0.58)"
    even = xr.Dataset(
        {"participation": (("seed", "round", "client"), np.full((1, 1, 4), 2))}, {"round": [1]}
    )
    assert participation_lorenz(even).axes[0].lines[0].get_ydata().tolist() == [
        0,
        0.25,
        0.5,
        0.75,
        1,
    ]


def test_chosen_clients_are_marked_where_they_end_up():
    matrix = RNG.uniform(size=(5, 5))
    figure = render(chosen(matrix, [0, 3], group=[2, 1, 1, 0, 0]))
    axes = figure.axes[0]
    order = [3, 4, 1, 2, 0]
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix[np.ix_(order, order)])
    assert axes.lines[0].get_xdata().tolist() == [0, 4]
    assert axes.lines[1].get_ydata().tolist() == [0, 4]
    with pytest.raises(ValueError, match=r"expected a square matrix, got shape \(2, 3\)"):
        chosen(np.ones((2, 3)), [0])
    with pytest.raises(ValueError, match=r"clients=\[5\]"):
        chosen(matrix, [5])


@pytest.mark.parametrize("last", [1, 2])
def test_the_tradeoff_is_that_of_the_last_evaluations(last):
    data = results()
    figure = render(tradeoff(data, last=last))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "Dissimilarity"
    for i, bars in enumerate(axes.containers):
        line, _, _ = bars.lines
        values = data["client_dissimilarity"].values[i][:, -last:].mean(axis=1)
        np.testing.assert_allclose(np.asarray(line.get_xdata(), float), [values.mean()])
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [1 - values.mean()])
