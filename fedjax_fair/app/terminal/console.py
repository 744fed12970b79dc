"""Tables of results in a terminal."""

from __future__ import annotations

import re
import shutil
import string
import textwrap
from collections.abc import Collection
from itertools import zip_longest
from typing import TYPE_CHECKING

from fedjax_fair.metrics.definitions import HINT
from fedjax_fair.report.maximization_page import maximization_table
from fedjax_fair.results.formats import Table
from fedjax_fair.results.tables import final_tables, notes
from fedjax_fair.results.task_metrics import primary
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["format_results", "format_table", "letters", "print_tables"]


def print_tables(results: xr.Dataset) -> None:
    """Prints the final results of a run, a sweep or a maximization; others are a ``ValueError``."""
    level = primary(results).mean
    if "algorithm" not in results.dims or not {"final_value", level} & set(results):
        raise ValueError("results: expected those of a run, a sweep or a maximization.")
    if "final_value" in results:
        print(format_table(maximization_table(results)))
        return
    width = shutil.get_terminal_size().columns - 1
    if "settings" in results.attrs:
        print(textwrap.fill(escape_control_chars(f"Settings: {results.attrs['settings']}"), width))
    print(*map(format_results, final_tables(results)), sep="\n")
    for note in notes(results):
        print(textwrap.fill(escape_control_chars(note), width))


def format_results(table: Table) -> str:
    """Lays out a table of metrics, with the command that defines them."""
    return format_table(table._replace(note=f"{table.note} {HINT}"))


def format_table(table: Table, width: int | None = None) -> str:
    r"""Lays out a table without breaking a number.

    If the table is wider than ``width`` (default: the terminal), names continue on further lines
    after ``+``, ``:``, ``,`` or a space. If it is still too wide, columns continue in further
    blocks, in which labels stand for long names.

    Examples:
        >>> table = Table("Gaps", ("method", "gap"), [("fedavg", "2.5\n±0.1")], "In %.")
        >>> print(format_table(table).strip())
        Gaps
         method   gap
         ------------
         fedavg   2.5
                 ±0.1
        In %.
    """
    width = (width or shutil.get_terminal_size().columns) - 1
    rows = [[cell.split("\n") for cell in row] for row in (table.headings, *table.rows)]
    widths = [
        max(len(line) for cell in column for line in cell) for column in zip(*rows, strict=True)
    ]
    remaining = width - 1 - sum(widths[1:]) - (len(widths) - 1)
    legend = _shorten_names(rows, remaining) if widths[0] > remaining else []
    widths[0] = max(len(line) for row in rows for line in row[0])
    gap = 2 if 1 + sum(widths) + 2 * (len(widths) - 1) <= width else 1
    blocks = [[0]]
    for column in range(1, len(widths)):
        used = 1 + sum(widths[i] + gap for i in blocks[-1])
        if len(blocks[-1]) > 1 and used + widths[column] > width:
            blocks.append([0])
        blocks[-1].append(column)
    lines: list[str] = []
    for block in blocks:
        head, *body = (_lines(row, widths, block, gap, is_head=row is rows[0]) for row in rows)
        ruler = "-" * (sum(widths[i] + gap for i in block) - gap)
        lines += ["" for _ in lines[:1]] + [*head, ruler, *(line for row in body for line in row)]
    title, note = (
        textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
        for text in (escape_control_chars(table.title), table.note)
    )
    named = [line for entry in legend for line in _wrap(entry, width)]
    return "\n".join(["", *title, *(f" {line}".rstrip() for line in lines), *named, *note, ""])


def _shorten_names(rows: list[list[list[str]]], width: int) -> list[str]:
    """Wraps or labels the names in the first column in place, and returns the legend of labels."""
    names = [row[0][0] for row in rows[1:]]
    longest = max((len(piece) for name in names for piece in _pieces(name)), default=0)
    if len(_INDENT) + longest <= width:
        for row, name in zip(rows[1:], names, strict=True):
            row[0] = _wrap(name, width)
        return []
    if max(map(len, names), default=0) <= _MAX_REPEATED_NAME:
        return []
    runs = {run for name in names for run in re.findall(r" \(([A-Z])\)", name)}
    shown = letters(len(names), runs)
    for row, label in zip(rows, ["", *shown], strict=True):
        row[0] = [label]
    return [f"{label}: {name}" for label, name in zip(shown, names, strict=True)]


_INDENT = " "
"""Indent of a name's further lines."""

_MAX_REPEATED_NAME = 12
"""Characters of names that are repeated in every block."""


def _pieces(name: str) -> list[str]:
    """Splits a name where it may continue on the next line.

    Examples:
        >>> _pieces("divfl+fedprox:mu=1,b=5 (personalized)")
        ['divfl+', 'fedprox:', 'mu=1,', 'b=5 ', '(personalized)']
    """
    return re.findall(r"[^+:, ]*[+:, ]+|[^+:, ]+", name)


def _wrap(name: str, width: int) -> list[str]:
    """Wraps a name, which is not broken inside of a piece."""
    lines = [""]
    for piece in _pieces(name):
        if lines[-1].strip() and len((lines[-1] + piece).rstrip()) > width:
            lines.append(_INDENT)
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def letters(count: int, taken: Collection[str] = ()) -> list[str]:
    """Returns letters that are not taken, or numbers if there are too few letters.

    Examples:
        >>> letters(3, taken={"A", "C"})
        ['B', 'D', 'E']
    """
    free = [letter for letter in string.ascii_uppercase if letter not in taken]
    return free[:count] if count <= len(free) else [str(i + 1) for i in range(count)]


def _lines(
    row: list[list[str]], widths: list[int], block: list[int], gap: int, *, is_head: bool
) -> list[str]:
    """The lines of one row; headings end on the same line, cells begin on the same line."""
    step = -1 if is_head else 1
    cells = [row[column][::step] for column in block]
    lines = [
        (" " * gap)
        .join(
            text.rjust(widths[column]) if column else text.ljust(widths[0])
            for text, column in zip(line, block, strict=True)
        )
        .rstrip()
        for line in zip_longest(*cells, fillvalue="")
    ]
    return lines[::step]
