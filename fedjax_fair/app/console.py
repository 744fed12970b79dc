"""Tables of results in a terminal."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

from fedjax_fair.report.maximization_page import maximization_table
from fedjax_fair.results.tables import Table, final_tables

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["format_table", "print_tables"]


def print_tables(results: xr.Dataset) -> None:
    """Prints the final results of a run, a sweep or a maximization.

    Raises:
        ValueError: If ``results`` are of another kind.
    """
    if "algorithm" not in results.dims or not {"final_value", "accuracy_mean_clients"} & set(
        results
    ):
        raise ValueError("results: expected those of a run, a sweep or a maximization.")
    tables = [maximization_table(results)] if "final_value" in results else final_tables(results)
    print(*map(format_table, tables), sep="\n")


def format_table(table: Table, width: int | None = None) -> str:
    r"""Lays out a table without breaking a name or a number.

    Where the columns do not fit beside each other, row names stand on lines of their own, and cells
    continue on further lines.

    Args:
        table: The table.
        width: Columns of the terminal; by default of the current one.

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
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
    blocks = [list(range(len(widths)))]
    if sum(widths) + len(widths) - 1 > width:
        widths[0], blocks = 0, [[0], []]
        for column in range(1, len(widths)):
            used = sum(widths[place] + gap for place in blocks[-1])
            if blocks[-1] and used + widths[column] > width:
                blocks.append([])
            blocks[-1].append(column)
    head, *body = (_lines(row, widths, blocks, gap, is_head=row is rows[0]) for row in rows)
    ruler = "-" * max(sum(widths[i] + gap for i in block) - gap for block in blocks)
    lines = [*head, ruler, *(line for row in body for line in row)]
    note = textwrap.wrap(table.note, width)
    return "\n".join(["", table.title, *(f" {line}" for line in lines), *note, ""])


def _lines(
    row: list[list[str]], widths: list[int], blocks: list[list[int]], gap: int, *, is_head: bool
) -> list[str]:
    """The lines of one row; headings end on the same line, cells begin on the same line."""
    lines = []
    for block in blocks:
        height = max(len(row[column]) for column in block)
        for place in range(height):
            cells = []
            for column in block:
                cell, fill = row[column], [""] * (height - len(row[column]))
                text = ([*fill, *cell] if is_head else [*cell, *fill])[place]
                cells.append(text.rjust(widths[column]) if column else text.ljust(widths[column]))
            lines.append((" " * gap).join(cells).rstrip())
    return lines
