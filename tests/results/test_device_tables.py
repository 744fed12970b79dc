"""The table of device classes in the terminal, and their figure."""

import numpy as np
import pytest
from conftest import linear_model, make_federation

import fedjax_fair as ff
from fedjax_fair import aggregators, schedules, selectors, solvers
from fedjax_fair.report import device_plots
from fedjax_fair.results.formats import format_mean
from fedjax_fair.results.tables import final_tables
from fedjax_fair.timing import ClientTimes

DATA = make_federation()
TIMES = ClientTimes(
    [0.5, 0.1, 0.6, 0.1, 0.1, 0.1], device_class=[1, 0, 1, 0, 0, 0], class_names=("fast", "slow")
)


def method(schedule, aggregator, selector=None):
    sgd = solvers.SGD(0.1, 2, epochs=1)
    return ff.Round(
        linear_model(), selector or selectors.Full(), sgd, aggregator, schedule=schedule
    )


@pytest.fixture(scope="module")
def runs():
    methods = {
        "fedavg": method(schedules.Synchronous(TIMES), aggregators.Mean(), selectors.Uniform(2)),
        "fedbuff": method(schedules.Asynchronous(TIMES, buffer_size=2), aggregators.FedBuff()),
    }
    settings = {"rounds": 8, "eval_every": 1}
    found = {}
    for name, each in methods.items():
        expected = ff.analysis.expected_parity(each, DATA, draws=20, **settings)
        found[name] = ff.fit(each, DATA, seeds=(0, 1, 2), **settings).dataset.assign(expected)
    untimed = method(None, aggregators.Mean())
    found["untimed"] = ff.fit(untimed, DATA, seeds=(0, 1, 2), **settings).dataset
    return found


def test_the_table_has_accuracy_shares_and_parity_of_classes(runs):
    combined = ff.results.combine(runs).drop_vars("is_asynchronous")  # Compares rounds.
    *_, table = final_tables(combined)
    assert table.title == "Test accuracy of device classes (small)"
    assert [row[0] for row in table.rows] == ["fedavg", "fedbuff"]
    fast, slow = "fast\n67% of clients", "slow\n33% of clients"
    parity = "participation\nparity", "weight\nparity"
    assert table.headings == ("method", fast, slow, *parity, "virtual\nseconds")
    for row in table.rows:
        last = runs[row[0]].isel(round=-1)
        for place, cell in enumerate(row[1:3]):
            own = last.isel(device_class=place)
            names = ("device_accuracy", "participation_share", "weight_share")
            expected = [format_mean(100 * own[f"class_{name}"].values) for name in names]
            assert cell.split("\n") == expected
        for cell, name in zip(row[3:5], ("participation_parity", "weight_parity"), strict=True):
            chance = format_mean(100 * np.full(3, last[f"{name}_expected"]))
            assert cell.split("\n") == [format_mean(100 * last[name].values), chance]
        assert row[5] == format_mean(last["virtual_time"].values)
    assert table.rows[1][2] != table.rows[0][2]
    assert "expected value if all clients were equally fast" in table.note


def test_methods_of_two_kinds_are_shown_at_a_common_time(runs):
    *_, table = final_tables(ff.results.combine({n: runs[n] for n in ("fedavg", "fedbuff")}))
    seconds = min(runs[name].virtual_time[:, -1].min() for name in ("fedavg", "fedbuff"))
    assert f"at {float(seconds):g} virtual seconds" in table.note
    at = ff.results.at_seconds(runs["fedbuff"].expand_dims(algorithm=["fedbuff"]), float(seconds))
    assert table.rows[1][5] == format_mean(at.virtual_time.values.ravel())


def test_results_without_chance_or_weights_have_fewer_lines(runs):
    few = runs["fedbuff"].drop_vars(
        [name for name in runs["fedbuff"] if "weight" in name or name.endswith("_expected")]
    )
    *_, table = final_tables(ff.results.combine({"fedbuff": few}))
    assert [cell.count("\n") for cell in table.rows[0]] == [0, 1, 1, 0, 0]
    assert "expected" not in table.note


def test_curves_of_classes_are_over_virtual_time(runs):
    two = ff.results.combine({name: runs[name] for name in ("fedavg", "fedbuff")})
    figure = device_plots.device_curves(two)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["fast", "slow"]
    for place, axes in enumerate(figure.axes):
        assert [line.get_label() for line in axes.lines] == ["fedavg", "fedbuff"]
        for line in axes.lines:
            own = runs[line.get_label()].isel(device_class=place)
            assert line.get_xdata()[-1] == own.virtual_time[:, -1].min()
            for at, value in zip(line.get_xdata(), line.get_ydata(), strict=True):
                last = (own.virtual_time <= at).sum("round") - 1
                expected = own.class_device_accuracy.isel(round=last).mean()
                np.testing.assert_allclose(value, 100 * expected, rtol=1e-6)
    assert "device_curves" in ff.report.standard_figures(two)
    assert "device_curves" not in ff.report.standard_figures(runs["untimed"])
