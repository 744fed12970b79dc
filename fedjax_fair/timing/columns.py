"""Columns of a table, and the place of each row in errors."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Table", "read_number"]


class Table(NamedTuple):
    """A table in memory.

    Attributes:
        name: Its name in errors.
        columns: Values by column, those of files as strings.
        places: Place of each row in errors.
    """

    name: str
    columns: dict[str, list[Any]]
    places: list[str]

    @classmethod
    def read(cls, source: Any) -> Table:
        """Reads the path of a CSV file, a mapping of columns, or a table of pandas.

        Raises:
            ValueError: If rows differ in length, or there are none.
        """
        if isinstance(source, (str, os.PathLike)):
            table = _read_csv(Path(source))
        else:
            columns = {str(name): list(values) for name, values in source.items()}
            lengths = sorted({len(values) for values in columns.values()})
            if len(lengths) > 1:
                raise ValueError(f"table: columns of {lengths} rows; expected equal lengths.")
            table = cls("table", columns, [f"table, row {row}" for row in range(sum(lengths))])
        if not table.places:
            raise ValueError(f"{table.name}: no rows; expected at least one.")
        return table

    def check_columns(self, required: Sequence[str], optional: Sequence[str]) -> None:
        """Raises ``ValueError`` if a column is missing or unknown."""
        known = [*required, *optional]
        if missing := [name for name in required if name not in self.columns]:
            raise ValueError(f"{self.name}: no column {missing[0]}; expected {', '.join(known)}.")
        if unknown := [name for name in self.columns if name not in known]:
            raise ValueError(
                f"{self.name}: column {unknown[0]!r}: expected one of {', '.join(known)}; rename "
                "or remove it."
            )

    def find_clients(self, num_clients: int, client_names: Sequence[str] | None) -> list[int]:
        """Returns the id of each row's ``client``, which is an id or a name.

        Raises:
            ValueError: If a client is unknown.
        """
        names = [*map(str, range(num_clients) if client_names is None else client_names)]
        ids = {name: client for client, name in enumerate(names)}
        for place, value in zip(self.places, self.columns["client"], strict=True):
            if str(value) not in ids:
                some = ", ".join(map(repr, names[:2])) + ", ..." * (len(names) > 2)
                raise ValueError(
                    f"{place}: client {str(value)!r} is not in the data; its clients are {some}."
                )
        return [ids[str(value)] for value in self.columns["client"]]


def read_number(value: Any) -> Any:
    """Returns the number in a cell, None for an empty one, and anything else as it is."""
    if value is None or value == "" or value != value:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines)
        names = [name.strip() for name in next(reader, [])]
        if len(set(names)) < len(names):
            raise ValueError(f"{path.name}: columns {names}; expected different names.")
        rows, places = [], []
        for cells in filter(None, reader):
            place = f"{path.name}, line {reader.line_num}"
            if len(cells) != len(names):
                raise ValueError(f"{place}: {len(cells)} cells; expected {len(names)}.")
            rows.append([cell.strip() for cell in cells])
            places.append(place)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return Table(path.name, columns, places)
