"""Estimated costs of the benchmark."""

import pytest

from fedjax_fair.app.cli import main
from fedjax_fair.app.settings.registry import GROUPS
from fedjax_fair.benchmark import costs, runner
from fedjax_fair.benchmark.protocol import TRACKS, UNRANKED


def test_times_are_added_and_the_largest_memory_counts(tmp_path, monkeypatch):
    known = {"digits": costs.Cost(60, 1.5), "groups": costs.Cost(1500, 3.5)}
    monkeypatch.setattr(costs, "measured", lambda: known)
    planned = runner.plan("embedded", tmp_path, ["fedavg", "divfl", "ditto"], [*known])
    assert [row[3:] for row in costs.estimate(planned).rows] == [
        ("3.0 min", "1.5 GB"),
        ("1.2 h", "3.5 GB"),
        ("1.3 h", "3.5 GB"),
    ]


def test_planned_figures_are_lower_bounds_for_their_device(tmp_path, monkeypatch):
    known = {"digits": costs.Cost(60, 50.0, "h100"), "groups": costs.Cost(1500, 3.5)}
    monkeypatch.setattr(costs, "measured", lambda: known)
    table = costs.estimate(runner.plan("embedded", tmp_path, ["fedavg"], ["digits"]))
    assert [row[3:] for row in table.rows] == [("at least 1.0 min", "50.0 GB")] * 2
    assert "h100" in table.note
    assert "h100" not in costs.estimate(runner.plan("embedded", tmp_path, [], ["groups"])).note


def test_a_variant_costs_as_much_as_its_dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "measured", lambda: {"adult": costs.Cost(60, 1.5)})
    planned = runner.plan("standard", tmp_path, ["fedavg"], ["adult", "adult_dropouts"])
    assert [row[3:] for row in costs.estimate(planned).rows] == [
        ("1.0 min", "1.5 GB"),
        ("1.0 min", "1.5 GB"),
        ("2.0 min", "1.5 GB"),
    ]


@pytest.mark.parametrize("names", [["digits", "groups"], ["groups", "digits"]])
def test_a_dataset_without_a_measurement_has_no_estimate(tmp_path, monkeypatch, names):
    monkeypatch.setattr(costs, "measured", lambda: {"digits": costs.Cost(60, 1.5)})
    planned = runner.plan("embedded", tmp_path, ["fedavg"], names)
    shown = {row[0]: row[3:] for row in costs.estimate(planned).rows}
    assert shown["digits"] == ("1.0 min", "1.5 GB")
    assert shown["groups"] == shown["all"] == ("not measured", "not measured")
    for unit in planned.units:
        if unit.federation.name == "groups":
            unit.folder.mkdir(parents=True)
            (unit.folder / "final.jsonl").touch()
    shown = {row[0]: row[3:] for row in costs.estimate(planned).rows}
    assert shown["groups"] == ("0.0 min", "0.0 GB")
    assert shown["all"] == ("1.0 min", "1.5 GB")


def test_all_methods_are_those_with_a_place_in_a_track(tmp_path, monkeypatch, capsys):
    plans, estimate = [], costs.estimate
    monkeypatch.setattr(costs, "estimate", lambda plan: plans.append(plan) or estimate(plan))
    arguments = ["--methods", "all", "--dry-run", "--output", str(tmp_path)]
    assert main(["benchmark", "embedded", *arguments]) == 0
    names = {unit.method for unit in plans[0].units}
    assert not names & {*UNRANKED, *GROUPS["adapters"], *GROUPS["asynchronous"]}
    assert names >= {"fedavg", "fedpw", "pfedfair", "median", "scaffold+fedadam"}
    assert "digits" in capsys.readouterr().out


def test_measurements_are_of_datasets_of_the_tracks():
    of_tracks = {
        name for track in TRACKS.values() for name in (*track.federations, *track.variants)
    }
    assert costs.measured().keys() <= of_tracks
    for cost in costs.measured().values():
        assert min(cost.seconds, cost.gigabytes) > 0
