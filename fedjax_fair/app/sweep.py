"""Many settings of a method in one compiled program.

Seeds and numeric fields of roles (step sizes, strengths, windows) are a batch axis of one program;
what decides shapes or code (methods, cohort sizes, networks) makes one of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
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
from fedjax_fair.app.settings import lookup, places
from fedjax_fair.app.signatures import Setting
from fedjax_fair.app.variants import method_settings
from fedjax_fair.data.federated import FederatedData, partition_arrays, with_partition_arrays
from fedjax_fair.parallel.mesh import num_run_groups
from fedjax_fair.results.files import write_text
from fedjax_fair.simulate import BaseRound
from fedjax_fair.training.fit import Callback, MemoryLimitError, fit_batch

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Axis", "Group", "Runs", "free_bytes", "plan_sweep", "runs_of", "sweep"]


_VALIDATION = 0.1


class Axis(NamedTuple):
    """A setting that is varied."""

    name: str
    section: str
    field: str
    values: tuple[Any, ...]


class Group(NamedTuple):
    """Runs that can share a program: one method, and one choice of what decides shapes.

    Attributes:
        name: The method.
        config: Everything else; the varied settings are set per run.
        data: The federation.
        mesh: Devices that runs and clients are assigned to, if there are several.
        labels: What is the same for all runs, by name of the setting.
        axes: Settings that the method reads and that share its program.
        unused: Those of the others that it does not read.
        runs: Values of ``axes`` and the seed, one entry a run.
        rounds: The round of each combination of values.
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


def sweep(
    base: Config,
    *,
    seeds: Sequence[int] | None = None,
    folder: str | Path | None = None,
    runs_per_batch: int | None = None,
    callback_fn: Callable[[str], Callback] = lambda runs: Callback(),
    **varied: Sequence[Any],
) -> xr.Dataset:
    """Runs every combination of some settings, for every method and seed.

    Runs that differ in numbers share one compiled program, as far as memory allows.

    Args:
        base: Everything else; its methods are compared. If it does not say what is held out for
            validation, it is a tenth of every client's training examples.
        seeds: Runs of every configuration; those of ``base`` by default.
        folder: Where finished runs are kept, and found again by the same call; the whole
            becomes ``results.nc`` there, and its most accurate configurations ``report.html``.
        runs_per_batch: Runs (configurations times seeds) in one program. By default all, or as many as an
            estimate says fit into half of the memory that is free (nine tenths of an
            accelerator's).
        callback_fn: Makes a callback for every batch of runs, from a line that describes it; its
            ``on_compiled`` receives the estimate.
        **varied: Values by the name of a setting, such as ``lam=[0.1, 1.0]``; as ``section.name``
            where several sections have one of this name.

    Returns:
        What ``fit`` returns, over ``algorithm``, ``seed`` and a dimension for each setting.

    Raises:
        ValueError: If a setting does not exist, is read by no method, has no values or one that
            does not fit, or the folder holds another sweep or
            is being worked in.

    Examples:
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
    store = _Store(folder, config, axes)
    parts = []
    with store.locked():
        for number, group in enumerate(groups):
            for part in _finish(group, store, f"{number:03d}", runs_per_batch, callback_fn):
                # A setting that a method does not read is run once, and labels every value.
                for others in product(*(axis.values for axis in group.unused)):
                    parts.append(_labeled(group, part, others))
        whole = _joined(parts, [axis.name for axis in axes])
        if folder is not None:
            results.save(whole, Path(folder) / "results.nc")
            described = asdict(config) | {"varied": {axis.name: axis.values for axis in axes}}
            write_text(Path(folder) / "report.html", report.page(whole, described, environment()))
    return whole


def plan_sweep(
    base: Config,
    varied: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] | None = None,
    memory: float | None = None,
) -> tuple[Config, list[Axis], list[Group]]:
    """What a sweep would run: its resolved configuration, what is varied, and the groups of runs.

    Args:
        base: As for ``sweep``.
        varied: Values by the name of a setting, as for ``sweep``.
        seeds: As for ``sweep``.
        memory: As for ``build``.

    Raises:
        ValueError: As ``sweep``.
    """
    if seeds is not None:
        checks.seeds("seeds", seeds)
        base = replace(base, training=replace(base.training, seeds=tuple(seeds)))
    if base.data.validation_fraction is None:
        base = replace(base, data=replace(base.data, validation_fraction=_VALIDATION))
    config = presets.resolve(base)
    if config.distributed:
        raise ValueError("distributed=True: expected False for a sweep.")
    axes = [_axis(config, name, values) for name, values in varied.items()]
    return config, axes, list(_groups(config, axes, memory))


def _groups(config: Config, axes: list[Axis], memory: float | None) -> Iterator[Group]:
    traced = [axis for axis in axes if _is_traced(config, axis)]
    fixed = [axis for axis in axes if axis not in traced]
    data = None  # The same for all: settings of the data cannot be varied.
    for chosen in product(*(axis.values for axis in fixed)):
        own = _with(config, fixed, chosen)
        labels = {axis.name: value for axis, value in zip(fixed, chosen, strict=True)}
        experiment = build(own, data, memory)
        data = experiment.data
        for name in config.methods:
            read = [axis for axis in traced if _setting(own, name, axis) is not None]
            unused = [axis for axis in traced if axis not in read]
            configurations = list(product(*(axis.values for axis in read)))
            runs = list(product(configurations, own.training.seeds))
            # What is out of range is noticed before anything runs.
            rounds = {
                values: _round(_with(own, read, values), name, data) for values in configurations
            }
            yield Group(name, own, data, experiment.mesh, labels, read, unused, runs, rounds)


def _finish(
    group: Group,
    store: _Store,
    key: str,
    runs_per_batch: int | None,
    callback_fn: Callable[[str], Callback],
) -> list[xr.Dataset]:
    """Runs what is missing, in batches as large as memory allows; all parts, old and new."""
    parts = store.parts(key)
    done = {int(number) for part in parts for number in part["run"]}
    waiting = [number for number in range(len(group.runs)) if number not in done]
    size = runs_per_batch or len(waiting)
    at_once = num_run_groups(group.mesh)  # So many take no more memory of a device than one.
    while waiting:
        batch = waiting[:size]
        limit = None if runs_per_batch or size <= at_once else free_bytes()
        callback = callback_fn(f"{group.name}, {len(batch)} runs")
        try:
            part = _run(group, batch, limit, callback)
        except MemoryLimitError as error:
            size = at_once * max(1, int(error.fits * -(-len(batch) // at_once)))
            continue
        store.put(key, part)
        parts.append(part)
        waiting = waiting[size:]
    return parts


def free_bytes() -> int:
    """Memory that a batch may take."""
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if stats is not None:
        return int(0.9 * (stats["bytes_limit"] - stats["bytes_in_use"]))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _axis(config: Config, name: str, values: Sequence[Any]) -> Axis:
    section, field = lookup("setting", name, places(config))
    if not len(values) or len(set(values)) < len(values):
        raise ValueError(f"{name}={list(values)!r}: expected one or more different values.")
    if field == "seeds" or section == "data":
        raise ValueError(f"{name}: expected a setting of methods, model or training.")
    return Axis(name, section, field, tuple(values))


def _setting(config: Config, name: str, axis: Axis) -> Setting | None:
    """The setting of a method that an axis varies, if the method reads it."""
    return method_settings(config, name).get(axis.section, {}).get(axis.field)


def _is_traced(config: Config, axis: Axis) -> bool:
    """Whether a setting is a number of all methods that read it.

    Raises:
        ValueError: If no method reads it.
    """
    if (axis.section, axis.field) in _OF_ALL_METHODS or axis.section in _OF_ALL_RUNS:
        return False
    read = [found for name in config.methods if (found := _setting(config, name, axis))]
    if not read:
        names = ", ".join(config.methods)
        raise ValueError(f"{axis.name}: expected a setting that one of {names} reads.")
    return all(setting.traced for setting in read)


_OF_ALL_METHODS = {("model", "name"), ("model", "compute")}
_OF_ALL_RUNS = ("training", "faults", "communication")


def _with(config: Config, axes: Sequence[Axis], values: Sequence[Any]) -> Config:
    for axis, value in zip(axes, values, strict=True):
        part = replace(getattr(config, axis.section), **{axis.field: value})
        config = replace(config, **{axis.section: part})
    return config


def _round(config: Config, name: str, data: FederatedData) -> BaseRound:
    return method_round(config, name, data.num_classes, largest_client(data))


class Runs(NamedTuple):
    """Some runs of a group, as ``fit_batch`` takes them."""

    methods: Sequence[BaseRound]
    seeds: tuple[int, ...]
    data: FederatedData


def runs_of(group: Group, numbers: Sequence[int]) -> Runs:
    """Runs of a group.

    Args:
        group: From ``plan_sweep``.
        numbers: Places in ``group.runs``.
    """
    configurations, seeds = zip(*(group.runs[number] for number in numbers), strict=True)
    data, training = group.data, group.config.training
    if data.num_partitions is not None:
        own = np.array([training.seeds.index(seed) for seed in seeds])
        data = with_partition_arrays(
            data, jax.tree.map(lambda leaf: leaf[own], partition_arrays(data))
        )
    return Runs([group.rounds[values] for values in configurations], seeds, data)


def _run(group: Group, numbers: list[int], limit: int | None, callback: Callback) -> xr.Dataset:
    """Some runs of a group, with their numbers along ``run``."""
    training = group.config.training
    part = fit_batch(
        **runs_of(group, numbers)._asdict(),
        rounds=training.rounds or 0,
        eval_every=training.eval_every,
        train_loss=False,
        on_nonfinite=training.on_nonfinite or "skip_round",
        callbacks=[callback],
        memory_limit=limit,
        mesh=group.mesh,
    )
    return part.drop_vars("seed").rename(seed="run").assign_coords(run=numbers)


def _labeled(group: Group, part: xr.Dataset, others: tuple) -> xr.Dataset:
    """A batch whose runs know the method, the settings and the seed."""
    configurations, seeds = zip(*(group.runs[number] for number in part["run"].values), strict=True)
    unused = {axis.name: value for axis, value in zip(group.unused, others, strict=True)}
    constant = {"algorithm": group.name} | group.labels | unused
    columns: dict[str, Any] = {name: [value] * len(seeds) for name, value in constant.items()}
    values = zip(*configurations, strict=True)
    columns |= {axis.name: list(own) for axis, own in zip(group.axes, values, strict=False)}
    columns["seed"] = list(seeds)
    return part.drop_vars("run").assign_coords(
        {name: ("run", column) for name, column in columns.items()}
    )


def _joined(parts: list[xr.Dataset], names: list[str]) -> xr.Dataset:
    """All runs, with a dimension for the method, each setting and the seed."""
    import xarray as xr

    own = [part[[name for name in part if "run" in part[name].dims]] for part in parts]
    runs = xr.concat(own, "run", join="outer", data_vars="all", combine_attrs="override")
    whole = runs.set_index(run=["algorithm", *names, "seed"]).unstack("run")
    first = parts[0]
    shared = {name: first[name].variable for name in first if "run" not in first[name].dims}
    # A partition of a run's own depends on its seed alone.
    first_configuration = dict.fromkeys(("algorithm", *names), 0)
    owned = [name for name in results.PARTITION_VARIABLES if name in whole]
    shared |= {name: whole[name].isel(first_configuration).variable for name in owned}
    return whole.assign(shared).transpose("algorithm", *names, "seed", ...)


class _Store:
    """Finished runs in a folder, if there is one."""

    def __init__(self, folder: str | Path | None, config: Config, axes: list[Axis]) -> None:
        self._folder = None if folder is None else Path(folder)
        if self._folder is None:
            return
        described = json.dumps(
            {"config": asdict(config), "varied": {axis.name: axis.values for axis in axes}},
            indent=2,
            default=str,
        )
        file = self._folder / "sweep.json"
        if file.exists() and file.read_bytes() != described.encode():
            raise ValueError(
                f"folder={str(folder)!r}: expected this sweep, found another one in {file.name}."
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text(file, described)

    def locked(self) -> AbstractContextManager[None]:
        """Keeps other processes away until all is done."""
        return nullcontext() if self._folder is None else locked(self._folder)

    def parts(self, key: str) -> list[xr.Dataset]:
        """What is finished of a group."""
        files = [] if self._folder is None else sorted(self._folder.glob(f"{key}-*.nc"))
        parts = [results.open(file) for file in files]
        for file, part in zip(files, parts, strict=True):
            if "run" not in part.coords:
                raise ValueError(f"path={str(file)!r}: expected runs of this sweep.")
        return parts

    def put(self, key: str, part: xr.Dataset) -> None:
        """Keeps finished runs of a group."""
        if self._folder is not None:
            results.save(part, self._folder / f"{key}-{int(part['run'][0]):05d}.nc")
