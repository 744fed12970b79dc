"""Estimated time of a benchmark, before it starts."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple

from fedjax_fair.benchmark.runner import Plan
from fedjax_fair.benchmark.unit import is_done
from fedjax_fair.results.tables import Table

__all__ = ["Cost", "estimate", "measured"]

_UNKNOWN = "not measured"


class Cost(NamedTuple):
    """Measured cost of a unit: seconds of two cores, compilation included.

    Rows of the embedded track have the mean over its 34 units, which took 297 s, or 523 processor
    seconds.
    Those of the standard track have the mean time between finished units, while other programs used
    a part of the machine.
    """

    seconds: float


def measured() -> dict[tuple[str, str], Cost]:
    """Returns the committed measurements by federated dataset and method."""
    text = resources.files("fedjax_fair.benchmark").joinpath("costs.csv").read_text("utf8")
    return {
        (row["federation"], row["method"]): Cost(float(row["seconds"]))
        for row in csv.DictReader(text.splitlines())
    }


def estimate(planned: Plan) -> Table:
    """Returns a table of the missing units of a plan by federated dataset.

    A method that was not measured counts as the most expensive one of its dataset.
    """
    known = measured()
    rows, total = [], 0.0
    track = planned.track
    for name in dict.fromkeys(unit.federation.name for unit in planned.units):
        waiting = [u for u in planned.units if u.federation.name == name and not is_done(u)]
        of_dataset = [cost for (federation, _), cost in known.items() if federation == name]
        costs = [known.get((name, unit.method), max(of_dataset, default=None)) for unit in waiting]
        runs = len(waiting) * track.num_settings * len(track.tuning_seeds)
        runs += len(waiting) * len(track.final_seeds)  # With the same setting for all criteria.
        if any(cost is None for cost in costs):
            rows.append((name, str(len(waiting)), f"{runs:,}", _UNKNOWN))
            continue
        seconds = sum(cost.seconds for cost in costs if cost)
        total += seconds
        rows.append((name, str(len(waiting)), f"{runs:,}", _format(seconds)))
    is_known = all(row[-1] != _UNKNOWN for row in rows)
    whole = _format(total) if is_known else _UNKNOWN
    rows.append(("all", str(sum(int(row[1]) for row in rows)), "", whole))
    return Table(
        f"Estimated costs of the track {planned.name}",
        ("federation", "methods", "runs (at least)", "time"),
        rows,
        "Missing work only. Measured on two CPU cores with an empty compilation cache.",
    )


def _format(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
