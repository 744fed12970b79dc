"""Command that estimates memory and costs of a run or a sweep."""

from __future__ import annotations

import json
from dataclasses import replace

from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.dry_run import as_json, format_plan, plans
from fedjax_fair.app.run_groups import groups_of, plan_sweep
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.request import Request
from fedjax_fair.planning import machines

__all__ = ["run_plan"]


def run_plan(wanted: Request) -> None:
    """Runs ``plan [PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]``."""
    options, config = wanted.options, wanted.config
    machine = memory = None
    if options.machine.casefold() == "local":
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
