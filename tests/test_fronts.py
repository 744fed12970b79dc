"""Pareto fronts, hypervolumes, attainment and dominance over paired seeds."""

import itertools

import numpy as np
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.app.cli import main

DIMS = ("algorithm", "seed", "round")
# Two examples with values that were computed by hand.
SIX = [(0.84, 0.18), (0.83, 0.10), (0.82, 0.04), (0.80, 0.05), (0.79, 0.02), (0.835, 0.19)]
LEVELS = [[0.84, 0.845, 0.835], [0.83, 0.825, 0.835], [0.80, 0.81, 0.80]]
GAPS = [[0.18, 0.16, 0.17], [0.08, 0.10, 0.09], [0.03, 0.02, 0.04]]


def results_of(levels, gaps, names=("accuracy_mean_clients", "client_dissimilarity")):
    arrays = [np.asarray(values, float)[..., None] for values in (levels, gaps)]
    coordinates = {
        "algorithm": [f"m{i}" for i in range(len(levels))],
        "seed": np.arange(arrays[0].shape[1]),
    }
    data = {name: (DIMS, array) for name, array in zip(names, arrays, strict=True)}
    return xr.Dataset(data, coordinates)


def test_a_front_by_hand():
    level, gap = ([[point[i]] for point in SIX] for i in range(2))
    found = ff.analysis.front(results_of(level, gap), reference=(0.75, 0.20))
    assert found["is_front"].values[:, 0].tolist() == [True, True, True, False, True, False]
    assert float(found["hypervolume"][0]) == pytest.approx(0.0132)
    alone = ff.analysis.front(results_of(level[:1], gap[:1]), reference=(0.75, 0.20))
    assert float(alone["hypervolume"][0]) == pytest.approx(0.0018)


def test_seeds_have_fronts_of_their_own():
    found = ff.analysis.front(results_of(LEVELS, GAPS), reference=(0.75, 0.20))
    np.testing.assert_allclose(found["hypervolume"], [0.0123, 0.0131, 0.01185])
    assert found["is_front"].values[:, 2].tolist() == [False, True, True]
    np.testing.assert_allclose(found["share"], [2 / 3, 1, 1])
    attained = found["attainment"].sel(level=[0.02, 0.08, 0.10, 0.18])
    expected = [
        [np.nan, 0.83, 0.83, 0.84],
        [0.81, 0.81, 0.825, 0.845],
        [np.nan, 0.80, 0.835, 0.835],
    ]
    np.testing.assert_allclose(attained, expected)


def test_dominance_needs_both():
    points = ff.analysis.front(results_of(LEVELS, GAPS))
    found = ff.analysis.dominance(points, "m1", "m0", margin=0.02)
    assert found.p_accuracy == pytest.approx(0.1127, abs=5e-5)
    assert found.p_unfairness == pytest.approx(0.0101, abs=5e-5)
    assert found.p == found.p_accuracy
    reverse = ff.analysis.dominance(points, "m0", "m1", margin=0.02)
    assert reverse.p_unfairness == pytest.approx(1 - found.p_unfairness)


def brute_force(level, gap):
    return [
        not any(
            a >= level[i] and b <= gap[i] and (a > level[i] or b < gap[i])
            for a, b in zip(level, gap, strict=True)
        )
        for i in range(len(level))
    ]


@pytest.mark.parametrize("seed", range(30))
def test_fronts_equal_brute_force(seed):
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 9), rng.integers(1, 4)
    level, gap = (rng.integers(0, 5, shape) / 8 for _ in range(2))  # With ties.
    is_known = rng.random(shape) > 0.1
    level = np.where(is_known, level, np.nan)
    found = ff.analysis.front(results_of(level, gap), reference=(-0.1, 0.8))
    for place in range(shape[1]):
        known = is_known[:, place]
        expected = np.zeros(shape[0], bool)
        expected[known] = brute_force(level[known, place], gap[known, place])
        np.testing.assert_array_equal(found["is_front"].values[:, place], expected)
        # The integral of the attained accuracy over unfairness, between neighboring gaps.
        ends = np.unique([*gap[known, place], 0.8])
        expected = 0.0
        for low, high in itertools.pairwise(ends):
            reached = level[known, place][gap[known, place] <= low]
            expected += (high - low) * (reached.max() + 0.1) if len(reached) else 0.0
        assert float(found["hypervolume"][place]) == pytest.approx(expected)


def test_less_is_better_of_errors():
    names = ("mean_absolute_error_mean_clients", "mean_absolute_error_standard_deviation")
    runs = results_of([[3.0], [2.0], [2.5]], [[0.5], [0.9], [0.6]], names)
    runs.attrs["quantities"] = '["mean_absolute_error"]'
    for name in names:
        runs[name].attrs["better"] = "lower"
    found = ff.analysis.front(runs, *names, reference=(4.0, 1.0))
    assert found["is_front"].values[:, 0].tolist() == [True, True, True]
    assert float(found["hypervolume"][0]) == pytest.approx(1.0 * 0.5 + 0.5 * 0.4 + 0.5 * 0.1)
    np.testing.assert_allclose(found["attainment"][0], [3.0, 2.5, 2.0])


def test_settings_of_a_sweep_are_points():
    levels = np.array([[[0.9], [0.8]], [[0.7], [0.6]]])[..., None]  # method, setting, seed, round
    dims = ("algorithm", "prox", "seed", "round")
    swept = xr.Dataset(
        {"accuracy_mean_clients": (dims, levels), "client_dissimilarity": (dims, levels**2)},
        {"algorithm": ["fedprox", "ditto"], "prox": [0.1, 1.0], "seed": [0]},
    )
    found = ff.analysis.front(swept)
    assert found["algorithm"].values.tolist() == [
        "fedprox, prox=0.1", "fedprox, prox=1", "ditto, prox=0.1", "ditto, prox=1",
    ]  # fmt: skip
    assert found["is_front"].all()


def test_hypervolumes_of_equal_references_are_comparable():
    """By default, the worst of all methods and seeds."""
    found = ff.analysis.front(results_of(LEVELS, GAPS))
    assert found.attrs["reference"] == [0.80, 0.18]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"accuracy": "acuracy"}, "metric='acuracy': expected a variable"),
        ({"unfairness": "accuracy_mean_clients"}, "expected a metric of which less is better"),
        ({"unfairness": "unknown"}, "metric='unknown': expected one of which more or less"),
    ],
)
def test_bad_metrics_are_named(arguments, message):
    runs = results_of(LEVELS, GAPS).assign(unknown=(DIMS, np.ones((3, 3, 1))))
    with pytest.raises(ValueError, match=message):
        ff.analysis.front(runs, **arguments)


def test_bad_comparisons_are_named():
    points = ff.analysis.front(results_of(LEVELS, GAPS))
    with pytest.raises(ValueError, match="method='ditto'"):
        ff.analysis.dominance(points, "ditto", "m0")
    with pytest.raises(ValueError, match=r"margin=-0\.1"):
        ff.analysis.dominance(points, "m1", "m0", -0.1)
    with pytest.raises(ValueError, match="points with one seed"):
        ff.analysis.dominance(points.isel(seed=[0]), "m1", "m0")


@pytest.mark.integration
def test_the_command_shows_the_front_of_a_sweep(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = ["sweep", "digits", "learning_rate=0.001,0.1", "seeds=0:2", "--methods", "fedavg"]
    assert main([*sweep, "--training.rounds", "4", "--quiet"]) == 0
    capsys.readouterr()
    (folder,) = (tmp_path / "sweeps").iterdir()
    assert main(["compare", str(folder), "--front", "--plot", "front.png"]) == 0
    out = capsys.readouterr().out
    assert "Front of 2 methods or settings" in out
    rows = [line.split() for line in out.splitlines() if line.endswith("%")]
    share = ff.analysis.front(ff.results.open(folder))["share"].values
    expected = [f"{100 * value:.0f}%" for value in sorted(share, reverse=True)]
    assert [row[-1] for row in rows if row[0] != "accuracy_mean_clients,"] == expected
    assert (tmp_path / "front.png").stat().st_size > 10_000
    assert main(["compare", str(folder), "--front", "--metrics", "accuracy_minimum"]) == 2
    assert "expected accuracy and unfairness with --front" in capsys.readouterr().err


def test_points_of_few_methods_have_names():
    level, gap = ([[point[i]] for point in 4 * SIX] for i in range(2))
    for number, expected in ((6, [f"m{i}" for i in range(6)]), (24, [])):
        points = ff.analysis.front(results_of(level[:number], gap[:number]))
        texts = [text.get_text() for text in ff.report.attained(points).axes[0].texts]
        assert sorted(texts) == expected


def test_names_cover_neither_points_nor_each_other():
    levels, gaps = [[0.9], [0.9001], [np.nan], [0.7]], [[0.1], [0.1001], [np.nan], [0.3]]
    runs = results_of(levels, gaps)
    figure = ff.report.attained(ff.analysis.front(runs))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["m1", "m0", "m3"]
    boxes = [text.get_window_extent() for text in axes.texts]
    for box, other in itertools.combinations(boxes, 2):
        assert not box.overlaps(other)
        assert axes.bbox.x0 <= min(box.x0, other.x0) < max(box.x1, other.x1) <= axes.bbox.x1
    points = axes.transData.transform([(10, 90), (10.01, 90.01), (30, 70)])
    assert not any(box.contains(*point) for box in boxes for point in points)


def test_names_that_would_leave_the_axes_are_left_out():
    levels, gaps = [[0.9]] * 4 + [[0.7]], [[0.1]] * 4 + [[0.3]]
    runs = results_of(levels, gaps).assign_coords(algorithm=[f"{i}" * 40 for i in range(5)])
    figure = ff.report.attained(ff.analysis.front(runs))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 3
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)
