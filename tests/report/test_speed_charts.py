"""The data of the charts of virtual time is that of the results."""

import numpy as np
import pytest
from scipy import stats
from synthetic import make_results

from fedjax_fair.report import page
from fedjax_fair.report.contents import contents
from fedjax_fair.results import at_seconds

FLOORS = np.full(2, np.nan)


def found_in(results):
    return contents(results, FLOORS)


@pytest.mark.parametrize("clock", ["virtual_time", "client_seconds"])
def test_curves_have_the_last_evaluation_until_each_time(clock):
    results = make_results(seeds=3, rounds=12, evaluations=5, groups=True, timed=True)
    # One method has fewer evaluations.
    for name in ("accuracy_mean_clients", "client_dissimilarity", "group_accuracy", clock):
        results[name][0, :, 1] = np.nan
    times = results[clock].values
    found = found_in(results)["times"][clock]
    for method in range(2):
        evaluated = [0, 2, 3, 4] if method == 0 else [0, 1, 2, 3, 4]
        at, _, low, high = map(np.asarray, found["level"][method])
        assert at[0] == 0
        np.testing.assert_allclose(at[-1], times[method, :, -1].min())
        for name, curve in (
            ("accuracy_mean_clients", found["level"][method]),
            ("client_dissimilarity", found["dissimilarity"][method]),
            *((("group_accuracy", g), found["groups"][g][method]) for g in range(2)),
        ):
            name, *group = (name,) if isinstance(name, str) else name
            values = results[name].values[method][(..., *group)]
            for place, time in enumerate(curve[0]):
                runs = [
                    [v for v, t in zip(values[run][evaluated], times[method, run][evaluated],
                                       strict=True) if t <= time][-1]
                    for run in range(3)
                ]  # fmt: skip
                np.testing.assert_allclose(curve[1][place], 100 * np.mean(runs), atol=6e-4)
        if clock == "virtual_time":
            selected = at_seconds(results, at[60])["accuracy_mean_clients"]
            last = 100 * selected.values[method, :, 0]
            interval = stats.t.interval(0.95, 2, last.mean(), stats.sem(last))
            np.testing.assert_allclose([low[60], high[60]], interval, atol=6e-4)


def test_shares_staleness_and_tasks_are_those_of_the_cohorts():
    results = make_results(seeds=2, rounds=40, slots=2, timed=True)
    results["cohort_arrived"][0, 0, 0, 0] = results["cohort_dispatched"][0, 0, 0, 0]  # No task.
    found = found_in(results)
    assert found["classes"] == ["fast", "slow"]
    clients = results["cohort_clients"].values
    counts = results["cohort_responded"].values > 0
    for method in range(2):
        for c, (share, measured, weights) in enumerate(found["class_shares"][method]):
            assert share == 50
            for kind, shown in (("participation", measured), ("weight", weights)):
                runs = 100 * results[f"class_{kind}_share"].values[method, :, -1, c]
                low, high = stats.t.interval(0.95, 1, runs.mean(), stats.sem(runs))
                np.testing.assert_allclose(shown, [runs.mean(), low, high], rtol=1e-5)
            own = results["cohort_staleness"].values[method][
                counts[method] & (clients[method] % 2 == c)
            ]
            bins, shares = found["staleness"][method][c]
            expected = [100 * (own == bin).mean() for bin in bins]
            np.testing.assert_allclose(shares, expected, atol=6e-4)
            assert max(bins) == own.max()
        starts, ends = (
            results[f"cohort_{name}"].values[method, 0].ravel()
            for name in ("dispatched", "arrived")
        )
        order = [place for place in np.argsort(starts) if ends[place] > starts[place]][:40]
        tasks = [
            [starts[place], ends[place], clients[method, 0].ravel()[place] % 2,
             counts[method, 0].ravel()[place]]
            for place in order
        ]  # fmt: skip
        assert found["tasks"][method] == tasks


def test_pages_of_runs_without_a_schedule_have_no_charts_of_time():
    found = found_in(make_results())
    assert not {"times", "classes", "class_speed", "tasks"} & found.keys()
    html = page(make_results())
    assert "Speed" not in html
    assert 'id="choose-axis"' not in html
    timed = page(make_results(timed=True))
    assert "<h1>Speed</h1>" in timed
    assert 'id="choose-axis"' in timed
    assert '<option value="virtual_time" selected>' in timed  # Of two kinds of schedules.
    alike = make_results(timed=True)
    alike["is_asynchronous"] = 0 * alike["is_asynchronous"]
    assert '<option value="" selected>' in page(alike)


def test_accuracies_of_two_kinds_are_compared_at_one_time():
    results = make_results(seeds=2, rounds=30, evaluations=8, timed=True)
    end = float(results["virtual_time"].max("round").min())
    selected = at_seconds(results, end)
    tradeoff = found_in(results)["tradeoff"]
    for method in range(2):
        for place, name in enumerate(("client_dissimilarity", "accuracy_mean_clients")):
            mean = 100 * float(selected[name][method].mean())
            np.testing.assert_allclose(tradeoff[method][place][0], mean, rtol=1e-5)
    assert f"At {end:g} virtual seconds" in page(results)
