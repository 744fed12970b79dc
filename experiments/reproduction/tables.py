"""Tables of what was measured beside what was reported, with paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats

__all__ = ["Column", "Layout", "markdown", "paired", "summarize"]

Interval = tuple[float, float, float]


class Column(NamedTuple):
    """A number of a table.

    Attributes:
        metric: The variable that holds it.
        heading: What stands above it.
        factor: What it is multiplied by.
        digits: Digits after the point.
    """

    metric: str
    heading: str
    factor: float = 100
    digits: int = 2


class Layout(NamedTuple):
    """What a table shows.

    Attributes:
        columns: Its numbers, by the name under which the papers' are known.
        compared: Those of which differences are shown.
        baselines: Methods they are differences to, and what these are called.
        last: Evaluations at the end of which the mean is shown besides the last one.
    """

    columns: dict[str, Column]
    compared: tuple[str, ...]
    baselines: dict[str, str]
    last: int = 5


def summarize(
    measured: xr.Dataset, layout: Layout, reported: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """One row a method and moment: means, deviations, and paired differences with intervals.

    Args:
        measured: Results over ``algorithm``, ``seed`` and ``round``.
        layout: What to show.
        reported: By method and column, the mean and deviation that a paper gives.

    Returns:
        A table whose moments are the last evaluation and the mean of the last few. Differences are
        to the same seeds of a baseline, with 95 % intervals of Student's t.
    """
    rows = []
    for moment, last in (("last", 1), (f"last {layout.last}", layout.last)):
        values = {
            name: column.factor
            * measured[column.metric].isel(round=slice(-last, None)).mean("round")
            for name, column in layout.columns.items()
        }
        for method in measured["algorithm"].values:
            row = {"method": method, "moment": moment}
            for name, over_seeds in values.items():
                own = over_seeds.sel(algorithm=method)
                row |= {name: own.mean().item(), f"{name} sd": own.std(ddof=1).item()}
                given = reported.get(method, {}).get(name)
                if given:
                    row |= {f"{name} paper": given[0], f"{name} paper sd": given[1]}
            for baseline in layout.baselines:
                for name in layout.compared:
                    low, mean, high = paired(
                        values[name].sel(algorithm=method).values,
                        values[name].sel(algorithm=baseline).values,
                    )
                    label = f"{name} less {baseline}"
                    row |= {label: mean, f"{label} low": low, f"{label} high": high}
            rows.append(row)
    return pd.DataFrame(rows)


def paired(own: np.ndarray, other: np.ndarray) -> Interval:
    """Mean of paired differences between its 95 % limits; NaN limits for a single pair."""
    gaps = own - other
    mean = float(np.mean(gaps))
    if gaps.size < 2:
        return np.nan, mean, np.nan
    half = float(stats.t.ppf(0.975, gaps.size - 1) * np.std(gaps, ddof=1) / np.sqrt(gaps.size))
    return mean - half, mean, mean + half


def markdown(table: pd.DataFrame, seeds: int, layout: Layout) -> str:
    """The table for readers: measured beside reported, then the paired differences."""
    over, intervals = "one seed", ""
    if seeds > 1:
        over = f"mean ± standard deviation over {seeds} seeds"
        intervals = ", with 95 % confidence intervals"
    lines = []
    for moment, rows in table.groupby("moment", sort=False):
        what = "At the last evaluation" if moment == "last" else f"Mean of the {moment} evaluations"
        lines += [
            f"{what}, {over}; in brackets the paper's.",
            "",
            *_ruled(["method", *(column.heading for column in layout.columns.values())]),
        ]
        for _, row in rows.iterrows():
            cells = [_cell(row, name, column.digits) for name, column in layout.columns.items()]
            lines.append(_line([row["method"], *cells]))
        differences = [(name, base) for name in layout.compared for base in layout.baselines]
        lines += [
            "",
            f"Paired differences (same seeds){intervals}.",
            "",
            *_ruled(
                ["method", *(f"{name} less {layout.baselines[base]}" for name, base in differences)]
            ),
        ]
        for _, row in rows.iterrows():
            cells = [
                _difference(row, f"{name} less {base}", layout.columns[name].digits)
                for name, base in differences
            ]
            lines.append(_line([row["method"], *cells]))
        lines.append("")
    return "\n".join(lines)


def _ruled(headings: list[str]) -> list[str]:
    return [_line(headings), "|---" * len(headings) + "|"]


def _line(cells: list[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _cell(row: pd.Series, name: str, digits: int) -> str:
    if np.isnan(row[name]):
        return "-"
    own = f"{row[name]:.{digits}f}"
    if not np.isnan(row[f"{name} sd"]):
        own += f" ± {row[f'{name} sd']:.{digits}f}"
    reported: Any = row.get(f"{name} paper", np.nan)
    if np.isnan(reported):
        return own
    return f"{own} [{reported:.2f} ± {row[f'{name} paper sd']:.2f}]"


def _difference(row: pd.Series, label: str, digits: int) -> str:
    low, high = row[f"{label} low"], row[f"{label} high"]
    if row[label] == 0 and not low < 0:
        return "-"
    if np.isnan(low):
        return f"{row[label]:+.{digits}f}"
    return f"{row[label]:+.{digits}f} ({low:+.{digits}f}, {high:+.{digits}f})"
