"""A comparison as a table: Markdown, LaTeX, CSV, and the cells that a terminal shows."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedjax_fair import checks
from fedjax_fair.text import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["HEADINGS", "caption", "cells", "to_text"]

FORMS = ("markdown", "latex", "csv")
HEADINGS = (
    "method", "mean ± sd", "noise floor", "difference", "95 % (Student)", "95 % (bootstrap)",
    "p (Holm)", "effect", "seeds needed",
)  # fmt: skip
_IN_UNIT = ("mean", "deviation", "noise_floor")
_OF_DIFFERENCE = ("difference", "low", "high", "bootstrap_low", "bootstrap_high")
_WITHOUT_UNIT = ("p", "effect_size", "seeds", "seeds_needed")


def to_text(compared: xr.Dataset, form: Literal["markdown", "latex", "csv"] = "markdown") -> str:
    r"""Writes a comparison as a table. Fractions are in percent.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        form: ``"markdown"``; ``"latex"``, a ``tabular`` with the rules of the package booktabs; or
            ``"csv"``, one line a method, the baseline first, with all digits.

    Returns:
        The text, of which the last line has an end. Differences with ``*`` are beyond chance: p
        below 0.05 after Holm's correction.

    Raises:
        ValueError: If there is no such form.

    Examples:
        >>> import xarray as xr
        >>> from fedjax_fair.results import compare
        >>> accuracy = [[[0.7], [0.9]], [[0.8], [1.1]]]
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {"accuracy_mean_clients": (dims, accuracy, {"units": "1"})},
        ...     {"algorithm": ["fedavg", "divfl"], "round": [10]},
        ... )
        >>> print(to_text(compare(runs, "accuracy_mean_clients"), "csv").splitlines()[0])
        metric,unit,baseline,method,mean,deviation,noise_floor,difference,low,high,bootstrap_low,bootstrap_high,p,effect_size,seeds,seeds_needed
    """
    checks.one_of("form", form, FORMS)
    if form == "csv":
        return _csv(compared)
    rows, numbers = [HEADINGS, *cells(compared, digits=2)], len(HEADINGS) - 1
    if form == "markdown":
        lines = [" | ".join(row) for row in rows]
        ruled = [f"| {lines[0]} |", "|---|" + "---:|" * numbers]
        return "\n".join([caption(compared), "", *ruled, *(f"| {one} |" for one in lines[1:]), ""])
    head, *body = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    return "\n".join(
        [
            f"% {caption(compared)}",
            rf"\begin{{tabular}}{{l{'r' * numbers}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def caption(compared: xr.Dataset) -> str:
    """What a table of a comparison shows, in one line."""
    attributes = compared.attrs
    unit = _unit(compared)
    name = attributes["long_name"] or attributes["metric"]
    runs = np.unique(compared["seeds"].values)
    seeds = f"{runs.min()}" if runs.size == 1 else f"{runs.min()} to {runs.max()}"
    pairs = f"{seeds} {'paired ' if attributes['paired'] else ''}seeds"
    return escape_control_chars(
        f"{name}{f', in {unit}' if unit else ''}; differences to {attributes['baseline']} over "
        f"{pairs}, with 95 % intervals (Student's t, bootstrap); * beyond chance: p < 0.05 after "
        "Holm's correction. Effect: Cohen's d. Seeds needed: to find this difference with "
        "probability 0.8. Noise floor: what finite test sets show of clients served alike."
    )


def cells(compared: xr.Dataset, digits: int) -> list[tuple[str, ...]]:
    """The rows of a table below ``HEADINGS``, the baseline first.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        digits: Behind the point of percentages; other units have four significant ones.
    """
    return [_cells(row, _unit(compared), digits) for row in _rows(compared)]


def _cells(row: dict[str, float | str], unit: str, digits: int) -> tuple[str, ...]:
    def number(name: str, sign: str = "") -> str:
        value = float(row[name])
        return (
            "-" if np.isnan(value) else f"{value:{sign}{f'.{digits}f' if unit == '%' else '.4g'}}"
        )

    def interval(low: str, high: str) -> str:
        return "-" if np.isnan(float(row[low])) else f"{number(low, '+')}, {number(high, '+')}"

    p, effect, needed = (float(row[name]) for name in ("p", "effect_size", "seeds_needed"))
    is_baseline = np.isnan(float(row["difference"]))
    beyond = "*" if p < 0.05 else ""
    return (
        str(row["method"]),
        f"{number('mean')} ± {number('deviation')}",
        number("noise_floor"),
        "-" if is_baseline else number("difference", "+") + beyond,
        interval("low", "high"),
        interval("bootstrap_low", "bootstrap_high"),
        "-" if np.isnan(p) else f"{p:.3f}",
        "-" if np.isnan(effect) else f"{effect:+.2f}",
        "-" if is_baseline or np.isnan(needed) else "∞" if np.isinf(needed) else f"{needed:,.0f}",
    )


def _rows(compared: xr.Dataset) -> list[dict[str, float | str]]:
    """Values of the baseline and of every method, fractions in percent."""
    factor = 100 if _unit(compared) == "%" else 1
    first: dict[str, float | str] = {"method": escape_control_chars(compared.attrs["baseline"])}
    first |= {name: factor * float(compared[f"baseline_{name}"]) for name in _IN_UNIT}
    rows = [first | dict.fromkeys(_OF_DIFFERENCE + _WITHOUT_UNIT, np.nan)]
    for name in compared["algorithm"].values:
        own = compared.sel(algorithm=name)
        row: dict[str, float | str] = {"method": escape_control_chars(name)}
        row |= {each: factor * float(own[each]) for each in _IN_UNIT + _OF_DIFFERENCE}
        rows.append(row | {each: float(own[each]) for each in _WITHOUT_UNIT})
    return rows


def _unit(compared: xr.Dataset) -> str:
    unit = compared.attrs["units"]
    return "%" if unit == "1" else unit


def _csv(compared: xr.Dataset) -> str:
    text = io.StringIO()
    names = ["method", *_IN_UNIT, *_OF_DIFFERENCE, *_WITHOUT_UNIT]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "unit", "baseline", *names])
    attributes = compared.attrs
    about = [attributes["metric"], _unit(compared), escape_control_chars(attributes["baseline"])]
    for row in _rows(compared):
        values = [row[name] for name in names]
        missing = [isinstance(value, float) and np.isnan(value) for value in values]
        writer.writerow([*about, *("" if no else v for no, v in zip(missing, values, strict=True))])
    return text.getvalue()


def _latex(cell: str) -> str:
    r"""A cell as LaTeX reads it.

    Examples:
        >>> _latex("by_size, 5 %"), _latex("-0.5 ± 1.0")
        ('by\\_size, 5 \\%', '$-$0.5 $\\pm$ 1.0')
    """
    safe = "".join(_LATEX.get(mark, mark) for mark in cell)
    return re.sub(r"(?<!\S)([-+])(?=\d)", r"$\1$", safe)


_LATEX = {mark: f"\\{mark}" for mark in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "*": r"$^*$",
}
