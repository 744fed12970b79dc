"""Estimated time and memory of a benchmark, before it starts."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple

from fedjax_fair.benchmark.runner import Plan
from fedjax_fair.benchmark.unit import is_done
from fedjax_fair.results.tables import Table

__all__ = ["Cost", "estimate", "measured"]


class Cost(NamedTuple):
    """Measured cost of a federated dataset.

    Attributes:
        seconds: Mean time of a method on two cores, compilation included.
        gigabytes: Largest memory of a process that runs twelve methods on this dataset only.
    """

    seconds: float
    gigabytes: float


def measured() -> dict[str, Cost]:
    """Returns the committed measurements by federated dataset.

    ``python -m experiments.benchmarks.benchmark_costs`` makes them.
    """
    text = resources.files("fedjax_fair.benchmark").joinpath("costs.csv").read_text("utf8")
    return {
        row["federation"]: Cost(float(row["seconds"]), float(row["gigabytes"]))
        for row in csv.DictReader(text.splitlines())
    }


def estimate(planned: Plan) -> Table:
    """Returns a table of the missing units of a plan by federated dataset."""
    known, track = measured(), planned.track
    rows, seconds, gigabytes = [], 0.0, 0.0
    for name in dict.fromkeys(unit.federation.name for unit in planned.units):
        waiting = [u for u in planned.units if u.federation.name == name and not is_done(u)]
        runs = len(waiting) * track.num_settings * len(track.tuning_seeds)
        runs += len(waiting) * len(track.final_seeds)  # With the same setting for all criteria.
        cost = known[name.removesuffix("_dropouts")]  # Variants took as long.
        of_dataset, memory = len(waiting) * cost.seconds, cost.gigabytes if waiting else 0.0
        seconds, gigabytes = seconds + of_dataset, max(gigabytes, memory)
        rows.append((name, str(len(waiting)), f"{runs:,}", _time(of_dataset), _memory(memory)))
    num_methods = str(sum(int(row[1]) for row in rows))
    rows.append(("all", num_methods, "", _time(seconds), _memory(gigabytes)))
    return Table(
        f"Estimated costs of the track {planned.name}",
        ("federation", "methods", "runs (at least)", "time", "memory"),
        rows,
        "Missing work only. Measured on two CPU cores with an empty compilation cache. A process "
        "with several datasets has taken up to a third more memory than for the largest alone.",
    )


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _memory(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB"
