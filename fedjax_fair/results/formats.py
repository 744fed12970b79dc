"""Intervals over seeds, numbers and tables as text."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Interval",
    "Table",
    "format_half_width",
    "format_mean",
    "format_number",
    "format_p",
    "from_cell",
    "latex",
    "markdown",
    "student",
    "to_csv",
]


class Interval(NamedTuple):
    """Mean and ends of the interval, arrays of one shape."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def student(values: ArrayLike) -> Interval:
    """Computes Student's 95% interval of the mean over the last axis.

    Args:
        values: ``[..., seeds]``.

    Returns:
        Arrays ``[...]``. The ends are NaN for a single seed; everything is NaN where a value is.

    Examples:
        >>> [round(float(end), 2) for end in student([1.0, 2.0, 3.0])]
        [2.0, -0.48, 4.48]
    """
    from scipy.special import stdtrit  # Imports much faster than scipy.stats.

    runs = np.asarray(values, np.float64)
    mean, seeds = runs.mean(axis=-1), runs.shape[-1]
    if seeds < 2:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    half = stdtrit(seeds - 1, 0.975) * runs.std(axis=-1, ddof=1) / np.sqrt(seeds)
    return Interval(mean, mean - half, mean + half)


def format_mean(values: ArrayLike, digits: int = 1) -> str:
    """Formats the mean of ``values`` (``[seeds]``) with `format_half_width`.

    Examples:
        >>> format_mean([1.0, 2.0, 3.0]), format_mean([50.0, 50.0]), format_mean([0.5])
        ('2.0 ± 2.5', '50.0', '0.5')
    """
    mean, low, high = (float(part) for part in student(values))
    return format_half_width(mean, (high - low) / 2, f",.{digits}f")


def format_half_width(mean: float, half: float, form: str) -> str:
    """Formats a mean and half the width of its 95% interval, the only meaning of ± in tables.

    Examples:
        >>> format_half_width(2.0, 2.48, ".1f"), format_half_width(2.0, 0.01, ".1f")
        ('2.0 ± 2.5', '2.0')
    """
    shown, width = format_number(mean, form), format_number(half, form)
    return f"{shown} ± {width}" if width.strip("-0.") else shown


def format_p(p: float) -> str:
    """Formats a p-value.

    Examples:
        >>> format_p(0.0312), format_p(1e-7), format_p(1.0), format_p(float("nan"))
        ('.031', '< .001', '1.000', '-')
    """
    return "< .001" if p < 0.001 else format_number(p, ".3f").lstrip("0")


def format_number(value: float, form: str = "+.1f") -> str:
    """Formats a number, ``-`` for NaN; zero has no sign.

    Examples:
        >>> format_number(1.23), format_number(-0.01), format_number(float("nan"))
        ('+1.2', '0.0', '-')
    """
    text = "-" if np.isnan(value) else f"{value:{form}}"
    return text if text.strip("+-0.") else text.strip("+-") or "-"


_FORMULA = r"[=+\-@\t\r]"
"""Characters with which a formula may begin (OWASP, CSV injection)."""


def to_csv(frame: pd.DataFrame, **options: Any) -> str:
    r"""Formats a table as CSV. An apostrophe precedes texts that could be formulas.

    Numbers keep their sign. ``options`` are further ones of ``DataFrame.to_csv``.

    Examples:
        >>> import pandas as pd
        >>> to_csv(pd.DataFrame({"method": ["=1+2", "fedavg"], "gap": ["-0.5", -1.5]}))
        "method,gap\n'=1+2,-0.5\nfedavg,-1.5\n"
    """
    texts = frame.map(_to_cell).rename(columns=_to_cell)
    return texts.to_csv(index=False, lineterminator="\n", **options)


def from_cell(text: Any) -> Any:
    """Inverts what `to_csv` does to a value."""
    is_marked = isinstance(text, str) and re.match(f"'+{_FORMULA}", text)
    return text[1:] if is_marked else text


def _to_cell(value: Any) -> Any:
    if not isinstance(value, str) or not re.match(f"'*{_FORMULA}.", value, re.DOTALL):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{value}"


class Table(NamedTuple):
    """A table of text.

    Attributes:
        title: What it shows.
        headings: One per column; the first column names the rows.
        rows: One cell per heading. Lines of a cell after the first are details of its value.
        note: How to read the cells.
    """

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str


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
