"""Estimated time and memory of a benchmark, before it starts."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple

from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import SETTINGS
from fedjax_fair.benchmark.runner import Plan
from fedjax_fair.benchmark.unit import is_done
from fedjax_fair.results.tables import Table

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
    rows, seconds, gigabytes, device = [], 0.0, 0.0, ""
    for name in dict.fromkeys(unit.federation.name for unit in planned.units):
        waiting = [u for u in planned.units if u.federation.name == name and not is_done(u)]
        # With one window, and the same setting for all criteria.
        runs = len(waiting) * (2 + SETTINGS) * track.num_blocks
        cost = known[FEDERATIONS[name].variant_of or name]  # Variants took as long.
        device = device or cost.planned_for
        of_dataset, memory = len(waiting) * cost.seconds, cost.gigabytes if waiting else 0.0
        seconds, gigabytes = seconds + of_dataset, max(gigabytes, memory)
        time = _time(of_dataset, cost.planned_for)
        rows.append((name, str(len(waiting)), f"{runs:,}", time, _memory(memory)))
    num_methods = str(sum(int(row[1]) for row in rows))
    rows.append(("all", num_methods, "", _time(seconds, device), _memory(gigabytes)))
    return Table(
        f"Estimated costs of the track {planned.name}",
        ("federation", "methods", "runs (at least)", "time", "memory"),
        rows,
        f"Missing work only. {_PLANNED.format(device) if device else _MEASURED}",
    )


def _time(seconds: float, device: str) -> str:
    time = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
    return f"at least {time}" if device else time


def _memory(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB"
