"""Many settings of a method in one compiled program.

Numbers that a round takes as traced (step sizes, strengths, windows) and seeds are a batch axis of
one program; what decides shapes or code (methods, cohort sizes, networks) makes one of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, replace
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair import checks, methods, presets, results
from fedjax_fair.config import Config, lookup, places
from fedjax_fair.data.federated import FederatedData, ownership, with_ownership
from fedjax_fair.training import fit_points

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["TRACED", "sweep"]

TRACED = (
    "learning_rate",
    "weight_decay",
    "prox",
    "lam",
    "b",
    "mu",
    "window",
    "step",
    "beta",
    "strength",
    "q",
    "tilt",
)
"""Settings that share a compilation."""


class _Axis(NamedTuple):
    """A setting that is varied."""

    name: str
    section: str
    field: str
    values: tuple[Any, ...]


def sweep(
    base: Config,
    *,
    seeds: Sequence[int] | None = None,
    folder: str | Path | None = None,
    points_per_batch: int | None = None,
    **varied: Sequence[Any],
) -> xr.Dataset:
    """Runs every combination of some settings, for every method and seed.

    Args:
        base: Everything else; its methods are compared.
        seeds: Runs of every point; those of ``base`` by default.
        folder: Where finished batches are kept, and found again by the same call; the whole
            becomes ``results.nc`` there.
        points_per_batch: Runs (points times seeds) in a program; all by default. More use more
            memory.
        **varied: Values by the name of a setting, such as ``lam=[0.1, 1.0]``; as ``section.name``
            where several sections have one of this name.

    Returns:
        What ``fit`` returns, over ``algorithm``, ``seed`` and a dimension for each setting.

    Raises:
        ValueError: If a setting does not exist, has no values or one that does not fit, or the
            folder holds another sweep.

    Examples:
        >>> from fedjax_fair import presets
        >>> base = presets.PRESETS["digits"].config
        >>> base = replace(base, methods=("fedprox",), training=replace(base.training, rounds=2))
        >>> runs = sweep(base, seeds=(0, 1), prox=[0.0, 0.1, 1.0])
        >>> dict(runs.accuracy_mean_clients.sizes)
        {'algorithm': 1, 'prox': 3, 'seed': 2, 'round': 2}
    """
    if seeds is not None:
        base = replace(base, training=replace(base.training, seeds=tuple(seeds)))
    config = presets.resolve(base)
    if points_per_batch is not None:
        checks.positive_int("points_per_batch", points_per_batch)
    axes = [_axis(config, name, values) for name, values in varied.items()]
    store = None if folder is None else _Store(Path(folder), config, axes)
    fixed = [axis for axis in axes if axis.field not in TRACED]
    traced = [axis for axis in axes if axis.field in TRACED]
    numbers, parts = count(), []
    for chosen in product(*(axis.values for axis in fixed)):
        own = _with(config, fixed, chosen)
        experiment = methods.build(own)
        for name in config.methods:
            used, unused = _split(own, name, experiment.data, traced)
            for values, run_seeds in _batches(used, own.training.seeds, points_per_batch):
                key = f"{next(numbers):05d}"
                part = None if store is None else store.get(key)
                if part is None:
                    part = _run(own, name, experiment.data, used, values, run_seeds)
                    if store is not None:
                        store.put(key, part)
                # What a method does not depend on is run once and told of every value.
                for others in product(*(axis.values for axis in unused)):
                    constant = zip([*fixed, *unused], [*chosen, *others], strict=True)
                    labels = {axis.name: value for axis, value in constant}
                    parts.append(_labelled(part, name, labels, used, values))
    whole = _joined(parts, [axis.name for axis in axes])
    if folder is not None:
        results.save(whole, Path(folder) / "results.nc")
    return whole


def _axis(config: Config, name: str, values: Sequence[Any]) -> _Axis:
    section, field = lookup("setting", name, places(config))
    if not len(values) or len(set(values)) < len(values):
        raise ValueError(f"{name}={list(values)!r}: expected one or more different values.")
    if field == "seeds" or section == "data":
        raise ValueError(f"{name}: expected a setting of methods, model or training.")
    return _Axis(name, section, field, tuple(values))


def _with(config: Config, axes: Sequence[_Axis], values: Sequence[Any]) -> Config:
    for axis, value in zip(axes, values, strict=True):
        # Not by the constructor, whose types are of what people write and not of what JAX traces.
        part, config = copy(getattr(config, axis.section)), copy(config)
        object.__setattr__(part, axis.field, value)
        object.__setattr__(config, axis.section, part)
    return config


def _split(
    config: Config, name: str, data: FederatedData, axes: Sequence[_Axis]
) -> tuple[list[_Axis], list[_Axis]]:
    """The settings that a method's numbers depend on, and the others."""
    points = tuple(jnp.asarray(axis.values[0]) for axis in axes)

    def once(points, key, data):
        round = methods.method_round(_with(config, axes, points), name, data.num_classes)
        return round.step(round.init(key, data), data)

    jaxpr = jax.make_jaxpr(once)(points, jax.random.key(0), data.partition(0)).jaxpr
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    used: list[_Axis] = []
    unused: list[_Axis] = []
    for axis, variable in zip(axes, jaxpr.invars, strict=False):
        (used if id(variable) in read else unused).append(axis)
    return used, unused


def _batches(
    axes: Sequence[_Axis], seeds: tuple[int, ...], size: int | None
) -> Iterator[tuple[list[tuple], tuple[int, ...]]]:
    """Points and their seeds, some at a time."""
    runs = list(product(product(*(axis.values for axis in axes)), seeds))
    size = size or len(runs)
    for start in range(0, len(runs), size):
        points, own = zip(*runs[start : start + size], strict=True)
        yield list(points), own


def _run(
    config: Config,
    name: str,
    data: FederatedData,
    axes: Sequence[_Axis],
    values: list[tuple],
    seeds: tuple[int, ...],
) -> xr.Dataset:
    def make(point):
        return methods.method_round(_with(config, axes, point), name, data.num_classes)

    for point in set(values):  # What is out of range is noticed before anything is compiled.
        make(point)
    points = tuple(jnp.asarray(column) for column in zip(*values, strict=True))
    if data.num_partitions is not None:
        places = np.array([config.training.seeds.index(seed) for seed in seeds])
        data = with_ownership(data, jax.tree.map(lambda leaf: leaf[places], ownership(data)))
    return fit_points(
        make,
        points,
        data,
        rounds=config.training.rounds or 0,
        seeds=seeds,
        eval_every=config.training.eval_every,
        train_loss=False,
    )


def _labelled(
    part: xr.Dataset,
    name: str,
    fixed: dict[str, Any],
    axes: Sequence[_Axis],
    values: list[tuple],
) -> xr.Dataset:
    """A batch whose runs know the method, the settings and the seed."""
    runs = part.sizes["seed"]
    columns: dict[str, Any] = {"algorithm": [name] * runs}
    columns |= {label: [value] * runs for label, value in fixed.items()}
    columns |= {
        axis.name: list(column)
        for axis, column in zip(axes, zip(*values, strict=True), strict=True)
    }
    columns["seed"] = part["seed"].values
    return (
        part.drop_vars("seed")
        .rename(seed="run")
        .assign_coords({label: ("run", column) for label, column in columns.items()})
    )


def _joined(parts: list[xr.Dataset], names: list[str]) -> xr.Dataset:
    """All runs, with a dimension for the method, each setting and the seed."""
    import xarray as xr

    own = [part[[name for name in part if "run" in part[name].dims]] for part in parts]
    runs = xr.concat(own, "run", join="outer", data_vars="all", combine_attrs="override")
    whole = runs.set_index(run=["algorithm", *names, "seed"]).unstack("run")
    first = parts[0]
    shared = {name: first[name].variable for name in first if "run" not in first[name].dims}
    return whole.assign(shared).transpose("algorithm", *names, "seed", ...)


class _Store:
    """Finished batches in a folder."""

    def __init__(self, folder: Path, config: Config, axes: list[_Axis]):
        described = json.dumps(
            {"config": asdict(config), "varied": {axis.name: axis.values for axis in axes}},
            indent=2,
            default=str,
        )
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "sweep.json"
        if file.exists() and file.read_text() != described:
            raise ValueError(f"folder={str(folder)!r}: expected this sweep, found another one.")
        file.write_text(described)
        self._folder = folder

    def get(self, key: str) -> xr.Dataset | None:
        file = self._folder / f"{key}.nc"
        return results.open(file) if file.exists() else None

    def put(self, key: str, part: xr.Dataset) -> None:
        results.save(part, self._folder / f"{key}.nc")
