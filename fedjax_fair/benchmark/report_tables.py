"""Tables of a benchmark as files: CSV with all digits, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.benchmark import measure_labels
from fedjax_fair.benchmark.measure_labels import GROUPS, MEASURES, measure_of
from fedjax_fair.benchmark.report_contents import (
    BASELINE,
    COLUMNS,
    OVERALL,
    RANKED,
    Contents,
    settings_are,
    shown_measures,
    unit_of,
)
from fedjax_fair.results.comparison_table import latex_table
from fedjax_fair.results.csv_text import to_csv
from fedjax_fair.results.intervals import format_p
from fedjax_fair.results.tables import Table
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["latex", "markdown", "result_tables", "write_tables"]

_MAIN = next(iter(GROUPS.values()))
"""Measures of LaTeX tables, which must fit a page."""


def write_tables(contents: Contents, folder: Path) -> list[Path]:
    """Writes results per federation and rankings as CSV, Markdown and LaTeX.

    Args:
        contents: What the tables show.
        folder: An existing folder, or a new one.

    Returns:
        Paths: ``results.csv``, ``ranking.csv`` and ``verdicts.csv`` with all digits, accuracies
        as fractions; ``evidence.csv``, on which verdicts are based; ``results.md`` and
        ``ranking.md`` with a table per federation; and ``results-FEDERATION.tex`` and
        ``ranking-SCOPE.tex``.
    """
    texts = {
        f"{name}.csv": to_csv(getattr(contents, name))
        for name in ("results", "ranking", "verdicts")
    }
    evidence = contents.evidence[list(COLUMNS["evidence"])]
    texts["evidence.csv"] = to_csv(evidence, float_format="%.6g")
    federations = contents.federations
    texts["results.md"] = "\n".join(map(markdown, result_tables(contents, MEASURES)))
    for name in federations:
        texts[f"results-{_file_name(name)}.tex"] = latex(_results(contents, name, _MAIN))
    scopes = [name for name in (OVERALL, *federations) if (contents.ranking["scope"] == name).any()]
    texts["ranking.md"] = "\n".join(markdown(_ranking(contents, scope)) for scope in scopes)
    for scope in scopes:
        texts[f"ranking-{_file_name(scope)}.tex"] = latex(_ranking(contents, scope))
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        (folder / name).write_text(content, encoding="utf8", newline="\n")
    return [folder / name for name in texts]


def result_tables(contents: Contents, among: Collection[str]) -> list[Table]:
    """Returns a table of some measures for each federation, with a row per method."""
    return [_results(contents, name, among) for name in contents.federations]


def markdown(table: Table) -> str:
    r"""Formats a table as Markdown, with its title and note as text.

    Examples:
        >>> print(markdown(Table("Title", ("a", "b"), [("x|y", "1.0")], "Note.")))
        Title. Note.
        <BLANKLINE>
        | a | b |
        |---|---:|
        | x\|y | 1.0 |
        <BLANKLINE>
    """

    def line(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    dashes = "|---|" + "---:|" * (len(table.headings) - 1)
    rows = [line(table.headings), dashes, *map(line, table.rows)]
    return "\n".join([f"{table.title}. {table.note}", "", *rows, ""])


def latex(table: Table) -> str:
    """Formats a table for LaTeX's package booktabs, with its title and note as caption."""
    return latex_table(f"{table.title}. {table.note}", [table.headings, *table.rows])


def _results(contents: Contents, federation: str, among: Collection[str]) -> Table:
    results = contents.results[contents.results["federation"] == federation]
    shown = [name for name in shown_measures(results) if name in among]
    headings = ("method", *(measure_labels.heading(federation, name) for name in shown))
    rows = []
    for row in results.to_dict("records"):
        name = escape_control_chars(row["method"])
        name += " (personalized)" if row["model"] == "personalized" else ""
        diverged = f", {100 * row['diverged']:.0f}% diverged" if row["diverged"] > 0 else ""
        rows.append(
            (
                name + diverged,
                *(measure_labels.value(measure, row, federation) for measure in shown),
            )
        )
    seeds = results["seeds"]
    low, high = (int(seeds.min()), int(seeds.max())) if len(results) else (0, 0)
    count = f"{low}" if low == high else f"{low} to {high}"
    note = (
        f"Mean ± half of the 95% CI over {count} seeds; settings selected by: "
        f"{settings_are(federation)}. -: missing."
    )
    return Table(f"Results on {escape_control_chars(federation)}", headings, rows, note)


def _ranking(contents: Contents, scope: str) -> Table:
    table = contents.ranking[contents.ranking["scope"] == scope]
    unit, scale = unit_of(scope)
    headings = ["rank", "method", "letters"]
    for name in RANKED:
        headings += [f"{measure_of(scope, name).label} ({unit})", "95% CI", "p"]
    rows = []
    for row in table.to_dict("records"):
        rank = measure_labels.MISSING if np.isnan(row["rank"]) else f"{row['rank']:.0f}"
        cells = [rank, escape_control_chars(row["method"]), str(row["letters"]) or "-"]
        for name in RANKED:
            cells += _difference(row, name, scale)
        rows.append(tuple(cells))
    note = (
        f"By {measure_of(scope, RANKED[0]).label}; differences to {BASELINE}. p: tests "
        f"against {BASELINE}, Holm over methods. Methods with a letter in common are not "
        "separated in tests of all pairs, Holm over pairs."
    )
    where = "all federated datasets" if scope == OVERALL else escape_control_chars(scope)
    return Table(f"Ranking, {where}", tuple(headings), rows, note)


def _difference(row: dict[str, Any], name: str, scale: float) -> list[str]:
    point, low, high, p = (
        float(row[f"{name}_{key}"]) for key in ("difference", "low", "high", "p")
    )
    ends = measure_labels.interval(low, high, scale) or measure_labels.MISSING
    return [measure_labels.difference(point, scale), ends, format_p(p)]


def _file_name(name: str) -> str:
    """Replaces characters that files may not have.

    Examples:
        >>> _file_name("synthetic(1,1)")
        'synthetic_1_1_'
    """
    return re.sub(r"[^\w-]", "_", name, flags=re.ASCII)
