"""Tables of a benchmark as files: CSV with all digits, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.benchmark import measure_labels
from fedjax_fair.benchmark.measure_labels import GROUPS, MEASURES, measure_of
from fedjax_fair.benchmark.ranking import ORDERS, UNTESTED
from fedjax_fair.benchmark.report_contents import (
    BASELINE,
    OVERALL,
    Contents,
    settings_are,
    shown_measures,
    unit_of,
)
from fedjax_fair.results.formats import Table, format_number, format_p, latex, markdown, to_csv
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["ORDER_LABELS", "comparison_tables", "result_tables", "verdict_of", "write_tables"]

ORDER_LABELS = {
    "accuracy": "accuracy",
    "spread": "SD",
    "compute": "accuracy at equal compute",
    "megabytes": "accuracy at equal MB",
    "stopped": "accuracy, rounds chosen",
}
_MAIN = next(iter(GROUPS.values()))
"""Measures of LaTeX tables, which must fit a page."""
_MAIN_ORDERS = ("accuracy", "spread")
"""Orders of the first table of ranks."""


def write_tables(contents: Contents, folder: Path) -> list[Path]:
    """Writes the tables as CSV, Markdown and LaTeX.

    Args:
        contents: What the tables show.
        folder: An existing folder, or a new one.

    Returns:
        Paths: ``results.csv``, ``ranking.csv`` and ``differences.csv`` with all digits, accuracies
        as fractions; ``report.md`` with statements, ranking, differences and what is undecided;
        ``results.md`` with a table of measures per federation; and each of these tables as LaTeX.
    """
    texts = {
        f"{name}.csv": to_csv(getattr(contents, name))
        for name in ("results", "ranking", "differences")
    }
    federations = contents.federations
    texts["results.md"] = "\n".join(map(markdown, result_tables(contents, MEASURES)))
    for name in federations:
        texts[f"results-{_file_name(name)}.tex"] = latex(_results(contents, name, _MAIN))
    tables = {name: table for name, table in comparison_tables(contents).items() if table.rows}
    texts["report.md"] = "\n".join(map(markdown, tables.values()))
    texts |= {f"{_file_name(name)}.tex": latex(table) for name, table in tables.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        (folder / name).write_text(content, encoding="utf8", newline="\n")
    return [folder / name for name in texts]


def comparison_tables(contents: Contents) -> dict[str, Table]:
    """Returns tables of what is known, rankings, the differences, and what is undecided."""
    return {
        "statements": _statements(contents),
        "ranking": _ranking(contents),
        "orders": _other_orders(contents),
        **{f"differences-{name}": _differences(contents, name, "F2")
           for name in contents.federations},
        **{f"group-gaps-{name}": _differences(contents, name, "F3")
           for name in contents.federations},
        "undecided": _undecided(contents),
    }  # fmt: skip


def result_tables(contents: Contents, among: Collection[str]) -> list[Table]:
    """Returns a table of some measures for each federation, with a row per method."""
    return [_results(contents, name, among) for name in contents.federations]


def _results(contents: Contents, federation: str, among: Collection[str]) -> Table:
    results = contents.results[contents.results["federation"] == federation]
    shown = [name for name in shown_measures(results) if name in among]
    headings = ("method", *(measure_labels.heading(federation, name) for name in shown))
    rows = []
    for row in results.to_dict("records"):
        name = escape_control_chars(row["method"])
        name += " (personalized)" if row["model"] == "personalized" else ""
        name += " (limit)" if row["at_limit"] else ""
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
        f"Mean ± half of the 95% CI over {count} blocks; settings selected by: "
        f"{settings_are(federation)}. -: missing."
    )
    return Table(f"Results on {escape_control_chars(federation)}", headings, rows, note)


def _statements(contents: Contents) -> Table:
    rows = []
    for row in contents.statements.to_dict("records"):
        *cells, difference, interval = _claim(row)
        rows.append((*cells, verdict_of(row), difference, interval, format_p(row["p"])))
    note = (
        f"Claims against {BASELINE} with p below .05, adjusted for all hypotheses of a family: by "
        "step-down max-|t| over the sign flips of blocks, for equivalence by Holm. Families: all "
        "ranks over datasets; accuracy and SD of all datasets; group gaps. Less is better in ranks "
        "and SD. Equivalent: within 0.5 of the unit. Fairer: less spread by rank, accuracy not "
        "inferior by half a point on average, and more spread on no dataset. Robust: the same "
        "direction in worst 10% and Gini, without any dataset, and with rounds chosen on "
        "validation examples. Last round only: another verdict with rounds chosen on validation "
        "examples."
    )
    headings = ("dataset", "method", "measure", "verdict", "difference", "95% CI", "p")
    return Table("What is known", headings, rows, note)


def _claim(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns dataset, method, measure, difference and interval of a row with a verdict."""
    scope = str(row["scope"])
    name = ORDERS[row["order"]].measure if scope == OVERALL else str(row["measure"])
    unit, scale = unit_of(scope, name)
    label = measure_of(scope, name).label
    return (
        "all" if scope == OVERALL else escape_control_chars(scope),
        escape_control_chars(row["method"]),
        f"{'rank by ' if scope == OVERALL else ''}{label} ({unit})",
        *_difference(row, scale),
    )


def _difference(row: dict[str, Any], scale: float) -> tuple[str, str]:
    ends = measure_labels.interval(row["low"], row["high"], scale, 2)
    return measure_labels.difference(row["difference"], scale, 2), ends or measure_labels.MISSING


def verdict_of(row: dict[str, Any]) -> str:
    """Returns the verdict of a row of statements in words."""
    if row.get("is_fairer") is True:
        return "fairer, robust" if row["is_robust"] else "fairer"
    return f"{row['verdict']}{', last round only' if row['needs_last_round'] else ''}"


def _ranking(contents: Contents) -> Table:
    without = ", ".join(contents.without_spread)
    note = (
        "Mean rank over datasets and blocks among the reference methods that ran on all datasets "
        f"with settings at no limit of a range; difference to {BASELINE} in ranks, less is better. "
        "Settings: the highest mean validation accuracy; for SD, the least spread within one "
        f"point of it. SD / {BASELINE}'s: geometric mean over datasets."
    )
    note += f" Without the spread of {without}, which is mostly chance." if without else ""
    return _orders("Ranking, all datasets", contents, _MAIN_ORDERS, note)


def _other_orders(contents: Contents) -> Table:
    note = (
        f"Ranks by accuracy. At equal compute: the highest accuracy with the operations of "
        f"{BASELINE}. At equal MB: after the rounds that send what {BASELINE} sends in both "
        "directions. Rounds chosen: on validation examples of each run."
    )
    others = [name for name in ORDERS if name not in _MAIN_ORDERS]
    return _orders("Ranking at equal costs and with rounds chosen", contents, others, note)


def _orders(title: str, contents: Contents, names: Collection[str], note: str) -> Table:
    """Returns a table of some orders, with a row per method."""
    orders = {}
    for name, rows in contents.ranking.groupby("order", sort=False):
        if name in names:
            orders[str(name)] = {row["method"]: row for row in rows.to_dict("records")}
    headings = ["method"]
    for name in orders:
        headings += [f"rank by {ORDER_LABELS[name]}", "beaten (%)", f"to {BASELINE}", "95% CI"]
        headings += ["p"] if name not in UNTESTED else []
        headings += [f"SD / {BASELINE}'s"] if name == "spread" else []
    rows = []
    for method in next(iter(orders.values()), {}):
        cells = [escape_control_chars(method)]
        for name, of_method in orders.items():
            row = of_method[method]
            cells += [f"{row['rank']:.1f}", f"{100 * row['beaten']:.0f}", *_difference(row, 1.0)]
            cells += [format_p(row["p"])] if name not in UNTESTED else []
            cells += [format_number(row["spread_ratio"], ".2f")] if name == "spread" else []
        rows.append(tuple(cells))
    return Table(title, tuple(headings), rows, note)


def _differences(contents: Contents, federation: str, family: str) -> Table:
    table = contents.differences
    table = table[(table["federation"] == federation) & (table["family"] == family)]
    measures = list(dict.fromkeys(table["measure"]))
    headings = ["method"]
    for name in measures:
        unit, _ = unit_of(federation, name)
        label = measure_of(federation, name).label
        headings += [f"{label} ({unit})", "95% CI", "p", "verdict"]
    rows = []
    by_method = table.sort_values("difference", ascending=False, kind="stable")
    first = by_method[by_method["measure"] == measures[0]] if measures else table
    for method in dict.fromkeys([*first["method"], *table["method"]]):
        cells = [escape_control_chars(method)]
        own = table[table["method"] == method].set_index("measure").to_dict("index")
        for name in measures:
            if name in own:
                row = own[name]
                cells += [*_difference(row, unit_of(federation, name)[1]), format_p(row["p"])]
                cells.append(row["verdict"] or measure_labels.MISSING)
            else:
                cells += [measure_labels.MISSING] * 4
        rows.append(tuple(cells))
    where = escape_control_chars(federation)
    note = (
        f"Differences to {BASELINE}, with intervals of blocks and test pool. p: adjusted for all "
        f"{'datasets and methods' if family == 'F2' else 'group gaps'} (step-down max-|t|). "
        "Limit: no claim, because settings of the worse method are at the limit of a range."
    )
    if family == "F2" and federation in contents.chance:
        note += f" Chance explains {100 * contents.chance[federation]:.0f}% of the variance"
        note += f" of {BASELINE} over clients"
        is_chance = federation in contents.without_spread
        note += ", so that spread has no verdict." if is_chance else "."
    title = "Differences" if family == "F2" else "Group gaps"
    return Table(f"{title} on {where}", tuple(headings), rows, note)


def _undecided(contents: Contents) -> Table:
    rows = []
    for row in contents.undecided.to_dict("records"):
        needed = measure_labels.MISSING
        if not np.isnan(row["blocks_needed"]):
            is_finite = np.isfinite(row["blocks_needed"])
            needed = f"{row['blocks_needed']:,.0f}" if is_finite else "none suffice"
        rows.append((*_claim(row), f"{row['blocks']:.0f}", needed))
    note = (
        "Neither a difference nor equivalence is shown. Needed: blocks to find a difference of "
        "0.5 of the unit, or of one rank, with probability 0.8 at the threshold of the family; "
        "none suffice where the test pool is too small."
    )
    headings = ("dataset", "method", "measure", "difference", "95% CI", "blocks", "needed")
    return Table("What could not be decided", headings, rows, note)


def _file_name(name: str) -> str:
    """Replaces characters that files may not have.

    Examples:
        >>> _file_name("synthetic(1,1)")
        'synthetic_1_1_'
    """
    return re.sub(r"[^\w-]", "_", name, flags=re.ASCII)
