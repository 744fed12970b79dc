"""Sweeps: many configurations of a method in one compiled function.

Seeds and numeric hyperparameters are a batch axis. Other settings are compiled separately.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_fair import checks, report, results
from fedjax_fair.app import presets
from fedjax_fair.app.build import build, largest_client, method_round
from fedjax_fair.app.config import Config
from fedjax_fair.app.run_folder import environment, locked
from fedjax_fair.app.settings import change, lookup, places
from fedjax_fair.app.signatures import Setting
from fedjax_fair.app.variants import method_settings
from fedjax_fair.data.federated import FederatedData, partition_arrays, with_partition_arrays
from fedjax_fair.parallel.mesh import num_run_groups
from fedjax_fair.results.files import write_text
from fedjax_fair.simulate import BaseRound
from fedjax_fair.training.fit import Callback, MemoryLimitError, fit_batch
from fedjax_fair.training.memory import free_memory

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Axis", "Group", "Runs", "plan_sweep", "runs_of", "sweep"]

_VALIDATION = 0.1


class Axis(NamedTuple):
    """A setting that is varied."""

    name: str
    section: str
    field: str
    values: tuple[Any, ...]


class Group(NamedTuple):
    """Runs of one method that can be compiled together.

    Attributes:
        name: The method.
        config: Configuration without the varied settings.
        data: The federated dataset.
        mesh: Devices; None for a single one.
        labels: Varied settings that are equal for all runs, by name.
        axes: Varied settings on the batch axis.
        unused: Varied settings that the method does not use.
        runs: Values of ``axes`` and seed of each run.
        rounds: Round of each combination of values.
    """

    name: str
    config: Config
    data: FederatedData
    mesh: Mesh | None
    labels: dict[str, Any]
    axes: list[Axis]
    unused: list[Axis]
    runs: list[tuple[tuple[Any, ...], int]]
    rounds: dict[tuple[Any, ...], BaseRound]


class Runs(NamedTuple):
    """Arguments of ``fit_batch`` for some runs of a group."""

    methods: Sequence[BaseRound]
    seeds: tuple[int, ...]
    data: FederatedData


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

    Runs that differ in numeric hyperparameters share a compiled function, as far as memory allows.

    Args:
        base: Configuration of the other settings. ``data.validation_fraction`` is 0.1 by default.
        seeds: Seeds of the runs; those of ``base`` by default.
        folder: Folder of ``results.nc``, ``report.html`` and finished batches, which the same call
            does not run again.
        runs_per_batch: Runs that are compiled together; by default as many as fit into memory.
        callback_fn: Makes the callbacks of every batch of runs, from its description.
        **varied: Values by the name of a setting, or by ``section.name`` if that is ambiguous.

    Returns:
        What ``fit`` returns, with dimensions ``algorithm``, ``seed`` and one for each setting.

    Raises:
        ValueError: If a setting is unknown or not used, its values do not fit, or the folder holds
            another sweep or is used by another process.

    Examples:
        >>> from dataclasses import replace
        >>> from fedjax_fair.app import presets
        >>> base = presets.PRESETS["digits"].config
        >>> base = replace(base, methods=("fedprox",), training=replace(base.training, rounds=2))
        >>> runs = sweep(base, seeds=(0, 1), prox=[0.0, 0.1, 1.0])
        >>> dict(runs.accuracy_mean_clients.sizes)
        {'algorithm': 1, 'prox': 3, 'seed': 2, 'round': 2}
    """
    if runs_per_batch is not None:
        checks.positive_int("runs_per_batch", runs_per_batch)
    config, axes, groups = plan_sweep(base, varied, seeds=seeds)
    description = asdict(config) | {"varied": {axis.name: axis.values for axis in axes}}
    path = None if folder is None else _claim(Path(folder), description)
    parts = []
    with nullcontext() if path is None else locked(path):
        for number, group in enumerate(groups):
            for part in _finish(group, path, f"{number:03d}", runs_per_batch, callback_fn):
                # Runs are the same for all values of a setting that the method does not use.
                for values in product(*(axis.values for axis in group.unused)):
                    parts.append(_label(group, part, values))
        combined = _combine(parts, [axis.name for axis in axes])
        if path is not None:
            results.save(combined, path / "results.nc")
            write_text(path / "report.html", report.page(combined, description, environment()))
    return combined


def plan_sweep(
    base: Config,
    varied: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] | None = None,
    memory: float | None = None,
) -> tuple[Config, list[Axis], list[Group]]:
    """Returns the resolved configuration of a sweep, the varied settings, and its groups of runs.

    Arguments and errors are those of ``sweep``; ``memory`` is that of ``build``.
    """
    if seeds is not None:
        checks.seeds("seeds", seeds)
        base = change(base, "training", "seeds", tuple(seeds))
    if base.data.validation_fraction is None:
        base = change(base, "data", "validation_fraction", _VALIDATION)
    config = presets.resolve(base)
    if config.distributed:
        raise ValueError("distributed=True: expected False for a sweep.")
    axes = [_axis(config, name, values) for name, values in varied.items()]
    return config, axes, list(_groups(config, axes, memory))


def _groups(config: Config, axes: list[Axis], memory: float | None) -> Iterator[Group]:
    traced = [axis for axis in axes if _is_traced(config, axis)]
    fixed = [axis for axis in axes if axis not in traced]
    data = None  # Loaded once, because settings of the data cannot be varied.
    for fixed_values in product(*(axis.values for axis in fixed)):
        own = _set(config, fixed, fixed_values)
        labels = {axis.name: value for axis, value in zip(fixed, fixed_values, strict=True)}
        experiment = build(own, data, memory)
        data = experiment.data
        for name in config.methods:
            used = [axis for axis in traced if _setting(own, name, axis) is not None]
            unused = [axis for axis in traced if axis not in used]
            configurations = list(product(*(axis.values for axis in used)))
            # Making all rounds first checks all values before anything runs.
            rounds = {
                values: method_round(
                    _set(own, used, values), name, data.num_classes, largest_client(data)
                )
                for values in configurations
            }
            runs = list(product(configurations, own.training.seeds))
            yield Group(name, own, data, experiment.mesh, labels, used, unused, runs, rounds)


def _axis(config: Config, name: str, values: Sequence[Any]) -> Axis:
    section, field = lookup("setting", name, places(config))
    if not len(values) or len(set(values)) < len(values):
        raise ValueError(f"{name}={list(values)!r}: expected one or more different values.")
    if field == "seeds" or section == "data":
        raise ValueError(f"{name}: expected a setting of methods, model or training.")
    return Axis(name, section, field, tuple(values))


def _setting(config: Config, name: str, axis: Axis) -> Setting | None:
    """Returns the setting of a method that an axis varies, if the method uses it."""
    return method_settings(config, name).get(axis.section, {}).get(axis.field)


def _is_traced(config: Config, axis: Axis) -> bool:
    """Whether a setting only enters arithmetic in all methods that use it.

    Raises:
        ValueError: If no method uses it.
    """
    is_of_model = axis.section == "model" and axis.field in ("name", "compute")
    if is_of_model or axis.section in ("training", "faults", "communication"):
        return False
    settings = [setting for name in config.methods if (setting := _setting(config, name, axis))]
    if not settings:
        methods = ", ".join(config.methods)
        raise ValueError(f"{axis.name}: expected a setting that one of {methods} uses.")
    return all(setting.traced for setting in settings)


def _set(config: Config, axes: Sequence[Axis], values: Sequence[Any]) -> Config:
    for axis, value in zip(axes, values, strict=True):
        config = change(config, axis.section, axis.field, value)
    return config


def _claim(folder: Path, description: dict[str, Any]) -> Path:
    """Makes the folder of a sweep, or checks that it holds the same sweep."""
    text, file = json.dumps(description, indent=2, default=str), folder / "sweep.json"
    if file.exists() and file.read_bytes() != text.encode():
        raise ValueError(f"folder={str(folder)!r}: expected this sweep, {file.name} has another.")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    return folder


def _finish(
    group: Group,
    folder: Path | None,
    key: str,
    runs_per_batch: int | None,
    callback_fn: Callable[[str], Sequence[Callback]],
) -> list[xr.Dataset]:
    """Runs what is missing of a group in batches, and returns all batches."""
    parts = [] if folder is None else _read_parts(folder, key)
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
        if folder is not None:
            results.save(part, folder / f"{key}-{batch[0]:05d}.nc")
        parts.append(part)
        waiting = waiting[size:]
    return parts


def _read_parts(folder: Path, key: str) -> list[xr.Dataset]:
    parts = []
    for file in sorted(folder.glob(f"{key}-*.nc")):
        parts.append(results.open(file))
        if "run" not in parts[-1].coords:
            raise ValueError(f"path={str(file)!r}: expected runs of this sweep.")
    return parts


def runs_of(group: Group, numbers: Sequence[int]) -> Runs:
    """Returns some runs of a group.

    Args:
        group: From ``plan_sweep``.
        numbers: Indices into ``group.runs``.
    """
    configurations, seeds = zip(*(group.runs[number] for number in numbers), strict=True)
    data, training = group.data, group.config.training
    if data.num_partitions is not None:
        indices = np.array([training.seeds.index(seed) for seed in seeds])
        arrays = jax.tree.map(lambda leaf: leaf[indices], partition_arrays(data))
        data = with_partition_arrays(data, arrays)
    return Runs([group.rounds[values] for values in configurations], seeds, data)


def _run(
    group: Group, numbers: list[int], limit: int | None, callbacks: Sequence[Callback]
) -> xr.Dataset:
    """Runs a batch; its dimension is ``run``, the index into ``group.runs``."""
    training = group.config.training
    part = fit_batch(
        **runs_of(group, numbers)._asdict(),
        rounds=training.rounds or 0,
        eval_every=training.eval_every,
        train_loss=False,
        on_nonfinite=training.on_nonfinite or "skip_round",
        callbacks=callbacks,
        memory_limit=limit,
        mesh=group.mesh,
    )
    return part.drop_vars("seed").rename(seed="run").assign_coords(run=numbers)


def _label(group: Group, part: xr.Dataset, unused_values: tuple[Any, ...]) -> xr.Dataset:
    """Labels the runs of a batch by method, settings and seed."""
    runs = [group.runs[number] for number in part["run"].values]
    unused = dict(zip((axis.name for axis in group.unused), unused_values, strict=True))
    constant = {"algorithm": group.name} | group.labels | unused
    columns: dict[str, list[Any]] = {name: [value] * len(runs) for name, value in constant.items()}
    for index, axis in enumerate(group.axes):
        columns[axis.name] = [values[index] for values, _ in runs]
    columns["seed"] = [seed for _, seed in runs]
    return part.drop_vars("run").assign_coords({name: ("run", c) for name, c in columns.items()})


def _combine(parts: list[xr.Dataset], names: list[str]) -> xr.Dataset:
    """Combines all runs, with a dimension for the method, each setting and the seed."""
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
    return combined.assign(shared).transpose("algorithm", *names, "seed", ...)
