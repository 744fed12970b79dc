"""Comparisons of methods at a virtual time."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app.commands.show import Compare
from fedjax_fair.results.comparison import comparison_table
from fedjax_fair.results.datasets import at_common_time
from fedjax_fair.results.tables import final_tables

DIMS = ("algorithm", "seed", "round")
METHODS, SEEDS, ROUNDS = ("fedavg", "fedbuff"), 6, [0, 1, 2, 3, 8]


def made_up():
    """A synchronous method without the evaluation of round 2, and an asynchronous one."""
    rng = np.random.default_rng(0)
    shape = (len(METHODS), SEEDS, len(ROUNDS))
    times = np.pad(rng.uniform(10, 20, (*shape[:2], 4)).cumsum(2), [(0, 0), (0, 0), (1, 0)])
    level = rng.uniform(size=shape)
    times[0, :, 2] = level[0, :, 2] = np.nan
    client = rng.uniform(size=(*shape, 3))
    columns = {
        "accuracy_mean_clients": (DIMS, level),
        "virtual_time": (DIMS, times),
        "test_accuracy": ((*DIMS, "client"), client),
        "is_asynchronous": (DIMS[:2], np.repeat([[0], [1]], SEEDS, 1)),
        "cohort_clients": (("algorithm", "seed", "training_round", "slot"), np.ones((2, 6, 8, 1))),
    }
    coordinates = {"algorithm": list(METHODS), "seed": range(SEEDS), "round": ROUNDS}
    return xr.Dataset(columns, coordinates, {"data": "made up"})


def value_at(runs, name, method, seed, seconds):
    """The value of the last evaluation whose time is known and not later."""
    value = None
    for place in range(len(ROUNDS)):
        time = runs["virtual_time"].values[method, seed, place]
        if not np.isnan(time) and time <= seconds:
            value = runs[name].values[method, seed, place]
    return value


@pytest.mark.parametrize("at", [5.0, 17.0, 33.0, None])
def test_the_last_evaluation_until_a_time_counts(at):
    runs = made_up()
    # The time of an evaluation itself counts.
    seconds = float(runs["virtual_time"].max("round").min()) if at is None else at
    found = results.at_seconds(runs, seconds)
    for method, seed in np.ndindex(2, SEEDS):
        for name in ("accuracy_mean_clients", "test_accuracy"):
            expected = value_at(runs, name, method, seed, seconds)
            np.testing.assert_array_equal(found[name][method, seed, 0], expected)
    assert results.final_metrics(found)["accuracy_mean_clients"].dims == DIMS[:2]


def test_comparisons_by_round_need_one_kind_of_schedule():
    runs = made_up()
    message = "fedavg and fedbuff have rounds of different length; compare with --at-seconds T"
    with pytest.raises(ValueError, match=message):
        results.compare(runs, "accuracy_mean_clients")
    compared = results.compare(results.at_seconds(runs, 30.0), "accuracy_mean_clients")
    gaps = [
        np.subtract(*(value_at(runs, "accuracy_mean_clients", i, seed, 30.0) for i in (1, 0)))
        for seed in range(SEEDS)
    ]
    np.testing.assert_allclose(compared["difference"], [np.mean(gaps)])
    assert "Values at 30 virtual seconds." in comparison_table(compared, 1).note
    alike = runs.assign(is_asynchronous=0 * runs["is_asynchronous"])
    last = results.compare(alike, "accuracy_mean_clients")
    expected = np.diff(runs["accuracy_mean_clients"][..., -1].mean("seed"))
    np.testing.assert_allclose(last["difference"], expected)


def test_tables_of_two_kinds_are_at_the_last_time_of_all_runs():
    runs = made_up()
    end = float(runs["virtual_time"].max("round").min())
    xr.testing.assert_identical(at_common_time(runs), results.at_seconds(runs, end))
    alike = runs.assign(is_asynchronous=0 * runs["is_asynchronous"])
    assert at_common_time(alike) is alike
    assert f"at {end:g} virtual seconds" in final_tables(runs)[0].note
    assert "after the last round" in final_tables(alike)[0].note


def test_impossible_times_are_named():
    runs = made_up()
    end = runs["virtual_time"].max("round").min("seed")
    name, least = METHODS[int(end.values.argmin())], float(end.min())
    message = f"at_seconds=1000: a run of {name} has ended at {least} virtual seconds; expected"
    with pytest.raises(ValueError, match=message):
        results.at_seconds(runs, 1000)
    with pytest.raises(ValueError, match="at_seconds=0: expected a number > 0"):
        results.at_seconds(runs, 0)
    untimed = runs.assign(virtual_time=runs["virtual_time"].where(runs["algorithm"] == "fedbuff"))
    with pytest.raises(ValueError, match="at_seconds=5: fedavg has no virtual time; expected"):
        results.at_seconds(untimed, 5)
    with pytest.raises(ValueError, match="at_seconds=5: fedavg, fedbuff has no virtual time"):
        results.at_seconds(runs.drop_vars("virtual_time"), 5)


def test_the_command_compares_at_a_time(tmp_path, capsys):
    runs = made_up()
    results.save(runs, tmp_path / "results.nc")
    path, metrics = str(tmp_path / "results.nc"), ("accuracy_mean_clients",)
    with pytest.raises(ValueError, match="rounds of different length"):
        Compare((path,), metrics=metrics)()
    with pytest.raises(ValueError, match="average_last=2: expected 1 with --at-seconds"):
        Compare((path,), metrics=metrics, average_last=2, at_seconds=30.0)()
    Compare((path,), metrics=metrics, at_seconds=30.0, format="csv")()
    printed = capsys.readouterr().out.splitlines()[1:]
    for line, method in zip(printed, range(2), strict=True):
        mean = np.mean(
            [value_at(runs, "accuracy_mean_clients", method, seed, 30.0) for seed in range(SEEDS)]
        )
        assert METHODS[method] in line
        assert f"{100 * mean:.9g}"[:8] in line
