"""Tables of what was measured beside what was reported, with paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from fedjax_fair import results
from fedjax_fair.metrics import paired

__all__ = ["Column", "Layout", "markdown", "summarize"]


class Column(NamedTuple):
    """A number of a table.

    Attributes:
        metric: The variable that holds it.
        heading: What stands above it.
        factor: What it is multiplied by.
        digits: Digits after the point.
        reported: The paper's number to set beside it, if not its own.
    """

    metric: str
    heading: str
    factor: float = 100
    digits: int = 2
    reported: str | None = None


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
        to the same seeds of a baseline, with 95 % intervals of Student's t, p values that are
        adjusted for all methods compared in a column (Holm), the paper's difference, and the
        number of seeds that one of that size needs (power 0.8).
    """
    moments = {"last": 1, f"last {layout.last}": layout.last}
    return pd.concat(
        [_at(moment, last, measured, layout, reported) for moment, last in moments.items()],
        ignore_index=True,
    )


def _at(
    moment: str,
    last: int,
    measured: xr.Dataset,
    layout: Layout,
    reported: Mapping[str, Mapping[str, Any]],
) -> pd.DataFrame:
    methods = [str(name) for name in measured["algorithm"].values]
    table = pd.DataFrame({"method": methods, "moment": moment})
    papers: dict[str, list[float]] = {}
    ends = {}
    at_end = results.final_metrics(measured, last)
    for name, column in layout.columns.items():
        ends[name] = column.factor * at_end[column.metric]
        table[name] = ends[name].mean("seed").values
        table[f"{name} sd"] = ends[name].std("seed", ddof=1).values
        given = [reported.get(method, {}).get(column.reported or name) for method in methods]
        papers[name] = [np.nan if one is None else one[0] for one in given]
        if any(given):
            table[f"{name} paper"] = papers[name]
            table[f"{name} paper sd"] = [np.nan if one is None else one[1] for one in given]
    for name in layout.compared:
        for baseline in layout.baselines:
            found = results.differences(ends[name], baseline)
            by_paper = np.array(papers[name]) - papers[name][methods.index(baseline)]
            label = f"{name} less {baseline}"
            table[label] = found["difference"].values
            table[f"{label} low"] = found["low"].values
            table[f"{label} high"] = found["high"].values
            table[f"{label} p"] = found["p"].values
            table[f"{label} paper"] = by_paper
            table[f"{label} seeds"] = [
                paired.seeds_needed(gap, deviation) if deviation > 0 else np.nan
                for gap, deviation in zip(
                    by_paper, found["difference_deviation"].values, strict=True
                )
            ]
    return table


def markdown(table: pd.DataFrame, seeds: int, layout: Layout) -> str:
    """The table for readers: measured beside reported, then the paired differences."""
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    lines = []
    for moment, rows in table.groupby("moment", sort=False):
        what = "At the last evaluation" if moment == "last" else f"Mean of the {moment} evaluations"
        lines += [
            f"{what}, {over}; in brackets the paper's.",
            "",
            *_ruled(["method", *(column.heading for column in layout.columns.values())]),
        ]
        for row in rows.to_dict("records"):
            cells = [_cell(row, name, column.digits) for name, column in layout.columns.items()]
            lines.append(_line([row["method"], *cells]))
        lines.append("")
        for name in layout.compared:
            for baseline, called in layout.baselines.items():
                lines += _differences(rows, name, baseline, called, layout.columns[name])
    return "\n".join(lines)


def _differences(
    rows: pd.DataFrame, name: str, baseline: str, called: str, column: Column
) -> list[str]:
    """One column's differences to one baseline."""
    label, digits = f"{name} less {baseline}", column.digits
    lines = _ruled(
        [f"{column.heading} less {called}", "difference", "p (Holm)", "the paper's", "seeds for it"]
    )
    for row in rows.to_dict("records"):
        if row["method"] == baseline:
            continue
        by_paper, needed = row[f"{label} paper"], row[f"{label} seeds"]
        lines.append(
            _line(
                [
                    row["method"],
                    _difference(row, label, digits),
                    _number(row[f"{label} p"], ".3f"),
                    _number(by_paper, f"+.{digits}f"),
                    "-" if np.isnan(needed) else _number(needed, ",.0f"),
                ]
            )
        )
    return [*lines, ""]


def _number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else f"{value:{form}}"


def _ruled(headings: list[str]) -> list[str]:
    return [_line(headings), "|---" * len(headings) + "|"]


def _line(cells: list[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _cell(row: dict[Any, Any], name: str, digits: int) -> str:
    if np.isnan(row[name]):
        return "-"
    own = f"{row[name]:.{digits}f}"
    if not np.isnan(row[f"{name} sd"]):
        own += f" ± {row[f'{name} sd']:.{digits}f}"
    reported: Any = row.get(f"{name} paper", np.nan)
    if np.isnan(reported):
        return own
    return f"{own} [{reported:.2f} ± {row[f'{name} paper sd']:.2f}]"


def _difference(row: dict[Any, Any], label: str, digits: int) -> str:
    low, high = row[f"{label} low"], row[f"{label} high"]
    if row[label] == 0 and not low < 0:
        return "equal in every seed"
    if np.isnan(low):
        return f"{row[label]:+.{digits}f}"
    return f"{row[label]:+.{digits}f} ({low:+.{digits}f}, {high:+.{digits}f})"
