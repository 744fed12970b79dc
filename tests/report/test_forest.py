"""Forest plots have the differences of a comparison."""

import io
import re

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import metrics, results
from fedjax_fair.report import forest
from fedjax_fair.results.comparison import comparison_table

METRIC = "accuracy_mean_clients"


@pytest.fixture
def compared():
    rng = np.random.default_rng(0)
    accuracy = rng.uniform(0.4, 0.6, (3, 6, 1))
    accuracy[1] = accuracy[0] + 0.2 + 0.01 * rng.normal(size=(6, 1))
    values = (("algorithm", "seed", "round"), accuracy, {"long_name": "accuracy"})
    runs = xr.Dataset({METRIC: values}, {"algorithm": ["a", "b<$", "c"], "round": [5]})
    return results.compare(runs, METRIC)


def test_points_and_intervals_are_those_of_the_comparison(compared):
    axes = forest.differences(compared, {"c": -3.0}).axes[0]
    points = [line for line in axes.lines if line.get_marker() == "o"]
    difference = [line.get_xdata()[0] for line in points]
    np.testing.assert_allclose(difference, 100 * compared.difference)
    ends = [part.get_segments()[0][:, 0] for part in axes.collections]
    np.testing.assert_allclose(ends, 100 * np.stack([compared.low, compared.high], axis=1))
    assert [line.get_markerfacecolor() != "white" for line in points] == [True, False]
    (diamond,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert (diamond.get_xdata()[0], diamond.get_ydata()[0]) == (-3.0, 0.7)
    assert axes.get_xlabel() == "accuracy: difference to a (points)"
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # The first method is on top.
    assert "6 paired seeds" in axes.figure.get_supxlabel()


def test_values_in_points_are_not_scaled(compared):
    points = compared[["difference", "low", "high"]] * 100
    compared = compared.assign(points).assign_attrs(compared.attrs | {"units": "points"})
    axes = forest.differences(compared).axes[0]
    drawn = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(drawn, compared.difference)
    assert axes.get_xlabel() == "accuracy: difference to a (points)"


def test_metrics_have_panels(compared):
    figure = forest.differences([compared, compared], {"c": -3.0})
    first, second = figure.axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["b<\\$", "c"]
    assert {label.get_text() for label in second.get_yticklabels()} == {""}
    assert not [line for line in second.lines if line.get_marker() == "D"]


def test_the_picture_of_the_page_has_the_same_rows(compared):
    picture = shown = forest.html_rows(compared)
    assert "b&lt;$" in picture
    for name in ("b<$", "c"):
        row = compared.sel(algorithm=name)
        low, mean, high = (100 * float(row[part]) for part in ("low", "difference", "high"))
        assert f"{mean:+.1f} ({low:+.1f} to {high:+.1f})" in shown
    circles = re.findall(r'cx="([\d.]+)%" cy="50%" r="5" fill="(.*?)"', picture)
    assert [fill for _, fill in circles] == ["currentColor", "var(--paper)"]
    # Positions are linear in the values, with a vertical line at zero in each row.
    zero, first, again, second = (float(x) for x in re.findall(r'x1="([\d.]+)%"', picture))
    assert zero == again
    ends = first, second
    scale = (float(circles[0][0]) - zero) / compared.difference.values[0]
    np.testing.assert_allclose(
        [(end - zero) / scale for end in ends], compared.low.values, atol=0.1 / scale
    )


def test_differences_without_intervals_are_points(compared):
    alone = compared.assign(low=compared.low * np.nan, high=compared.high * np.nan)
    assert "nan" not in forest.html_rows(alone)
    assert forest.html_rows(alone).count("<circle") == 2
    unknown = alone.assign(difference=alone.difference * np.nan)
    assert "<circle" not in forest.html_rows(unknown)


def test_methods_without_common_seeds_have_no_points():
    values = np.array([[0.5, 0.6, np.nan, np.nan], [np.nan, np.nan, 0.7, 0.8]])[:, :, None]
    runs = xr.Dataset(
        {METRIC: (("algorithm", "seed", "round"), values)}, {"algorithm": ["a", "b"], "round": [5]}
    )
    without_pairs = results.compare(runs, METRIC)
    figure = forest.differences(without_pairs)
    figure.savefig(io.BytesIO(), format="png", dpi=30)
    assert "over 0 paired seeds" in figure.get_supxlabel()
    assert "Over 0 paired seeds" in comparison_table(without_pairs, 1).note
    assert "<circle" not in forest.html_rows(without_pairs)


@pytest.mark.parametrize(
    ("name", "is_percent"),
    [
        ("accuracy_mean_clients", True),
        ("client_dissimilarity_class_based", True),
        ("demographic_parity_difference", True),
        ("equalized_odds_difference_mean_clients", True),
        ("demographic_parity_ratio", False),
        ("accuracy_parity_ratio", False),
        ("accuracy_gini", False),
        ("participation_gini", False),
        ("perplexity_pooled", False),
        ("validation_perplexity_worst_10pct", False),
        ("test_loss_mean_clients", False),
    ],
)
def test_tables_and_plots_have_the_same_unit(name, is_percent):
    units = {metric.name: metric.unit for metric in metrics.ALL_SUMMARIES}
    values = np.random.default_rng(0).uniform(size=(2, 3, 1))
    attributes = {"units": units.get(name, "1")}
    over = (("algorithm", "seed", "round"), values, attributes)
    runs = xr.Dataset({name: over}, {"algorithm": ["a", "b"], "round": [5]})
    comparison = results.compare(runs, name)
    assert ("in %" in comparison_table(comparison, 1).title) == is_percent
    assert ("(points)" in forest.differences(comparison).axes[0].get_xlabel()) == is_percent


def test_bad_arguments_are_named(compared):
    with pytest.raises(ValueError, match=r"compared=\[\]"):
        forest.differences([])
    with pytest.raises(ValueError, match="published="):
        forest.differences(compared, {"x": 1.0})
