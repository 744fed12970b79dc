"""Cells: one run of a method with one setting and seed, a line of ``cells.jsonl`` each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_fair.benchmark.protocol import VERSION
from fedjax_fair.results.files import write_text

__all__ = ["gather", "read", "settings_hash", "write"]

KEYS = ("federation", "method", "phase", "settings", "settings_hash", "seed", "status")


def settings_hash(federation: str, method: str, settings: Mapping[str, float]) -> str:
    """Returns the SHA-256 of the canonical form of a method's settings.

    Examples:
        >>> first = settings_hash("digits", "fedprox", {"prox": 0.1, "learning_rate": 0.05})
        >>> first == settings_hash("digits", "fedprox", {"learning_rate": 0.05, "prox": 0.1})
        True
    """
    text = json.dumps([VERSION, federation, method, dict(settings)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write(file: Path, cells: Iterable[Mapping[str, Any]]) -> None:
    """Writes cells, one per line with its SHA-256, atomically."""
    lines = (json.dumps({**cell, "sha256": _digest(cell)}) for cell in cells)
    write_text(file, "".join(f"{line}\n" for line in lines))


def _digest(cell: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()


def read(file: Path) -> list[dict[str, Any]]:
    """Reads cells.

    Raises:
        ValueError: If a line is damaged, was edited or is of another version of the protocol.
    """
    found = []
    for number, line in enumerate(file.read_text(encoding="utf8").splitlines(), start=1):
        place = f"path={str(file)!r}: line {number}"
        try:
            cell = json.loads(line)
            version, values = cell["protocol"], [cell[key] for key in KEYS]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise ValueError(
                f"{place}: expected a cell; delete the file to run it again."
            ) from None
        if version != VERSION:
            raise ValueError(f"{place}: expected protocol {VERSION}, got {version}.")
        federation, method, _, settings, digest, *_ = values
        is_edited = settings_hash(federation, method, settings) != digest
        # Files of earlier versions of the package have no digest of the line.
        line_digest = cell.pop("sha256", None)
        if is_edited or line_digest not in (None, _digest(cell)):
            raise ValueError(f"{place}: the cell was edited; delete the file to run it again.")
        found.append(cell)
    return found


def gather(folder: Path) -> list[dict[str, Any]]:
    """Returns the cells of all finished programs of a benchmark, in a fixed order."""
    files = sorted((folder / "programs").glob("*/*/*.jsonl"), reverse=True)
    cells = [cell for file in files for cell in read(file)]
    return sorted(cells, key=lambda cell: (cell["federation"], cell["method"]))
