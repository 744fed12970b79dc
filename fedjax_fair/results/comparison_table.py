"""Tables of comparisons as text cells, and their Markdown, LaTeX and CSV forms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedjax_fair.metrics import BY_NAME
from fedjax_fair.results.csv_text import to_csv
from fedjax_fair.results.intervals import format_half_width, format_number, format_p
from fedjax_fair.results.model_names import method_of
from fedjax_fair.results.tables import NOISE_FLOOR, STAR, Table, about_references
from fedjax_fair.results.units import is_percent
from fedjax_fair.results.virtual_time import when
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["COLUMNS", "LATEX_COLUMNS", "comparison_table", "latex", "markdown", "to_text"]

COLUMNS = {
    "mean": "mean",
    "noise_floor": "noise\nfloor",
    "difference": "difference",
    "interval": "95% CI\nStudent",
    "bootstrap": "95% CI\nbootstrap",
    "p": "p\nHolm",
    "effect": "effect",
    "seeds_needed": "seeds\nneeded",
}
"""Headings of the columns after the method, by name."""

LATEX_COLUMNS = ("mean", "difference", "interval", "p")
"""Default columns of LaTeX tables."""

_OF_METHOD = ["mean", "deviation", "half_width", "noise_floor"]
_OF_DIFFERENCE = ["difference", "low", "high", "bootstrap_low", "bootstrap_high"]
_WITHOUT_UNIT = ["p", "is_significant", "effect_size", "seeds", "seeds_needed"]


def comparison_table(compared: xr.Dataset, digits: int, columns: Sequence[str] = ()) -> Table:
    """Lays out differences in one metric, the baseline first.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        digits: Decimals of percentages; values in other units have four significant digits.
        columns: Names in `COLUMNS`, in the order of the table; by default all.

    Raises:
        ValueError: If a column is unknown or repeated.
    """
    columns = tuple(columns) or tuple(
        name for name in COLUMNS if name != "noise_floor" or _can_have_floor(compared)
    )
    for name in columns:
        checks.one_of("columns", name, tuple(COLUMNS))
    if len(set(columns)) < len(columns):
        raise ValueError(f"columns={columns}: expected each column once; remove the copies.")
    unit, attributes = _unit(compared), compared.attrs
    form = f".{digits}f" if unit == "%" else ".4g"
    rows = []
    for row in _frame(compared).to_dict("records"):
        cells = _cells(row, form)
        rows.append((row["method"], *(cells[name] for name in columns)))
    in_unit = "" if unit == "1" else f", in {unit}"
    title = (
        f"{attributes['long_name'] or attributes['metric']}{in_unit}: "
        f"differences to {method_of(attributes['baseline'])}"
    )
    headings = ("method", *(COLUMNS[name] for name in columns))
    return Table(escape_control_chars(title), headings, rows, _note(compared, columns))


def _can_have_floor(compared: xr.Dataset) -> bool:
    """Returns whether a noise floor may be known; it never is for errors and other quantities."""
    return compared.attrs["metric"] in BY_NAME or bool(compared["noise_floor"].notnull().any())


def _cells(row: dict[str, Any], form: str) -> dict[str, str]:
    """Formats the cells of a method by column."""
    value = {name: format_number(row[name], f"+{form}") for name in _OF_DIFFERENCE}
    interval, bootstrap = (
        "-" if np.isnan(row[f"{kind}low"]) else f"{value[f'{kind}low']}, {value[f'{kind}high']}"
        for kind in ("", "bootstrap_")
    )
    return {
        "mean": format_half_width(row["mean"], row["half_width"], form),
        "noise_floor": format_number(row["noise_floor"], form),
        "difference": value["difference"] + ("*" if row["is_significant"] == 1 else ""),
        "interval": interval,
        "bootstrap": bootstrap,
        "p": format_p(row["p"]),
        "effect": format_number(row["effect_size"], "+.2f"),
        "seeds_needed": format_number(row["seeds_needed"], ",.0f").replace("inf", "∞"),
    }


def _note(compared: xr.Dataset, columns: Sequence[str]) -> str:
    """Explains the columns."""
    attributes = compared.attrs
    runs = np.unique(compared["seeds"].where(compared["seeds"] > 0, drop=True).values.astype(int))
    runs = runs if runs.size else np.zeros(1, int)
    seeds = f"{runs.min()}" if runs.size == 1 else f"{runs.min()} to {runs.max()}"
    parts = {
        "mean": "±: half of the 95% CI of the mean",
        "difference": STAR,
        "effect": "Effect: Cohen's d",
        "seeds_needed": "Seeds needed: to detect this difference with probability 0.8",
        "noise_floor": NOISE_FLOOR.removesuffix("."),
    }
    over = [f"Over {seeds} {'paired ' if attributes['paired'] else ''}seeds"]
    if left_out := attributes.get("seeds_left_out"):
        over[0] += f", without seed {left_out}, which not every method has"
    over += [parts.pop(name) for name in ("mean", "difference") if name in columns]
    sentences = ["; ".join(over), *(text for name, text in parts.items() if name in columns)]
    names = [attributes["baseline"], *map(str, compared["algorithm"].values)]
    note = f"{'. '.join(sentences)}.{about_references(names, attributes['baseline'])}"
    if attributes["metric"] not in BY_NAME and (better := attributes.get("better")):
        note = f"{note} {'Closer to 0' if better == 'zero' else better.capitalize()} is better."
    said = [f"{attributes[name]}." for name in ("runs", "differ") if name in attributes]
    if "at_seconds" in attributes:
        said.insert(0, f"Values {when(compared)}.")
    said += [attributes["empty"]] if attributes.get("empty") else []
    return " ".join([note, *said])


def to_text(
    compared: xr.Dataset,
    form: Literal["markdown", "latex", "csv"] = "markdown",
    columns: Sequence[str] = (),
) -> str:
    r"""Formats a comparison as a table. Accuracies and their differences are in percent.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        form: ``"markdown"``; ``"latex"``, a table with caption for the package booktabs; or
            ``"csv"``, with all digits.
        columns: Columns after the method, in order: ``mean``, ``noise_floor``, ``difference``,
            ``interval``, ``bootstrap``, ``p``, ``effect`` and ``seeds_needed``. By default all; in
            LaTeX mean, difference, interval and p. CSV always has the same columns.

    Returns:
        The text, which ends with a newline. ``*`` marks significant differences (p < 0.05 after
        Holm's correction).

    Raises:
        ValueError: If ``form`` or a column is unknown, or columns are given for CSV.

    Examples:
        >>> import xarray as xr
        >>> from fedjax_fair.results import compare
        >>> accuracy = [[[0.7], [0.9]], [[0.8], [1.1]]]
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {"accuracy_mean_clients": (dims, accuracy, {"units": "1"})},
        ...     {"algorithm": ["fedavg", "divfl"], "round": [10]},
        ... )
        >>> compared = compare(runs, "accuracy_mean_clients")
        >>> print("\n".join(to_text(compared, columns=["mean", "p"]).splitlines()[2:]))
        | method | mean | p Holm |
        |---|---:|---:|
        | fedavg | 80.00 ± 127.06 | - |
        | divfl | 95.00 ± 190.59 | .205 |
    """
    checks.one_of("form", form, ("markdown", "latex", "csv"))
    if form == "csv":
        if columns:
            raise ValueError(f"columns={tuple(columns)}: expected none for CSV, which has all.")
        frame, attributes = _frame(compared), compared.attrs
        about = attributes["metric"], _unit(compared), escape_control_chars(attributes["baseline"])
        for place, name in enumerate(("metric", "unit", "baseline")):
            frame.insert(place, name, about[place])
        return to_csv(frame)
    if form == "latex":
        columns = columns or LATEX_COLUMNS
    table = comparison_table(compared, 2, columns)
    return markdown(table) if form == "markdown" else latex(table)


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
    head, *body = (
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        for row in _rows_of(table)
    )
    dashes = "|---|" + "---:|" * (len(table.headings) - 1)
    return "\n".join([f"{table.title}. {table.note}", "", head, dashes, *body, ""])


def latex(table: Table) -> str:
    """Formats a table for LaTeX's package booktabs, with its title and note as caption."""
    head, *body = (" & ".join(map(_latex, row)) + r" \\" for row in _rows_of(table))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(f'{table.title}. {table.note}')}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _rows_of(table: Table) -> list[tuple[str, ...]]:
    """Returns the headings, in one line each, and the rows."""
    return [tuple(heading.replace("\n", " ") for heading in table.headings), *table.rows]


def _frame(compared: xr.Dataset) -> pd.DataFrame:
    """One row per method, the baseline first, in the unit of `_unit`."""
    import pandas as pd

    names = [*_OF_METHOD, *_OF_DIFFERENCE, *_WITHOUT_UNIT]
    baseline = {name: [float(compared[f"baseline_{name}"])] for name in _OF_METHOD}
    first = pd.DataFrame(baseline, [compared.attrs["baseline"]])
    frame: Any = pd.concat([first, compared[names].to_dataframe()])[names].astype(float)
    if _unit(compared) == "%":
        frame[_OF_METHOD + _OF_DIFFERENCE] *= 100
    frame.insert(0, "method", [escape_control_chars(name) for name in frame.index])
    return frame


def _unit(compared: xr.Dataset) -> str:
    unit = compared.attrs["units"] or "1"
    return "%" if is_percent(compared.attrs["metric"], unit) else unit


def _latex(cell: str) -> str:
    r"""Escapes a cell for LaTeX.

    Examples:
        >>> _latex("by_size, 5 %"), _latex("-0.5 ± 1.0")
        ('by\\_size, 5 \\%', '$-$0.5 $\\pm$ 1.0')
    """
    escaped = "".join(_LATEX.get(char, char) for char in cell)
    return re.sub(r"(?<!\S)([-+])(?=\d)", r"$\1$", escaped)


_LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "*": r"$^*$",
    "<": "$<$",
}
