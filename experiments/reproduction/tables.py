"""Tables of what was measured beside what was reported, with paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from experiments.common import markdown_table
from fedjax_fair import results
from fedjax_fair.metrics import paired

__all__ = ["Column", "Layout", "markdown", "summarize", "write"]


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        metric: Variable of the results.
        heading: Heading of the column.
        factor: Factor of the values.
        digits: Digits after the point.
    """

    metric: str
    heading: str
    factor: float = 100
    digits: int = 2


class Layout(NamedTuple):
    """The layout of a table.

    Attributes:
        columns: Columns, by name of the papers' values.
        compared: Columns with differences.
        baselines: Methods of reference, and their names in headings.
        note: Sentences on its columns.
        last: Number of last evaluations to average, in a second table.
    """

    columns: dict[str, Column]
    compared: tuple[str, ...]
    baselines: dict[str, str]
    note: str = ""
    last: int = 5


def summarize(
    measured: xr.Dataset, layout: Layout, reported: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Computes means, deviations, and paired differences, one row per method and moment.

    Args:
        measured: Results over ``algorithm``, ``seed`` and ``round``.
        layout: The layout.
        reported: Mean and deviation in the paper, by method and column.

    Returns:
        A table for the last evaluation and the mean of the last ones. Differences are paired by
        seed, with 95% intervals (Student's t), p values adjusted for the number of methods (Holm),
        the paper's difference, and the number of seeds to detect it (power 0.8).
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
        given = [reported.get(method, {}).get(name) for method in methods]
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


def write(
    stem: Path,
    measured: xr.Dataset,
    layout: Layout,
    reported: Mapping[str, Mapping[str, Any]],
    digits: int = 4,
) -> None:
    """Writes the summary as CSV and Markdown."""
    table, seeds = summarize(measured, layout, reported), measured.sizes["seed"]
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format=f"%.{digits}f")
    shown = f"# All metrics: {stem.name}\n\n{markdown(table, seeds, layout)}"
    stem.with_suffix(".md").write_text(shown)
    print(f"{stem}: {seeds} seeds")


def markdown(table: pd.DataFrame, seeds: int, layout: Layout) -> str:
    """Formats measured next to reported values, then the paired differences."""
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    notes = [layout.note] if layout.note else []
    if seeds > 1:
        notes.append(
            "Differences are paired by seed, with 95% CI and p values that are adjusted (Holm) for "
            "the methods of a table."
        )
    if is_published := any(str(name).endswith(" paper sd") for name in table):
        notes.append(
            '"Seeds needed" is the number of seeds that would find the published difference with '
            "a power of 80%."
        )
    lines = [" ".join(notes), ""]
    for moment, rows in table.groupby("moment", sort=False):
        what = "At the last evaluation" if moment == "last" else f"Mean of the {moment} evaluations"
        headings = ["method", *(column.heading for column in layout.columns.values())]
        cells = [
            [
                row["method"],
                *(_cell(row, name, column.digits) for name, column in layout.columns.items()),
            ]
            for row in rows.to_dict("records")
        ]
        lines += [f"{what}, {over}{'; in brackets the published' if is_published else ''}.", ""]
        lines += [*markdown_table(headings, cells), ""]
        for name in layout.compared:
            for baseline, called in layout.baselines.items():
                lines += _differences(rows, name, baseline, called, layout.columns[name])
    return "\n".join(lines)


def _differences(
    rows: pd.DataFrame, name: str, baseline: str, called: str, column: Column
) -> list[str]:
    """One column's differences to one baseline."""
    label, digits = f"{name} less {baseline}", column.digits
    headings = (
        f"{column.heading} minus {called}",
        "difference",
        "p (Holm)",
        "published difference",
        "seeds needed",
    )
    cells = [
        [
            row["method"],
            _difference(row, label, digits),
            _number(row[f"{label} p"], ".3f"),
            _number(row[f"{label} paper"], f"+.{digits}f"),
            "> 10,000"
            if row[f"{label} seeds"] > 10_000
            else _number(row[f"{label} seeds"], ",.0f"),
        ]
        for row in rows.to_dict("records")
        if row["method"] != baseline
    ]
    # Columns without values are omitted.
    shown = [i for i in range(len(headings)) if any(row[i] != "-" for row in cells)]
    return [
        *markdown_table([headings[i] for i in shown], [[row[i] for i in shown] for row in cells]),
        "",
    ]


def _number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else f"{value:{form}}"


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
