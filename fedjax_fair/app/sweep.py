"""Sweeps: many seeds and numeric hyperparameters in one compiled function."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair import report, results
from fedjax_fair.app.build import metrics_of
from fedjax_fair.app.guarantees import add_epsilon, attributes_of, guarantee
from fedjax_fair.app.run_folder import make_folder
from fedjax_fair.app.run_groups import Group, plan_sweep, runs_of
from fedjax_fair.app.run_record import check_record, command, environment, write_record
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.defaults import by_section, unset_defaults
from fedjax_fair.parallel.mesh import num_run_groups
from fedjax_fair.results.files import locked, write_text
from fedjax_fair.results.history import name_coordinates
from fedjax_fair.training.fingerprint import describe_run, differences
from fedjax_fair.training.fit import fit
from fedjax_fair.training.loop import Callback, MemoryLimitError
from fedjax_fair.training.memory_estimate import free_memory
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["sweep", "sweep_folder"]


def sweep(
    base: Config,
    *,
    seeds: Sequence[int] | None = None,
    folder: str | Path | None = None,
    runs_per_batch: int | None = None,
    callback_fn: Callable[[str], Sequence[Callback]] = lambda runs: (),
    **varied: Sequence[Any],
) -> xr.Dataset:
    """Runs every combination of some settings, for every method and seed.

    Args:
        base: Other settings. ``data.validation_fraction`` is 0.1 by default.
        seeds: Seeds of the runs; those of ``base`` by default.
        folder: Folder of ``results.nc``, ``report.html``, ``env.json`` (environment and digest of
            the data) and finished batches, which the same call does not run again.
        runs_per_batch: Runs that are compiled together; by default as many as fit into memory.
        callback_fn: Makes the callbacks of a batch of runs from its description.
        **varied: Values by the name of a setting, or by ``section.name`` if that is ambiguous.

    Returns:
        What ``fit`` returns, with dimensions ``algorithm``, ``seed`` and one for each setting.

    Raises:
        ValueError: If a setting is unknown or not used, its values do not fit, or the folder holds
            a run or another sweep (also of other code or data), or is used by another process.

    Examples:
        >>> from dataclasses import replace
        >>> from fedjax_fair.app.settings import presets
        >>> base = presets.PRESETS["digits"].config
        >>> base = replace(base, methods=("fedprox",), training=replace(base.training, rounds=2))
        >>> runs = sweep(base, seeds=(0, 1), prox=[0.0, 0.1, 1.0])
        >>> dict(runs.accuracy_mean_clients.sizes)
        {'algorithm': 1, 'prox': 3, 'seed': 2, 'round': 3}
    """
    if runs_per_batch is not None:
        checks.positive_int("runs_per_batch", runs_per_batch)
    config, axes, groups = plan_sweep(base, varied, seeds=seeds)
    settings = asdict(config) | {"varied": {axis.name: axis.values for axis in axes}}
    path = None if folder is None else Path(folder)
    if path is not None:
        if (path / "config.json").exists():
            raise ValueError(
                f"folder={str(folder)!r}: expected the folder of a sweep, not a run; "
                "use results.open for a run."
            )
        make_folder(path)
    parts = []
    with nullcontext() if path is None else locked(path):
        store = None if path is None else _Store(path, settings, groups)
        if path is not None:
            if not (path / "env.json").exists():
                write_record(path, environment() | {"command": command()})
            datasets = {id(group.data): group.data for group in groups}.values()
            check_record(path, "sweep", **{str(key): each for key, each in enumerate(datasets)})
        for number, group in enumerate(groups):
            for part in _finish(group, store, f"{number:03d}", runs_per_batch, callback_fn):
                # Runs are the same for all values of a setting that the method does not use.
                for values in product(*(axis.values for axis in group.unused)):
                    parts.append(_label(group, part, values))
        varied_keys = [axis.key for axis in axes]
        num_clients = groups[0].data.num_clients
        guarantees = ((group.name, _guarantee(group)) for group in groups)
        attrs = attributes_of(config, guarantees, num_clients, varied_keys)
        combined = _combine(parts, [axis.name for axis in axes]).assign_attrs(attrs)
        combined = combined.assign_coords(name_coordinates(groups[0].data))
        if path is not None:
            shown = settings | {
                "defaults": by_section(unset_defaults(config, varied_keys, num_clients))
            }
            results.save(combined, path / "results.nc")
            write_text(path / "report.html", report.page(combined, shown, environment()))
    return combined


def sweep_folder(
    parent: str | Path,
    name: str,
    base: Config,
    varied: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None,
) -> Path:
    """Returns the folder of a sweep under ``parent``, the same one for the same arguments."""
    text = json.dumps([asdict(base), varied, seeds], default=str)
    return Path(parent) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class _Store:
    """Finished batches of a sweep, in a folder without batches of other settings, code or data."""

    def __init__(self, folder: Path, settings: dict[str, Any], groups: list[Group]) -> None:
        self._folder, file = folder, folder / "sweep.json"
        first, *others = (next(iter(group.rounds.values())) for group in groups)
        made_of = describe_run(first, groups[0].data, others=others)
        text = json.dumps({"settings": settings, "made_of": made_of}, default=str, indent=2)
        if not file.exists():
            write_text(file, text)
        elif (different := _first_difference(json.loads(text), file)) is not None:
            raise ValueError(
                f"folder={str(folder)!r}: expected this sweep, {file.name} has another{different}; "
                "use another folder."
            )
        self._checksum = hashlib.sha256(file.read_bytes()).hexdigest()

    def read(self, key: str) -> list[xr.Dataset]:
        """Reads the batches of a group."""
        parts = []
        for file in sorted(self._folder.glob(f"{key}-*.nc")):
            parts.append(results.open(file))
            if parts[-1].attrs.pop("sweep", None) != self._checksum:
                raise ValueError(f"path={str(file)!r}: expected runs of this sweep.")
        return parts

    def write(self, key: str, part: xr.Dataset) -> None:
        """Writes a batch of a group."""
        file = self._folder / f"{key}-{part['run'].values[0]:05d}.nc"
        results.save(part.assign_attrs(sweep=self._checksum), file)


def _first_difference(expected: dict[str, Any], file: Path) -> str | None:
    """Describes how code, data or settings of JAX differ from those in a file; None if equal."""
    try:
        recorded = json.loads(file.read_bytes())
        if file.read_bytes() != json.dumps(recorded, indent=2).encode():
            return " or is damaged"
        if recorded["settings"] != expected["settings"]:
            return ""
        different = differences(expected["made_of"], recorded["made_of"])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return " or is damaged"
    if not different:
        return None
    path, value, before = different[0]
    return f" with {path}={before}, now {value}"


def _finish(
    group: Group,
    store: _Store | None,
    key: str,
    runs_per_batch: int | None,
    callback_fn: Callable[[str], Sequence[Callback]],
) -> list[xr.Dataset]:
    """Runs missing batches of a group, and returns all."""
    parts = [] if store is None else store.read(key)
    done = {int(number) for part in parts for number in part["run"]}
    waiting = [number for number in range(len(group.runs)) if number not in done]
    size = runs_per_batch or len(waiting)
    num_groups = num_run_groups(group.mesh)  # A device holds one of as many runs.
    while waiting:
        batch = waiting[:size]
        limit = None if runs_per_batch or size <= num_groups else free_memory()
        callbacks = callback_fn(f"{group.name}, {len(batch)} runs")
        try:
            part = _run(group, batch, limit, callbacks)
        except MemoryLimitError as error:
            size = num_groups * max(1, int(error.fits * -(-len(batch) // num_groups)))
            continue
        if store is not None:
            store.write(key, part)
        parts.append(part)
        waiting = waiting[size:]
    return parts


def _run(
    group: Group, numbers: list[int], limit: int | None, callbacks: Sequence[Callback]
) -> xr.Dataset:
    """Runs a batch, whose dimension is the index into ``group.runs``."""
    training = group.config.training
    part = fit(
        **runs_of(group, numbers),
        rounds=training.rounds or 0,
        eval_every=training.eval_every or 1,
        train_loss=False,
        on_nonfinite=training.on_nonfinite or "raise",
        metrics=metrics_of(group.config, group.data.num_classes),
        callbacks=callbacks,
        memory_limit=limit,
        until_seconds=group.config.schedule.until_seconds,
        mesh=group.mesh,
    ).dataset
    # The names of clients may differ in batches of an earlier call; the sweep gets the latest.
    part = part.drop_vars(["seed", "client"], errors="ignore")
    return part.rename(seed="run").assign_coords(run=numbers)


def _label(group: Group, part: xr.Dataset, unused_values: tuple[Any, ...]) -> xr.Dataset:
    """Labels the runs of a batch by method, settings and seed."""
    runs = [group.runs[number] for number in part["run"].values]
    unused = dict(zip((axis.name for axis in group.unused), unused_values, strict=True))
    constant = {"algorithm": group.name} | group.labels | unused
    columns: dict[str, list[Any]] = {name: [value] * len(runs) for name, value in constant.items()}
    for index, axis in enumerate(group.axes):
        columns[axis.name] = [values[index] for values, _ in runs]
    columns["seed"] = [seed for _, seed in runs]
    part = add_epsilon(part, _guarantee(group))
    if "epsilon" in part:
        part["epsilon"] = part["epsilon"].expand_dims(run=part["run"])
    return part.drop_vars("run").assign_coords({name: ("run", c) for name, c in columns.items()})


def _guarantee(group: Group) -> float | str | None:
    method = next(iter(group.rounds.values()))
    return guarantee(group.name, method, group.config, group.data.num_clients)


def _combine(parts: list[xr.Dataset], names: list[str]) -> xr.Dataset:
    """Combines all runs along methods, settings and seeds."""
    import xarray as xr

    by_run = [part[[name for name in part if "run" in part[name].dims]] for part in parts]
    runs = xr.concat(by_run, "run", join="outer", data_vars="all", combine_attrs="override")
    combined = runs.set_index(run=["algorithm", *names, "seed"]).unstack("run")
    first = parts[0]
    shared = {name: first[name].variable for name in first if "run" not in first[name].dims}
    # Partitions differ at most between seeds.
    first_configuration = dict.fromkeys(("algorithm", *names), 0)
    for name in set(results.PARTITION_VARIABLES) & set(combined):
        shared[name] = combined[name].isel(first_configuration).variable
    if "epsilon" in combined:  # Equal for all seeds.
        shared["epsilon"] = combined["epsilon"].isel(seed=0).variable
    return combined.assign(shared).transpose("algorithm", *names, "seed", ...)
