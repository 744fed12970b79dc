"""Command-line options, files of runs and Markdown tables of the experiments."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedjax_fair.metrics import paired
from fedjax_fair.results.formats import format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "KEYS",
    "append_rows",
    "format_interval",
    "has_rows",
    "interval_of",
    "markdown_table",
    "options_of",
    "read_rows",
    "write_study",
]

KEYS = ["algorithm", "seed", "round"]
"""Columns that most files of runs have."""


def options_of(
    description: str, output: str = "docs/reproduction", *, reads_tfds: bool = False
) -> argparse.ArgumentParser:
    """Returns a parser of ``--output``, ``--only-write`` and, if needed, ``--tfds-dir``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, default=Path(output))
    parser.add_argument("--only-write", action="store_true", help="do not run; write the tables")
    if reads_tfds:
        parser.add_argument("--tfds-dir", help="folder of prepared tensorflow-datasets sets")
    return parser


def read_rows(file: Path, columns: Iterable[str] = KEYS, **options: Any) -> pd.DataFrame:
    """Reads a file of runs, which need not exist; without it there are ``columns`` and no rows."""
    return pd.read_csv(file, **options) if file.exists() else pd.DataFrame(columns=[*columns])


def has_rows(known: pd.DataFrame, **values: Any) -> bool:
    """Returns whether a table has rows with these values of some columns."""
    if not len(known):
        return False
    is_wanted: Any = known[list(values)] == pd.Series(values)
    return bool(is_wanted.all(axis=1).any())


def append_rows(known: pd.DataFrame, rows: pd.DataFrame, file: Path, digits: int = 6) -> None:
    """Writes known and new rows as CSV, atomically, so that an interruption keeps the old file."""
    merged = pd.concat([known, rows], ignore_index=True) if len(known) else rows
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    merged.to_csv(partial, index=False, float_format=f"%.{digits}g")
    partial.replace(file)


def write_study(
    stem: Path,
    table: pd.DataFrame,
    text: str,
    figures: Mapping[str, Figure] = {},
    *,
    form: str = "%.4g",
) -> None:
    """Writes a table as CSV and as Markdown, prints it, and writes figures by name next to it."""
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format=form)
    stem.with_suffix(".md").write_text(text)
    for name, drawn in figures.items():
        drawn.savefig(stem.with_name(f"{name}.png"), dpi=90)
    print(text)


def interval_of(differences: Any) -> dict[str, float]:
    """Returns the mean ``difference`` of pairs, its 95% interval and its p value."""
    found = paired.interval(np.asarray(differences))
    return {"low": found.low, "difference": found.mean, "high": found.high, "p": found.p}


def format_interval(row: Any, form: str) -> str:
    """Formats the ``difference`` of a row with its ends ``low`` and ``high``."""
    mean, *ends = (format_number(row[name], form) for name in ("difference", "low", "high"))
    return f"{mean} ({' to '.join(ends)})"


def markdown_table(headings: Iterable[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    first, *others = [f"| {' | '.join(map(str, row))} |" for row in (headings, *rows)]
    return [first, "|---" * (first.count(" | ") + 1) + "|", *others]
