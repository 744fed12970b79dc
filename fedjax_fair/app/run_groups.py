"""Groups of runs of a configuration that can be compiled together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from jax.sharding import Mesh

from fedjax_fair.app.build import build, round_maker
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.names import NETWORK, SETTINGS, SettingKey, change, vary
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.utils import checks

__all__ = ["Axis", "Group", "groups_of", "plan_sweep", "runs_of"]

_VALIDATION = 0.1


class Axis(NamedTuple):
    """A setting that is varied."""

    name: str
    key: SettingKey
    values: tuple[Any, ...]


class Group(NamedTuple):
    """Runs of one method that can be compiled together.

    Attributes:
        name: The method.
        config: Configuration without the settings in ``axes``.
        data: The federated dataset.
        mesh: Devices; None for a single one.
        labels: Varied settings that are equal for all runs.
        axes: Varied settings on the batch axis.
        unused: Varied settings that the method does not use.
        runs: Values of ``axes`` and seed of each run.
        rounds: Rounds by the values of ``axes``.
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


def plan_sweep(
    base: Config,
    varied: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] | None = None,
    memory: float | None = None,
) -> tuple[Config, list[Axis], list[Group]]:
    """Resolves a configuration and returns it with the varied settings and the groups of runs.

    Arguments and errors are those of ``sweep``; ``memory`` is that of ``build``.
    """
    if seeds is not None:
        checks.seeds("seeds", seeds)
        base = change(base, "training", "seeds", tuple(seeds))
    if base.data.validation_fraction is None:
        base = change(base, "data", "validation_fraction", _VALIDATION)
    if base.training.on_nonfinite is None:
        base = change(base, "training", "on_nonfinite", "skip_round")
    config = presets.resolve(base)
    if config.distributed:
        raise ValueError(
            "distributed=True: expected False for a sweep; use run for each configuration."
        )
    for name, expected in (("unknown_clients", "error"), ("unseen_fraction", 0)):
        value = getattr(config.data, name)
        if value not in (None, expected):
            raise ValueError(
                f"data.{name}={value!r}: expected {expected!r} in a sweep, which keeps no trained "
                "models; run evaluates unseen clients."
            )
    axes = [_axis(name, values) for name, values in varied.items()]
    if len({axis.key for axis in axes}) < len(axes):
        raise ValueError(f"{', '.join(varied)}: expected each setting once; remove the copies.")
    return config, axes, groups_of(config, axes, memory)


def groups_of(
    config: Config, axes: Sequence[Axis] = (), memory: float | None = None
) -> list[Group]:
    """Returns the groups of runs of a resolved configuration; arguments as `plan_sweep`."""
    traced = [axis for axis in axes if _is_traced(config, axis)]
    fixed = [axis for axis in axes if axis not in traced]
    groups, data = [], None  # Loaded once, because settings of the data cannot be varied.
    for fixed_values in product(*(axis.values for axis in fixed)):
        fixed_config = _set(config, fixed, fixed_values)
        labels = {axis.name: value for axis, value in zip(fixed, fixed_values, strict=True)}
        ready = build(fixed_config, data, memory)
        data, mesh = ready.data, ready.mesh
        make_round = round_maker(data, fixed_config.data)
        for name in config.methods:
            settings = method_settings(fixed_config, name)
            used = [axis for axis in traced if axis.key in settings]
            unused = [axis for axis in traced if axis not in used]
            configurations = list(product(*(axis.values for axis in used)))
            # Making all rounds first checks all values before anything runs.
            rounds = {
                values: make_round(_set(fixed_config, used, values), name)
                for values in configurations
            }
            runs = list(product(configurations, fixed_config.training.seeds))
            groups.append(Group(name, fixed_config, data, mesh, labels, used, unused, runs, rounds))
    return groups


def _axis(name: str, values: Sequence[Any]) -> Axis:
    key = lookup("setting", name, SETTINGS)
    if not len(values) or len(set(values)) < len(values):
        raise ValueError(f"{name}={list(values)!r}: expected one or more different values.")
    if key[1] in ("seeds", "delta") or key[0] == "data":
        raise ValueError(f"{name}: expected a setting of methods, model or training.")
    return Axis(name, key, tuple(values))


def _is_traced(config: Config, axis: Axis) -> bool:
    """Returns whether a setting only enters arithmetic in all methods that use it, one or more."""
    if axis.key in NETWORK or axis.key[0] in ("training", "faults", "communication"):
        return False
    by_method = [method_settings(config, name) for name in config.methods]
    settings = [settings[axis.key] for settings in by_method if axis.key in settings]
    if not settings:
        methods = ", ".join(config.methods)
        raise ValueError(f"{axis.name}: expected a setting that one of {methods} uses.")
    return all(setting.traced for setting in settings)


def _set(config: Config, axes: Sequence[Axis], values: Sequence[Any]) -> Config:
    pairs = zip(axes, values, strict=True)
    return vary(config, {axis.key: value for axis, value in pairs})


def runs_of(group: Group, numbers: Sequence[int]) -> dict[str, Any]:
    """Returns arguments of ``fit`` for runs of a group, by their places in ``runs``."""
    configurations, seeds = zip(*(group.runs[number] for number in numbers), strict=True)
    data, training = group.data, group.config.training
    if data.num_partitions is not None:
        data = data.partitions([training.seeds.index(seed) for seed in seeds])
    methods = [group.rounds[values] for values in configurations]
    return {"method": methods, "seeds": seeds, "data": data}
