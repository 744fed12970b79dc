"""Tables of results in a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from fedjax_fair.metrics.definitions import HINT
from fedjax_fair.report.maximization_page import maximization_table
from fedjax_fair.results.tables import Table, final_tables
from fedjax_fair.text import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["format_results", "format_table", "print_tables"]


def print_tables(results: xr.Dataset) -> None:
    """Prints the final results of a run, a sweep or a maximization; others are a ``ValueError``."""
    if "algorithm" not in results.dims or not {"final_value", "accuracy_mean_clients"} & set(
        results
    ):
        raise ValueError("results: expected those of a run, a sweep or a maximization.")
    if "final_value" in results:
        print(format_table(maximization_table(results)))
        return
    width = shutil.get_terminal_size().columns - 1
    if "settings" in results.attrs:
        print(textwrap.fill(escape_control_chars(f"Settings: {results.attrs['settings']}"), width))
    print(*map(format_results, final_tables(results)), sep="\n")
    if "privacy" in results.attrs:
        print(textwrap.fill(escape_control_chars(results.attrs["privacy"]), width))


def format_results(table: Table) -> str:
    """Lays out a table of metrics, with the command that defines them."""
    return format_table(table._replace(note=f"{table.note} {HINT}"))


def format_table(table: Table, width: int | None = None) -> str:
    r"""Lays out a table without breaking a name or a number.

    If the table is wider than ``width`` (default: the terminal), names are on separate lines, and
    cells continue on further lines.

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
    num_gaps = len(widths) - 1
    is_stacked = sum(widths) + num_gaps > width
    if is_stacked:
        widths[0], num_gaps = 0, num_gaps - 1
    gap = 2 if sum(widths) + 2 * num_gaps <= width else 1
    blocks: list[list[int]] = [[0], []] if is_stacked else [[]]
    for column in range(int(is_stacked), len(widths)):
        used = sum(widths[i] + gap for i in blocks[-1])
        if blocks[-1] and used + widths[column] > width:
            blocks.append([])
        blocks[-1].append(column)
    head, *body = (_lines(row, widths, blocks, gap, is_head=row is rows[0]) for row in rows)
    ruler = "-" * max(sum(widths[i] + gap for i in block) - gap for block in blocks)
    lines = [*head, ruler, *(line for row in body for line in row)]
    title, note = (
        textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
        for text in (escape_control_chars(table.title), table.note)
    )
    return "\n".join(["", *title, *(f" {line}" for line in lines), *note, ""])


def _lines(
    row: list[list[str]], widths: list[int], blocks: list[list[int]], gap: int, *, is_head: bool
) -> Iterator[str]:
    """The lines of one row; headings end on the same line, cells begin on the same line."""
    step = -1 if is_head else 1
    for block in blocks:
        cells = [row[column][::step] for column in block]
        lines = [
            (" " * gap).join(
                text.rjust(widths[column]) if column else text.ljust(widths[0])
                for text, column in zip(line, block, strict=True)
            )
            for line in zip_longest(*cells, fillvalue="")
        ]
        yield from (line.rstrip() for line in lines[::step])
