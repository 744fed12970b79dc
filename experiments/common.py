"""Command-line options, files of runs and Markdown tables of the experiments."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

__all__ = ["append_rows", "markdown_table", "options_of"]


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


def append_rows(known: pd.DataFrame, rows: pd.DataFrame, file: Path, digits: int = 6) -> None:
    """Writes known and new rows as CSV, atomically, so that an interruption keeps the old file."""
    merged = pd.concat([known, rows], ignore_index=True) if len(known) else rows
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    merged.to_csv(partial, index=False, float_format=f"%.{digits}g")
    partial.replace(file)


def markdown_table(headings: Iterable[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    first, *others = [f"| {' | '.join(map(str, row))} |" for row in (headings, *rows)]
    return [first, "|---" * (first.count(" | ") + 1) + "|", *others]
