"""Figures of selection, read back from their artists."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from synthetic import render

from fedjax_fair import results as results_of
from fedjax_fair.report.drawing import MAX_CONFIGURATIONS
from fedjax_fair.report.plots import learning_curves
from fedjax_fair.report.selection import (
    participation,
    participation_lorenz,
    selected_clients,
    tradeoff,
)
from fedjax_fair.results.datasets import configurations_as_methods

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


def test_participation_has_the_most_frequent_clients_first():
    first, second = render(participation(results(), seed=0)).axes
    np.testing.assert_array_equal(
        first.images[0].get_array(), [[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    )
    np.testing.assert_array_equal(
        second.images[0].get_array(), [[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    )
    assert first.get_title(loc="left") == "one: 3 of 5 clients"
    other_seed = participation(results(), seed=1).axes[0].images[0].get_array()
    assert other_seed.sum() == 6
    both = participation(results()).axes[0]
    by_client = np.array([[1, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 1], [1, 1, 1]]) / 2
    np.testing.assert_array_equal(both.images[0].get_array(), by_client[[1, 3, 4, 0, 2]])
    data = results().assign(train_examples=(("seed", "client", "class"), np.ones((2, 5, 1))))
    by_place = [[1, 1, 1], [1, 0.5, 0.5], [0, 0.5, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(participation(data).axes[0].images[0].get_array(), by_place)
    assert both.get_title(loc="left") == "one: 2.5 of 5 clients, mean over seeds"
    with pytest.raises(ValueError, match="seed=2"):
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
    (line, *_) = participation_lorenz(even).axes[0].lines
    assert line.get_ydata().tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_selected_clients_are_marked_in_sorted_order():
    matrix = RNG.uniform(size=(5, 5))
    figure = render(selected_clients(matrix, [0, 3], group=[2, 1, 1, 0, 0]))
    axes = figure.axes[0]
    order = [3, 4, 1, 2, 0]
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix[np.ix_(order, order)])
    assert axes.lines[0].get_xdata().tolist() == [0, 4]
    assert axes.lines[1].get_ydata().tolist() == [0, 4]
    with pytest.raises(ValueError, match="square"):
        selected_clients(np.ones((2, 3)), [0])
    with pytest.raises(ValueError, match=r"clients=\[5\]"):
        selected_clients(matrix, [5])


@pytest.mark.parametrize("last", [1, 2])
def test_the_tradeoff_is_that_of_the_last_evaluations(last):
    data = results()
    figure = render(tradeoff(data, average_last=last))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "Dissimilarity (%)"
    for i, bars in enumerate(axes.containers):
        line, _, (across, _) = bars.lines
        values = 100 * data["client_dissimilarity"].values[i][:, -last:].mean(axis=1)
        np.testing.assert_allclose(np.asarray(line.get_xdata(), float), [values.mean()])
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [100 - values.mean()])
        ends = across.get_segments()[0][:, 0]
        expected = stats.t.interval(0.95, 1, values.mean(), stats.sem(values))
        np.testing.assert_allclose(ends, expected)


def test_both_axes_of_the_tradeoff_span_ten_points_at_least():
    data = results()
    shape = ("algorithm", "seed", "round")
    spread = 0.05 + 0.001 * RNG.uniform(size=(2, 2, 3))
    data["client_dissimilarity"] = (shape, spread)
    data["accuracy_mean_clients"] = (shape, 1 - spread)
    data["accuracy_mean_examples"] = (shape, np.full((2, 2, 3), 0.9))
    data["test_examples"] = (("client", "class"), np.full((5, 1), 30))
    axes = render(tradeoff(data)).axes[0]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    assert right - left == pytest.approx(high - low)
    assert right - left >= 10
    assert axes.get_aspect() == 1
    (shaded,) = axes.patches
    floor = results_of.noise_floor(data, ["client_dissimilarity"]).mean()
    assert shaded.get_x() + shaded.get_width() == pytest.approx(
        100 * floor["client_dissimilarity"].item()
    )


@pytest.mark.parametrize(
    ("spread", "shaded"),
    [(0.9, 0), (0.5, 0), (0.001, 1)],
    ids=["far above the floor", "above the floor", "below the floor"],
)
def test_the_noise_floor_is_named_where_it_is_on_the_axis(spread, shaded):
    data = results()
    shape = ("algorithm", "seed", "round")
    data["client_dissimilarity"] = (shape, spread + 0.001 * RNG.uniform(size=(2, 2, 3)))
    data["accuracy_mean_clients"] = (shape, np.full((2, 2, 3), 0.9))
    data["accuracy_mean_examples"] = (shape, np.full((2, 2, 3), 0.9))
    data["test_examples"] = (("client", "class"), np.full((5, 1), 30))
    axes = render(tradeoff(data)).axes[0]
    assert len(axes.patches) == shaded
    assert len([text for text in axes.texts if "noise floor" in text.get_text()]) == shaded


def swept():
    """Two methods, of which one reads the setting, with four values of it and two seeds."""
    accuracy = RNG.uniform(0.5, 0.9, size=(2, 4, 2, 3))
    accuracy[0, 1:] = accuracy[0, :1]
    shape = ("algorithm", "prox", "seed", "round")
    return xr.Dataset(
        {"accuracy_mean_clients": (shape, accuracy), "client_dissimilarity": (shape, 1 - accuracy)},
        {
            "algorithm": ["fedavg", "fedprox"],
            "prox": [0.0, 0.1, 1.0, 0.1234567],
            "round": [0, 1, 2],
        },
    )


def test_configurations_are_methods_without_unused_settings():
    data = swept()
    points = configurations_as_methods(data)
    names = points["algorithm"].values.tolist()
    values = ["0", "0.1", "1", "0.1234567"]
    assert names == ["fedavg", *(f"fedprox, prox={value}" for value in values)]
    for name, value in zip(names[1:], data["prox"].values, strict=True):
        expected = data["accuracy_mean_clients"].sel(algorithm="fedprox", prox=value)
        np.testing.assert_array_equal(
            points["accuracy_mean_clients"].sel(algorithm=name).transpose("seed", "round"), expected
        )
    one = configurations_as_methods(data.sel(algorithm="fedprox"))
    assert one["algorithm"].values.tolist() == [f"prox={value}" for value in values]


def test_figures_take_a_sweep():
    data = swept()
    legend = render(tradeoff(data)).legends[0]
    assert [text.get_text() for text in legend.get_texts()][1] == "fedprox, prox=0"
    lines = render(learning_curves(data)).axes[0].lines
    last = data["accuracy_mean_clients"].isel(round=-1).mean("seed").values
    best = max(last[0, 0], *last[1])
    assert lines[0].get_ydata()[-1] == pytest.approx(100 * best)
    assert len(lines) == 5


def test_the_legend_of_a_large_sweep_has_methods_only():
    values = RNG.uniform(0.5, 0.9, size=(2, 20, 2, 1))
    shape = ("algorithm", "prox", "seed", "round")
    data = xr.Dataset(
        {"accuracy_mean_clients": (shape, values), "client_dissimilarity": (shape, 1 - values)},
        {"algorithm": ["fedavg", "fedprox"], "prox": np.arange(20), "round": [9]},
    )
    figure = render(tradeoff(data))
    assert len(figure.axes[0].containers) == 40
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg", "fedprox"]
    assert len(learning_curves(data).axes[0].lines) == MAX_CONFIGURATIONS
