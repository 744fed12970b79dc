"""The loop over all units of a benchmark: resumable, and divided over machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_fair import checks
from fedjax_fair.app.run_folder import environment, locked, make_folder
from fedjax_fair.benchmark import cells
from fedjax_fair.benchmark.federations import FEDERATIONS, BenchmarkData
from fedjax_fair.benchmark.protocol import TRACKS, VERSION, Track
from fedjax_fair.benchmark.unit import PHASES, Unit, is_done, run_unit
from fedjax_fair.results.files import write_text
from fedjax_fair.training.fit import Callback, DivergenceError

__all__ = ["Plan", "plan", "read_folder", "run"]

_SETTINGS = "benchmark.json"


class Plan(NamedTuple):
    """Units of a benchmark.

    Attributes:
        name: Name of the track.
        track: The track.
        units: Units of this machine.
    """

    name: str
    track: Track
    units: list[Unit]


def plan(
    track: str,
    folder: Path,
    methods: Sequence[str] | None = None,
    federations: Sequence[str] | None = None,
    shard: tuple[int, int] = (1, 1),
) -> Plan:
    """Plans the units of a benchmark.

    Args:
        track: Name of a track.
        folder: Folder of the benchmark.
        methods: Methods; by default those of the track.
        federations: Federated datasets; by default those of the track.
        shard: This machine's share: ``(3, 8)`` for the third of eight.

    Raises:
        ValueError: If a name is unknown, or the shard is out of range.
    """
    checks.one_of("track", track, tuple(TRACKS))
    chosen = TRACKS[track]
    names = list(federations or chosen.federations)
    for name in names:
        checks.one_of("federations", name, chosen.federations)
    part, parts = shard
    if not 1 <= part <= parts:
        raise ValueError(f"shard={part}/{parts}: expected I/N with 1 <= I <= N.")
    units = [
        Unit(FEDERATIONS[name], method, folder / "programs" / name / method)
        for name in names
        for method in dict.fromkeys(methods or chosen.methods)
    ]
    return Plan(track, chosen, units[part - 1 :: parts])


def run(
    planned: Plan,
    folder: Path,
    data_dir: str | None = None,
    callback_fn: Callable[[str], Sequence[Callback]] = lambda runs: (),
    show: Callable[[str], None] = lambda line: None,
) -> None:
    """Trains all missing units, and writes ``cells.jsonl``.

    A unit that cannot run, or fails, is shown and recorded; the others continue.

    Args:
        planned: The units.
        folder: Folder of the benchmark.
        data_dir: Folder of data sets.
        callback_fn: As for `unit.run_unit`.
        show: Prints a line of progress.

    Raises:
        ValueError: If the folder has results of another protocol or track, or is used by another
            process.
    """
    make_folder(folder)
    write_folder(planned, folder)
    waiting = [unit for unit in planned.units if not is_done(unit)]
    seconds: dict[str, list[float]] = {}
    data: dict[str, BenchmarkData] = {}
    loaded = ""
    for i, unit in enumerate(waiting):
        name = unit.federation.name
        started = time.perf_counter()
        if name != loaded:
            data, loaded = _load(unit, planned.track, data_dir), name
        unit.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(unit.folder))
                run_unit(unit, planned.track, data, callback_fn)
                outcome = "done"
                (unit.folder / "failed.json").unlink(missing_ok=True)
            except (ValueError, DivergenceError, MemoryError) as error:
                outcome = " ".join(str(error).split())
                write_text(unit.folder / "failed.json", json.dumps({"reason": outcome}))
        taken = time.perf_counter() - started
        seconds.setdefault(name, []).append(taken)
        left = timedelta(seconds=round(_remaining(waiting[i + 1 :], seconds)))
        show(f"{i + 1}/{len(waiting)} {name}, {unit.method}: {outcome} ({taken:.0f} s; {left} left)")
    gathered = cells.gather(folder)
    cells.write(folder / "cells.jsonl", gathered)


def _load(unit: Unit, track: Track, data_dir: str | None) -> dict[str, BenchmarkData]:
    seeds = {"tuning": track.tuning_seeds, "final": track.final_seeds}
    return {phase: unit.federation.load(data_dir, seeds[phase]) for phase in PHASES}


def _remaining(waiting: Sequence[Unit], seconds: dict[str, list[float]]) -> float:
    """Estimates seconds from the mean of finished units, of the same dataset if there are any."""
    overall = [value for values in seconds.values() for value in values]
    total = 0.0
    for unit in waiting:
        known = seconds.get(unit.federation.name, overall)
        total += sum(known) / len(known)
    return total


def write_folder(planned: Plan, folder: Path) -> None:
    """Writes what the folder is of, or checks that it is of the same protocol and track."""
    file = folder / _SETTINGS
    if file.exists():
        recorded = read_folder(folder)
        if recorded["track"] != planned.name:
            raise ValueError(
                f"folder={str(folder)!r}: expected a benchmark of the track {planned.name!r}, not "
                f"{recorded['track']!r}; use another folder."
            )
        return
    described = {"protocol": VERSION, "track": planned.name, "environment": environment()}
    write_text(file, json.dumps(described, indent=2) + "\n")


def read_folder(folder: Path) -> dict[str, Any]:
    """Reads the description of a benchmark's folder.

    Raises:
        ValueError: If it has none, or it is of another version of the protocol.
    """
    file = folder / _SETTINGS
    if not file.is_file():
        raise ValueError(
            f"folder={str(folder)!r}: expected the folder of a benchmark, with {_SETTINGS} in it."
        )
    try:
        described = dict(json.loads(file.read_bytes()))
        version = described["protocol"]
        _ = described["track"], described["environment"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ValueError(f"path={str(file)!r}: expected undamaged JSON of a benchmark.") from None
    if version != VERSION:
        raise ValueError(
            f"folder={str(folder)!r}: expected protocol {VERSION}, got {version}; use another folder."
        )
    return described
