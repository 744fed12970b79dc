"""Estimated time and memory of a benchmark, before it starts."""

from __future__ import annotations

import csv
import math
from importlib import resources
from typing import NamedTuple

from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import SETTINGS
from fedjax_fair.benchmark.runner import Plan
from fedjax_fair.benchmark.unit import is_done
from fedjax_fair.results.formats import Table

__all__ = ["Cost", "estimate", "measured"]

_MEASURED = (
    "Measured on two CPU cores with an empty compilation cache. A process with several datasets "
    "has taken up to a third more memory than for the largest alone."
)
_PLANNED = (
    "Not measured: times are lower bounds by fedjax-fair plan for one {}, without compilation, and "
    "memory is that of a run of the track's method that needs most."
)


class Cost(NamedTuple):
    """Measured cost of a federated dataset.

    Attributes:
        seconds: Mean time of a method on two cores, compilation included; or the lower bound for
            the device that it is planned for, without compilation.
        gigabytes: Largest memory of a process that runs twelve methods on this dataset only; or of
            a run on that device.
        planned_for: The device of figures that are planned, not measured; otherwise empty.
    """

    seconds: float
    gigabytes: float
    planned_for: str = ""


def measured() -> dict[str, Cost]:
    """Returns the committed measurements by federated dataset.

    ``python -m experiments.benchmarks.benchmark_costs`` makes them.
    """
    text = resources.files("fedjax_fair.benchmark").joinpath("costs.csv").read_text("utf8")
    return {
        row["federation"]: Cost(float(row["seconds"]), float(row["gigabytes"]), row["planned_for"])
        for row in csv.DictReader(text.splitlines())
    }


def estimate(planned: Plan) -> Table:
    """Returns a table of the missing units of a plan by federated dataset."""
    known, track = measured(), planned.track
    rows, of_all, device = [], [], ""
    for name in dict.fromkeys(unit.federation.name for unit in planned.units):
        waiting = [u for u in planned.units if u.federation.name == name and not is_done(u)]
        # With one window, and the same setting for all criteria.
        runs = len(waiting) * (2 + SETTINGS) * track.num_blocks
        # Variants have the examples and the rounds of their dataset.
        cost = known.get(FEDERATIONS[name].variant_of or name, Cost(math.nan, math.nan))
        device = device or cost.planned_for
        cost = cost._replace(seconds=len(waiting) * cost.seconds)
        cost = cost if waiting else Cost(0.0, 0.0)
        of_all.append(cost)
        rows.append((name, str(len(waiting)), f"{runs:,}", *_shown(cost)))
    num_methods = str(sum(int(row[1]) for row in rows))
    # The sum is NaN if one dataset has no measurement.
    seconds = sum(cost.seconds for cost in of_all)
    total = Cost(seconds, max((cost.gigabytes for cost in of_all), default=0.0), device)
    rows.append(("all", num_methods, "", *_shown(total)))
    return Table(
        f"Estimated costs of the track {planned.name}",
        ("federation", "methods", "runs (at least)", "time", "memory"),
        rows,
        f"Missing work only. {_PLANNED.format(device) if device else _MEASURED}",
    )


def _shown(cost: Cost) -> tuple[str, str]:
    """Returns time and memory with units."""
    if math.isnan(cost.seconds):
        return "not measured", "not measured"
    hours = cost.seconds / 3600
    time = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
    return f"at least {time}" if cost.planned_for else time, f"{cost.gigabytes:.1f} GB"
