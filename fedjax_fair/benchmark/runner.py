"""The loop over all units of a benchmark: resumable, and divided over machines."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_fair.app.run_folder import make_folder
from fedjax_fair.app.run_record import environment
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import PartConfig
from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.benchmark import plugin_methods, run_cells
from fedjax_fair.benchmark.federations import FEDERATIONS, Federation
from fedjax_fair.benchmark.plugin_methods import needs_groups
from fedjax_fair.benchmark.protocol import BASELINE, TRACKS, VERSION, Track
from fedjax_fair.benchmark.tuning import RATE
from fedjax_fair.benchmark.unit import (
    BenchmarkInput,
    Unit,
    configuration,
    is_done,
    make_rounds,
    operations_of,
    run_unit,
)
from fedjax_fair.parallel.cores import num_usable_cores
from fedjax_fair.results.files import locked, write_text
from fedjax_fair.training import executable_cache
from fedjax_fair.training.loop import Callback, DivergenceError
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import one_line
from fedjax_fair.utils.warning import subject

__all__ = ["Plan", "failed_units", "failures", "load", "plan", "prepare", "read_folder", "run"]

_SETTINGS, _FAILED = "benchmark.json", "failed.json"
_MAX_THREADS = 2
"""Units at a time; more would take more memory, and hardly less time."""
_MAX_UNITS = 12
"""Units whose compiled functions are kept. On CPU each takes up to 2,700 memory mappings, of which
Linux allows a process 65,530; all units of the standard track would take more."""


class Plan(NamedTuple):
    """Units of a benchmark.

    Attributes:
        name: Name of the track.
        track: The track.
        units: Units of this machine.
        part: Initial parameters and the trained part of networks.
    """

    name: str
    track: Track
    units: list[Unit]
    part: PartConfig = PartConfig()


def plan(
    track: str,
    folder: Path,
    methods: Sequence[str] | None = None,
    federations: Sequence[str] | None = None,
    shard: tuple[int, int] = (1, 1),
    part: PartConfig | None = None,
) -> Plan:
    """Plans the units of a benchmark.

    Methods of group fairness are left out of datasets without a sensitive feature.

    Args:
        track: Name of a track.
        folder: Folder of the benchmark.
        methods: Methods; by default those of the track.
        federations: Federated datasets; by default those of the track.
        shard: This machine's share: ``(3, 8)`` for the third of eight.
        part: Initial parameters and the trained part of networks.

    Raises:
        ValueError: If a name or a setting is unknown, or the shard is out of range.
    """
    checks.one_of("track", track, tuple(TRACKS))
    chosen = TRACKS[track]
    known = (*chosen.federations, *chosen.variants)
    names = list(federations or known)
    for name in names:
        checks.one_of("federations", name, known)
    for method in methods or ():
        _check_method(FEDERATIONS[names[0]], method)
    defaults = dict.fromkeys(chosen.federations, chosen.methods)
    defaults |= dict.fromkeys(chosen.variants, chosen.variant_methods)
    own, shares = shard
    if not 1 <= own <= shares:
        raise ValueError(f"shard={own}/{shares}: expected I/N with 1 <= I <= N.")
    part = part or PartConfig()
    units = [
        Unit(_with_part(FEDERATIONS[name], part), method, folder / "programs" / name / method)
        for name in names
        for method in dict.fromkeys(methods or defaults[name])
        if FEDERATIONS[name].sensitive_feature is not None or not needs_groups(method)
    ]
    return Plan(track, chosen, units[own - 1 :: shares], part)


def _with_part(federation: Federation, part: PartConfig) -> Federation:
    model = replace(federation.config.model, **asdict(part))
    return federation._replace(config=replace(federation.config, model=model))


def _check_method(federation: Federation, method: str) -> None:
    """Raises ``ValueError`` for an unknown method or setting."""
    config = replace(federation.config, methods=(method,))
    resolve_method(presets.resolve(config), method)


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
        ValueError: As for `prepare`.
    """
    prepare(planned, folder)
    waiting = [unit for unit in planned.units if not is_done(unit)]
    progress = _Progress(waiting, show)
    names = list(dict.fromkeys(unit.federation.name for unit in waiting))
    for name in names:
        own = [unit for unit in waiting if unit.federation.name == name]
        try:
            data = load(own[0], planned.track, data_dir)
        except (ValueError, FileNotFoundError) as error:
            reasons = [_record_failure(unit, error) for unit in own]
            progress.add(name, reasons[0], len(own))
            continue
        for first in range(0, len(own), _MAX_UNITS):
            if first or name != names[0]:
                executable_cache.clear()
                jax.clear_caches()
            of_process = own[first : first + _MAX_UNITS]
            with warnings.catch_warnings():
                # Step sizes of all magnitudes are tried; results say which runs have diverged.
                warnings.filterwarnings("ignore", message=".* (is|are) not finite")
                _finish_all(of_process, planned.track, data, callback_fn, progress)
    run_cells.write(folder / "cells.jsonl", run_cells.gather(folder))


def _finish_all(
    units: Sequence[Unit],
    track: Track,
    data: BenchmarkInput,
    callback_fn: Callable[[str], Sequence[Callback]],
    progress: _Progress,
) -> None:
    """Runs units, up to two at a time."""
    # While the runs of a unit train, the next one is traced and compiled.
    num_threads = 1 if track.one_run_at_a_time else min(_MAX_THREADS, num_usable_cores())
    threads = ThreadPoolExecutor(num_threads)
    try:
        done = [threads.submit(_finish, unit, track, data, callback_fn, progress) for unit in units]
        for one in as_completed(done):
            one.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _finish(
    unit: Unit,
    track: Track,
    data: BenchmarkInput,
    callback_fn: Callable[[str], Sequence[Callback]],
    progress: _Progress,
) -> None:
    """Runs a unit. A reason why it cannot run is written to its folder."""

    def show_run(runs: str) -> Sequence[Callback]:
        if track.one_run_at_a_time:
            progress.show(runs)
        return callback_fn(runs)

    unit.folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(unit.folder), subject(f"{unit.method} on {unit.federation.name}"):
            run_unit(unit, track, data, show_run)
        (unit.folder / _FAILED).unlink(missing_ok=True)
        outcome = "done"
    except (ValueError, DivergenceError, MemoryError, jax.errors.JaxRuntimeError) as error:
        outcome = _record_failure(unit, error)
    progress.add(f"{unit.federation.name}, {unit.method}", outcome)


def _record_failure(unit: Unit, error: Exception) -> str:
    """Writes the reason why a unit has no results, and returns it as one line."""
    unit.folder.mkdir(parents=True, exist_ok=True)
    reason = one_line(error)
    write_text(unit.folder / _FAILED, json.dumps({"reason": reason}))
    return reason


class _Progress:
    """Shows finished units, and the time that the others will take at the same pace."""

    def __init__(self, waiting: Sequence[Unit], show: Callable[[str], None]) -> None:
        self._lock, self.show = threading.Lock(), show
        self._total, self._done = len(waiting), 0
        self._started = time.perf_counter()

    def add(self, name: str, outcome: str, count: int = 1) -> None:
        """Counts units and shows a line."""
        with self._lock:
            self._done += count
            taken = time.perf_counter() - self._started
            left = timedelta(seconds=round(taken / self._done * (self._total - self._done)))
            self.show(f"{self._done}/{self._total} {name}: {outcome} ({left} left)")


def load(unit: Unit, track: Track, data_dir: str | None) -> BenchmarkInput:
    """Reads the federated dataset of a unit with the partitions of all seeds of a track."""
    data, first, phases = unit.federation.load(data_dir, sum(track.seeds.values(), ())), 0, {}
    for phase, seeds in track.seeds.items():
        phases[phase] = data.of_runs(range(first, first + len(seeds)))
        first += len(seeds)
    whole = FEDERATIONS[unit.federation.name]
    baseline = unit._replace(federation=whole, method=BASELINE)
    (round,) = make_rounds(baseline, configuration(baseline), [{RATE: 0.1}], phases)
    return BenchmarkInput(phases, operations_of(round, phases["tuning"]))


def failed_units(folder: Path) -> list[tuple[str, str, str]]:
    """Returns federated dataset, method and reason of each unit that has no results."""
    found = []
    for file in sorted((folder / "programs").glob(f"*/*/{_FAILED}")):
        if file.with_name("final.jsonl").exists():  # By another process.
            continue
        try:
            reason = str(json.loads(file.read_bytes())["reason"])
        except (ValueError, TypeError, LookupError, RecursionError):
            reason = f"{file.name} is damaged"
        found.append((file.parent.parent.name, file.parent.name, reason))
    return found


def failures(units: Iterable[Sequence[str]]) -> list[str]:
    """Returns the reasons of `failed_units`, each with the names of methods and dataset.

    Examples:
        >>> failures([("digits", "fedbn", "no memory"), ("digits", "ditto", "no memory")])
        ['fedbn, ditto on digits: no memory']
    """
    methods: dict[tuple[str, str], list[str]] = {}
    for federation, method, reason in units:
        methods.setdefault((federation, reason), []).append(method)
    return [f"{', '.join(names)} on {of}: {reason}" for (of, reason), names in methods.items()]


def prepare(planned: Plan, folder: Path) -> None:
    """Makes the folder, with descriptions of the benchmark and of methods of plugins.

    Raises:
        ValueError: If the folder has results of another protocol or track, or of other code of a
            method.
    """
    make_folder(folder)
    _describe_benchmark(planned, folder)
    plugin_methods.record(folder, (unit.method for unit in planned.units), planned.part)


def _describe_benchmark(planned: Plan, folder: Path) -> None:
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
            f"folder={str(folder)!r}: expected protocol {VERSION}, got {version}; use another "
            "folder."
        )
    return described
