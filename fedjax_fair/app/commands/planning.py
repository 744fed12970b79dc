"""Command that estimates memory and costs of a run or a sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from typing_extensions import Doc

from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.dry_run import as_json, format_plan, plans
from fedjax_fair.app.run_groups import groups_of, plan_sweep
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.config import Config, Preset
from fedjax_fair.app.settings.fields import default_hint
from fedjax_fair.app.settings.request import request
from fedjax_fair.planning import machines

__all__ = ["Plan", "run_plan"]


@dataclass(frozen=True)
class Plan(Config):
    """Estimates memory and costs of a run or a sweep: `plan mnist --machine h100`."""

    config: Annotated[str | None, default_hint()] = None
    """File of settings, TOML or config.json of a run. Command-line options take precedence."""

    machine: Annotated[
        str,
        Doc(
            "Target, which need not be available: h100, a100 or l4, by a program for the CPU; "
            "v5e:1x1, v5e:2x2, v5p:2x2x1 or h200, by its compiler, which must be installed; or "
            "local, where three rounds of each method are run and timed."
        ),
    ] = "local"

    json: bool = False
    """Print bytes, seconds and FLOPs as JSON."""


def run_plan(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    """Runs ``plan [PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]``."""
    wanted = request(Plan, arguments, presets)
    options, config = wanted.options, wanted.config
    machine = memory = None
    if options.machine == "local":
        mesh = mesh_of(config.devices)
    else:
        machine = machines.find(options.machine, plugins.machines(machines.kinds()))
        machines.prepare(machine)
        mesh = mesh_of(config.devices, machines.devices_of(machine))
        memory, config = machine.memory, replace(config, devices=1)
    is_sweep = bool(wanted.varied or wanted.seeds)
    if is_sweep:
        _, _, groups = plan_sweep(config, wanted.varied, seeds=wanted.seeds, memory=memory)
    else:
        groups = groups_of(config, memory=memory)
    estimates = dict(plans(groups, machine, mesh, train_loss=not is_sweep))
    if options.json:
        print(json.dumps(as_json(machine, estimates), indent=2))
    else:
        print(format_plan(machine, estimates))
