"""Entering a method: checks before its runs, and one hashed file of its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.benchmark import entry_checks, plugin_methods, run_cells, tuning
from fedjax_fair.benchmark.collected import Collected, check_data
from fedjax_fair.benchmark.protocol import VERSION
from fedjax_fair.benchmark.runner import Plan
from fedjax_fair.benchmark.unit import configuration, is_done
from fedjax_fair.results.files import write_text

__all__ = ["check", "read", "write"]

_CHECK_SEED = 900
"""Seed of the checks, which no phase uses."""


def check(
    planned: Plan,
    data_dir: str | None = None,
    show: Callable[[str], None] = lambda line: None,
    published: Collected | None = None,
) -> None:
    """Checks the methods of a plan on each federated dataset where they have no results yet.

    Args:
        planned: The units.
        data_dir: Folder of data sets.
        show: Prints a line of progress.
        published: Results that are to be joined later, which must be of the same data.

    Raises:
        ValueError: If a method breaks a rule, or does not use a setting of its ranges, with its
            name; or if published results are of other data.
    """
    data: dict[str, Any] = {}
    for unit in (unit for unit in planned.units if not is_done(unit)):
        name, config = unit.federation.name, configuration(unit)
        for settings in tuning.range_settings(resolve_method(config, unit.method)[0].ranges, 2):
            resolve_method(config, tuning.with_settings(unit.method, settings))
        show(f"checking {unit.method} on {name}")
        if name not in data:
            loaded = unit.federation.load(data_dir, (_CHECK_SEED,))
            if published is not None:
                check_data({name: loaded.data_digest}, published)
            data[name] = loaded.seen.partition(0)
        entry_checks.check_method(unit.method, config, data[name])


def write(folder: Path, method: str) -> Path:
    """Writes one file of a method: its description, its cells, and the SHA-256 of these lines.

    Raises:
        ValueError: If no runs of the method are finished.
    """
    own = [cell for cell in run_cells.gather(folder) if cell["method"] == method]
    if not own:
        raise ValueError(f"method={method!r}: expected finished runs in {str(folder)!r}.")
    described = {"protocol": VERSION, "method": method, **plugin_methods.recorded(folder, method)}
    lines = "".join(f"{json.dumps(line)}\n" for line in (described, *own))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    file = folder / "entries" / f"{method}.jsonl"
    file.parent.mkdir(exist_ok=True)
    write_text(file, lines + json.dumps({"sha256": digest}) + "\n")
    return file


def read(file: Path) -> list[dict[str, Any]]:
    """Reads the cells of a file of `write`.

    Raises:
        ValueError: If it was edited.
    """
    *lines, last = file.read_text(encoding="utf8").splitlines(keepends=True)
    try:
        expected = json.loads(last)["sha256"]
    except (ValueError, TypeError, LookupError):
        expected = None
    if hashlib.sha256("".join(lines).encode()).hexdigest() != expected:
        raise ValueError(f"path={str(file)!r}: expected an unedited file of `benchmark enter`.")
    return [json.loads(line) for line in lines[1:]]
