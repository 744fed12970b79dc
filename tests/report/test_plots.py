"""Figures, read back from their artists."""

from functools import partial

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import LineCollection
from scipy import stats
from synthetic import make_results, render

from fedjax_fair import results
from fedjax_fair.report.drawing import dissimilarity_floors
from fedjax_fair.report.plots import distribution, learning_curves, partition
from fedjax_fair.report.selection import tradeoff
from fedjax_fair.results.tables import methods_table

ROUNDS = [0, 2, 4]
runs_of = partial(make_results, seeds=3)


def test_lines_are_means_and_bands_their_intervals():
    results = runs_of()
    (axes,) = render(learning_curves(results)).axes
    assert [line.get_label() for line in axes.lines] == ["fedavg", "divfl"]
    for i, (line, band) in enumerate(zip(axes.lines, axes.collections, strict=True)):
        values = 100 * results["accuracy_mean_clients"].values[i]
        np.testing.assert_array_equal(line.get_xdata(), ROUNDS)
        np.testing.assert_allclose(line.get_ydata(), values.mean(0))
        for x, own in zip(ROUNDS, values.T, strict=True):
            at_round = [y for at, y in band.get_paths()[0].vertices if at == x]
            error = stats.sem(own)
            expected = stats.t.interval(0.95, len(own) - 1, own.mean(), error)
            np.testing.assert_allclose([min(at_round), max(at_round)], expected)
    legend = learning_curves(results).legends[0]
    assert legend.get_title().get_text() == "mean of 3 seeds,\nband: 95% CI"


def test_curves_begin_where_methods_differ_and_spread_accuracies_near_all():
    results = runs_of()
    results["accuracy_mean_clients"][:, :, 0] = 0.1
    results["accuracy_mean_clients"][:, :, 1:] = [[[0.9, 0.99]], [[0.95, 0.98]]]
    (axes,) = render(learning_curves(results)).axes
    assert axes.lines[0].get_xdata().tolist() == [2, 4]
    low, middle, high = axes.transData.transform([(2, 80), (2, 90), (2, 95)])[:, 1]
    assert high - middle == pytest.approx(middle - low)  # Half of what is missing is one step.
    assert axes.get_ylim()[1] < 100


def test_there_is_one_noise_floor():
    """In tables, comparisons, figures and on the page; without test examples there is none."""
    runs = runs_of()
    name = "client_dissimilarity"
    floors = 100 * results.noise_floor(runs, [name])[name].values
    assert (floors > 1).all()
    axes = render(learning_curves(runs, name)).axes[0]
    np.testing.assert_allclose([line.get_ydata()[0] for line in axes.lines[2:]], floors)
    assert axes.get_ylim()[0] == 0
    (shaded,) = render(tradeoff(runs)).axes[0].patches
    _, right = render(tradeoff(runs)).axes[0].get_xlim()
    end = shaded.get_x() + shaded.get_width()
    assert end == pytest.approx(min(floors.mean(), right))
    np.testing.assert_allclose(dissimilarity_floors(runs), floors)
    np.testing.assert_allclose(dissimilarity_floors(runs.isel(algorithm=0)), floors[:1])
    compared = results.compare(runs, name)
    expected = [compared.baseline_noise_floor, *compared.noise_floor]
    np.testing.assert_allclose(floors, 100 * np.array(expected))
    table = methods_table(runs, {name: "dissimilarity"})
    assert table.rows[-1] == ("noise floor", f"{floors.mean():.1f}")
    axes = learning_curves(runs.drop_vars("test_examples"), name).axes[0]
    assert len(axes.lines) == 2
    assert not axes.texts


@pytest.mark.parametrize("evaluations", [1, 2, 10])
def test_few_evaluations_are_marked_and_ticks_are_whole_rounds(evaluations):
    """A line through one point is invisible, and so is a band of no width."""
    values = np.random.default_rng(0).uniform(size=(2, 2, evaluations))
    runs = xr.Dataset(
        {"accuracy_mean_clients": (("algorithm", "seed", "round"), values)},
        {"algorithm": ["a", "b"], "round": 10 + np.arange(evaluations)},
    )
    axes = render(learning_curves(runs)).axes[0]
    markers = {line.get_marker() for line in axes.lines}
    assert markers == ({"o"} if evaluations < 4 else {"None"})
    assert all(tick == round(tick) for tick in axes.get_xticks())
    bars = [c for c in axes.collections if isinstance(c, LineCollection)]
    assert len(bars) == (2 if evaluations == 1 else 0)


def test_rounds_without_a_value_are_left_out_and_the_axis_carries_the_unit():
    results = runs_of()
    values = results["client_disagreement"]
    values.attrs |= {"long_name": "Client disagreement", "units": "nat"}
    values[:, :, 0] = np.nan  # Undefined before training.
    values[1, :, 1] = np.nan  # As if divfl had not been evaluated at round 2.
    (axes,) = render(learning_curves(results, "client_disagreement")).axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[2, 4], [4]]
    assert axes.get_ylabel() == "Client disagreement (nat)"
    assert axes.get_title(loc="left") == "made up"


def test_one_seed_has_no_band():
    (axes,) = learning_curves(make_results(seeds=1)).axes
    assert len(axes.collections) == 0


@pytest.mark.parametrize("select", [{"algorithm": 0, "drop": True}, {"algorithm": 0}])
def test_results_of_one_method_need_no_method_dimension(select):
    results = runs_of()
    single = results.isel(**select)
    (axes,) = render(learning_curves(single)).axes
    np.testing.assert_allclose(
        axes.lines[0].get_ydata(), 100 * results["accuracy_mean_clients"].values[0].mean(0)
    )
    render(distribution(single))
    render(partition(single))


def test_an_unknown_metric_error_lists_the_valid_ones():
    expected = (
        r"no 'speed' over seed, round in results: "
        r"expected one of \['accuracy_best_10pct', 'accuracy_entropy', 'accuracy_gini', "
    )
    with pytest.raises(ValueError, match=expected):
        learning_curves(runs_of(), "speed")
    with pytest.raises(ValueError, match="test_accuracy"):
        learning_curves(runs_of(), "test_accuracy")
    with pytest.raises(ValueError, match="train_examples"):
        partition(runs_of().drop_vars("train_examples"))


def test_curves_of_the_distribution_pool_clients_with_test_examples_and_seeds():
    results = runs_of()
    for round in ROUNDS:
        figure = render(distribution(results, round))
        drawn = results["test_accuracy"].sel(round=round).values.reshape(2, -1)
        lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
        for line, values in zip(lines, drawn, strict=True):
            pooled = np.sort(values[~np.isnan(values)])
            x, y = line.get_data()
            assert len(pooled) == 3 * 5
            np.testing.assert_allclose(x[1:], 100 * pooled)
            np.testing.assert_allclose(y[1:], np.arange(1, 16) / 15)


def test_a_dot_marks_the_end_of_the_worst_tenth():
    results = runs_of(clients=7)  # Of 3 x 6 clients with test examples the worst two.
    lines = render(distribution(results)).axes[0].lines
    dots = [line.get_xdata()[0] for line in lines if len(line.get_xdata()) == 1]
    values = results["test_accuracy"].isel(round=-1).values.reshape(2, -1)
    expected = [100 * np.sort(own[~np.isnan(own)])[1] for own in values]
    np.testing.assert_allclose(dots, expected)


def test_the_last_round_is_the_last_of_each_method():
    results = runs_of()
    results["test_accuracy"][1, :, 2] = np.nan  # divfl stopped at round 2
    lines = distribution(results).axes[0].lines
    expected = np.nanmax(results["test_accuracy"].sel(round=2).values[1])
    second = [line for line in lines if len(line.get_xdata()) > 2][1]
    np.testing.assert_allclose(max(second.get_xdata()), 100 * expected)


def test_a_round_that_was_not_evaluated_is_refused():
    with pytest.raises(ValueError, match="round=5"):
        distribution(runs_of(), 5)


def test_a_method_keeps_its_color_in_every_figure():
    results = runs_of("abcdefghij")
    curves = learning_curves(results).axes[0].lines
    distributions = distribution(results).axes[0].lines
    styles = [(line.get_color(), line.get_linestyle()) for line in curves]
    assert len(set(styles)) == 10
    drawn = [line for line in distributions if len(line.get_xdata()) > 2]
    assert styles == [(line.get_color(), line.get_linestyle()) for line in drawn]


@pytest.mark.parametrize("num_clients", [3, 10, 100, 1000])
def test_dots_have_areas_proportional_to_counts(num_clients):
    results = runs_of(clients=num_clients)
    figure = render(partition(results))
    dots = [axes.collections[0] for axes in figure.axes]
    widths = np.concatenate([dot.get_widths() for dot in dots])
    heights = np.concatenate([dot.get_heights() for dot in dots])
    counts = results["train_examples"].values
    owned = np.sort(counts[counts > 0])
    assert widths.max() <= 0.9  # No dot leaves its cell, so that none lie on each other.
    np.testing.assert_allclose(
        np.sort(widths * heights), owned * (widths * heights).max() / owned.max()
    )


def test_dots_stand_at_their_client_and_class_sorted_by_dominant_class():
    counts = np.array([[0, 2, 7], [5, 1, 0], [0, 9, 0]])
    figure = render(partition(xr.Dataset({"train_examples": (("client", "class"), counts)})))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    places = {tuple(place) for place in axes.collections[0].get_offsets()}
    assert places == {(0, 0), (0, 1), (1, 1), (2, 1), (2, 2)}


def test_groups_come_before_classes_and_have_their_colors():
    counts = np.array([[4, 0], [0, 4], [4, 0]])
    results = xr.Dataset(
        {"train_examples": (("client", "class"), counts), "group": ("client", [1, 0, 0])}
    )
    figure = render(partition(results))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "1", "0"]
    colors = [tuple(color) for color in axes.collections[0].get_facecolors()]
    assert colors[0] == colors[1] != colors[2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["0", "1"]


def test_the_title_states_how_many_clients_are_shown():
    counts = np.ones((2500, 2), int)
    figure = partition(xr.Dataset({"train_examples": (("client", "class"), counts)}))
    assert sum(len(axes.collections[0].get_offsets()) for axes in figure.axes) == 2000
    assert figure.axes[0].get_title(loc="left").startswith("1,000 of 2,500 clients, 5,000 ")
