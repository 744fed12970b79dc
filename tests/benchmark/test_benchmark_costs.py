"""Estimated costs of the benchmark."""

from fedjax_fair.benchmark import costs, runner
from fedjax_fair.benchmark.protocol import TRACKS


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


def test_a_variant_costs_as_much_as_its_dataset(tmp_path):
    names = ["adult", "adult_dropouts"]
    planned = runner.plan("standard", tmp_path, ["fedavg"], names)
    whole, variant, _ = costs.estimate(planned).rows
    assert whole[1:] == variant[1:]


def test_costs_of_all_datasets_are_measured(tmp_path):
    for track in TRACKS:
        rows = costs.estimate(runner.plan(track, tmp_path)).rows
        assert all(row[-1] != "0.0 GB" for row in rows)
    measured = costs.measured()
    assert all(min(cost.seconds, cost.gigabytes) > 0 for cost in measured.values())
    assert [name for name, cost in measured.items() if cost.planned_for] == ["cifar10_resnet18"]
