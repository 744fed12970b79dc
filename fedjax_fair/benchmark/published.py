"""Files of a report that have all results of a benchmark as tables.

Reports of further methods read them, and need no result files of those that are published.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedjax_fair.benchmark import measures, pool_errors, run_cells
from fedjax_fair.benchmark.collected import Collected, units_of
from fedjax_fair.benchmark.federations import variables_of
from fedjax_fair.benchmark.protocol import VERSION
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results.files import write_text
from fedjax_fair.results.formats import from_cell, to_csv
from fedjax_fair.utils.terminal import one_line

__all__ = ["read", "write"]

_RUN = ("federation", "method", "model", "criterion", "seed", "is_diverged")
_CLIENT = ("federation", "method", "seed")
_COLUMNS = {
    "runs": (*_RUN, "operations"),
    "clients": (*_CLIENT, "0"),
    "losses": (*_CLIENT, "0"),
    "settings": (
        "federation", "method", "criterion", "seed", "settings", "round", "window", "at_limit",
    ),
    "curves": ("federation", "method", "round", "accuracy", "low", "high"),
    "answers": pool_errors.ANSWERS,
    "pool_errors": pool_errors.COLUMNS,
    "federations": (
        "federation", "clients", "unseen_clients", "data_digest", "test_digest",
        *(f"constant_{name}" for name in measures.CONSTANTS),
    ),
    "methods": ("method", "kind", "summary", "paper", "link", "command", "file"),
    "cells": (
        "protocol", *run_cells.KEYS[:3], "block", "window", "seed", "data_digest",
        "partition_digest", "status",
    ),
}  # fmt: skip
"""Columns that each file has."""
_NUMERIC = {"runs": _RUN, "clients": _CLIENT, "losses": _CLIENT}
"""Tables whose columns are numbers, except for these."""
_DIGESTS = ("protocol", "data_digest", "test_digest", "partition_digest")
_TEXTS = ("summary", "paper", "link", "command", "file", "settings", "at_limit", "correct")
_RECENT = ("losses", "answers")
"""Tables that the first reports of this version lack."""
_DIGITS = {"clients": 9, "losses": 9, "cells": 9}
"""Digits with which values of float32 are exact; ties of clients and settings stay ties."""
_DESCRIPTION = "benchmark.json"


def write(found: Collected, folder: Path) -> None:
    """Writes the tables, and a description of the benchmark, into the folder of a report."""
    keys, in_order = list(_RUN), list(dict.fromkeys(found.runs["measure"]))
    wide: Any = found.runs.pivot(index=keys, columns="measure", values="value")
    rows = found.runs[keys].drop_duplicates()
    tables = found._asdict() | {"runs": rows.merge(wide[in_order].reset_index(), on=keys)}
    first: list[str] = list(_COLUMNS["cells"])
    # Sorted, because columns of settings come in the order of the methods that have them.
    tables["cells"] = tables["cells"][[*first, *sorted({*tables["cells"]}.difference(first))]]
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name in _COLUMNS:
        digits = f"%.{_DIGITS.get(name, measures.DIGITS)}g"
        text = to_csv(tables[name], float_format=digits)
        write_text(folder / f"{name}.csv", text)
        digests[name] = hashlib.sha256(text.encode()).hexdigest()
    described = {
        "protocol": VERSION,
        "track": found.track,
        "digests": digests,
        "environments": found.environments,
        "failures": found.failures,
    }
    write_text(folder / _DESCRIPTION, json.dumps(described, indent=2) + "\n")


def read(folder: Path, track: str) -> Collected:
    """Reads the results of a report.

    Args:
        folder: Folder of the report.
        track: Name of the track that results are expected of.

    Raises:
        ValueError: If a file is missing or damaged, or of another version of the protocol or
            another track.
    """
    described = _describe(folder)
    for name, expected in (("protocol", VERSION), ("track", track)):
        if described[name] != expected:
            raise ValueError(
                f"published={str(folder)!r}: expected results of the {name} {expected!r}, got "
                f"{described[name]!r}."
            )
    names = [name for name in _COLUMNS if name not in _RECENT or name in described["digests"]]
    tables = {name: _read_table(folder / f"{name}.csv", name) for name in names}
    for name in _RECENT:
        tables.setdefault(name, tables["clients"].iloc[:0].reindex(columns=list(_COLUMNS[name])))
    _check_rows(folder, tables)
    for name in names:
        content = (folder / f"{name}.csv").read_bytes()
        if hashlib.sha256(content).hexdigest() != described["digests"].get(name):
            raise ValueError(
                f"published={str(folder)!r}: {name}.csv has changed since the report was written; "
                "restore it, or write the report again by `fedjax-fair benchmark report`."
            )
    return Collected(
        track=track,
        environments=described["environments"],
        failures=described["failures"],
        **tables | {"runs": _to_long(tables["runs"])},
    )


def _describe(folder: Path) -> dict[str, Any]:
    file = folder / _DESCRIPTION
    hint = f"{str(folder / 'report')!r} is one" if (folder / "report").is_dir() else ""
    try:
        described = dict(json.loads(file.read_bytes()))
        version, _ = described["protocol"], described["track"]
        # Descriptions of other versions may have other keys.
        if version == VERSION:
            lists = [list(described[key]) for key in ("environments", "failures")]
            _ = [dict(each) for each in lists[0]], [(a, b, c) for a, b, c in lists[1]]
            _ = dict(described["digests"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        raise ValueError(
            f"published={str(folder)!r}: expected the folder of a report, with {_DESCRIPTION}"
            f"{f'; {hint}' if hint else ''}."
        ) from None
    return described


def _read_table(file: Path, name: str) -> Any:
    import pandas as pd

    numeric = name in _NUMERIC
    try:
        # The parser of pandas may be wrong in the last digit, so that equal numbers would differ.
        kind: Any = str if numeric else dict.fromkeys((*_DIGESTS, *_TEXTS), str)
        table: Any = pd.read_csv(
            file, dtype=kind, keep_default_na=False, na_values=[""], low_memory=False
        )
        if missing := [column for column in _COLUMNS[name] if column not in table]:
            raise ValueError(f"missing columns {', '.join(missing)}")
        numbers: list[str] = []
        if numeric:
            numbers = [column for column in table if column not in _NUMERIC[name]]
            table[numbers] = table[numbers].map(float)
            table["seed"] = table["seed"].map(int)
    except (OSError, ValueError, TypeError) as error:
        reason = one_line(error)
        raise ValueError(
            f"published={str(file)!r}: expected a table of a report ({reason})."
        ) from None
    if name == "runs":
        table["is_diverged"] = table["is_diverged"] == "True"
    if name in ("clients", "losses"):
        table[numbers] = table[numbers].astype("float32")
    return table.fillna(dict.fromkeys(set(_TEXTS) & set(table), "")).map(from_cell)


def _check_rows(folder: Path, tables: dict[str, Any]) -> None:
    """Raises ``ValueError`` if a unit or a method is missing in a table."""
    names = ("runs", "clients", "settings", "curves", "cells")
    units = {name: set(units_of(tables[name])) for name in names}
    pairs = units["runs"]
    for name, found in units.items():
        # Cells also have the tuning runs of units that are not finished.
        if unknown := sorted(pairs - found if name == "cells" else pairs ^ found):
            raise ValueError(
                f"published={str(folder)!r}: expected {' on '.join(reversed(unknown[0]))} in "
                f"runs.csv and in {name}.csv."
            )
    for name, place in (("methods", 1), ("federations", 0)):
        known = set(tables[name][name[:-1]])
        if unknown := sorted({pair[place] for pair in pairs} - known):
            raise ValueError(f"published={str(folder)!r}: expected {unknown[0]} in {name}.csv.")


def _to_long(runs: Any) -> Any:
    """Returns the rows of `measures.table`; a measure that a criterion lacks has none.

    A criterion without a model has NaN of the measures that every model has.
    """
    unit = ["federation", "method", "criterion"]
    long = runs.melt(list(_RUN), var_name="measure", value_name="value")
    is_measured = long.groupby([*unit, "measure"])["value"].transform("count") > 0
    is_missing = long.groupby(unit)["value"].transform("count") == 0
    is_measured |= is_missing & long["measure"].isin(list(variables_of(ACCURACY)))
    columns = [*_RUN[:-1], "measure", "value", _RUN[-1]]
    return long.loc[is_measured, columns].reset_index(drop=True)
