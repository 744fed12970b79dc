"""Tables and comparisons of methods with personalized models."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app.terminal.progress import _format_metrics
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.report import plots
from fedjax_fair.results.comparison import default_metrics
from fedjax_fair.results.datasets import reference
from fedjax_fair.results.tables import final_tables

DIMS = ("algorithm", "seed", "round")
NAMES = ["fedavg", "ditto", "ditto (personalized)", "local (personalized)"]
NAN = np.full((5, 1), np.nan)


def made_up():
    rng = np.random.default_rng(0)
    levels = [rng.uniform(low, low + 0.02, (5, 1)) for low in (0.5, 0.6, 0.7, 0.8)]
    fedavg, ditto, own, local = levels
    accuracy = np.stack([fedavg, ditto, NAN]), np.stack([NAN, own, local])
    columns = {}
    for prefix, values in zip(("", "personalized_"), accuracy, strict=True):
        columns[f"{prefix}accuracy_mean_clients"] = (DIMS, values)
        columns[f"{prefix}accuracy_mean_examples"] = (DIMS, values)
        columns[f"{prefix}client_dissimilarity"] = (DIMS, values / 10)
    columns["test_examples"] = (("client", "class"), np.full((20, 1), 25))
    coordinates = {"algorithm": ["fedavg", "ditto", "local"], "seed": range(5), "round": [9]}
    return xr.Dataset(columns, coordinates, {"data": "made up", "label_skew_only": 1}), levels


def test_each_model_is_a_row_with_its_own_values_and_noise_floor():
    runs, levels = made_up()
    by_model, _ = default_metrics(runs)
    assert by_model.algorithm.values.tolist() == NAMES
    np.testing.assert_array_equal(by_model.accuracy_mean_clients, np.stack(levels))
    floors = results.noise_floor(by_model, ["client_dissimilarity"]).client_dissimilarity.values
    assert len(set(floors.tolist())) == 4
    assert np.isfinite(floors).all()
    (table,) = final_tables(runs)
    assert [row[0] for row in table.rows] == [*NAMES, "noise floor"]
    assert "personalized ones with fedavg, which serves the clients" in table.note


def test_results_without_personalized_models_are_unchanged():
    runs = made_up()[0]
    plain = runs.drop_vars([name for name in runs if name.startswith("personalized_")])
    assert results.by_model(plain) is plain


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("fedavg", [None, (1, 0), (2, 0), (3, 0)]),
        ("ditto", [(0, 2), None, None, (3, 2)]),
        ("local", [(0, 3), None, (2, 3), None]),
    ],
)
def test_models_are_compared_with_the_corresponding_model_of_the_baseline(baseline, expected):
    runs, levels = made_up()
    compared = results.compare(results.by_model(runs), "accuracy_mean_clients", baseline)
    for name, pair in zip(NAMES, expected, strict=True):
        if name not in compared.algorithm:
            assert name == compared.baseline
            continue
        difference = compared.difference.sel(algorithm=name).item()
        if pair is None:
            assert np.isnan(difference)
        else:
            assert difference == pytest.approx((levels[pair[0]] - levels[pair[1]]).mean())
    assert reference(NAMES[2], NAMES, baseline) == compared.baseline


def test_a_sweep_is_ranked_by_the_models_that_serve_the_clients():
    dims = ("algorithm", "lam", "seed", "round")
    own, shared = np.array([[[0.6]], [[0.8]]]), np.array([[[0.7]], [[0.5]]])
    columns = {}
    for prefix, values in {"": shared, "personalized_": own}.items():
        for split in ("", "validation_"):
            columns[f"{prefix}{split}accuracy_mean_clients"] = (dims, values[None])
    swept = xr.Dataset(columns, {"algorithm": ["ditto"], "lam": [0.0, 1.0]}, {"data": "made up"})
    (table,) = final_tables(swept)
    assert [row[:2] for row in table.rows] == [
        ("ditto, lam=1 (personalized)", "80.0"),
        ("ditto, lam=0 (personalized)", "60.0"),
    ]
    assert "ranked by validation accuracy of personalized models" in table.note


def test_curves_and_progress_name_the_model():
    runs, levels = made_up()
    lines = plots.learning_curves(runs).axes[0].lines
    assert [line.get_label() for line in lines] == NAMES
    assert [line.get_ydata()[0] for line in lines] == pytest.approx(
        [100 * level.mean() for level in levels]
    )
    values = {name: runs[name][1, :, 0].values for name in runs if runs[name].dims == DIMS}
    shown = _format_metrics(values, ACCURACY)
    assert shown.startswith("global: accuracy 6")
    assert "personalized: accuracy 7" in shown
    values = {name: runs[name][2, :, 0].values for name in runs if runs[name].dims == DIMS}
    assert _format_metrics(values, ACCURACY).startswith("personalized: accuracy 8")
