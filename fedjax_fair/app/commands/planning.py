"""The command that says what a run or a sweep would take on a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.console import Console

from fedjax_fair.app.build import build
from fedjax_fair.app.commands.common import fields_of, plain
from fedjax_fair.app.commands.request import request
from fedjax_fair.app.config import Config
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.options import parse
from fedjax_fair.app.plan import as_json, batches_of_run, batches_of_sweep, format_plan, plans
from fedjax_fair.app.presets import Preset, resolve
from fedjax_fair.app.sweep import plan_sweep
from fedjax_fair.app.variants import drop_unused_settings
from fedjax_fair.planning import machines

__all__ = ["Plan", "plan_settings"]


@dataclass(frozen=True)
class Plan(Config):
    """Says what a run or a sweep would take on a machine: `plan mnist --machine v5e:1x1`."""

    config: str | None = None
    """File of settings, TOML or the config.json of a run; what is typed besides counts more."""

    machine: str = "local"
    """A machine, at hand or not: v5e:1x1, v5e:2x2, v5p:2x2x1, h200, or local, where three rounds of
    each method are run."""

    json: bool = False
    """Print bytes and seconds for scripts."""


def plan_settings(arguments: list[str], presets: Mapping[str, Preset]) -> None:
    """Runs `plan [PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]`."""
    wanted = request(arguments, presets)
    name = f"plan {wanted.preset}"
    typed = parse(Plan, wanted.options, name, Plan(**fields_of(Config, wanted.start)))
    chosen = plain(Config, typed)
    machine = memory = None
    if typed.machine == "local":
        mesh = mesh_of(chosen.devices)
    else:
        machine = machines.find(typed.machine)
        machines.prepare(machine)
        mesh = mesh_of(chosen.devices, machines.devices_of(machine))
        memory, chosen = machine.memory, replace(chosen, devices=1)
    base = drop_unused_settings(resolve(chosen), base=wanted.base)
    varied, seeds = wanted.varied()
    if varied or seeds:
        _, _, groups = plan_sweep(base, varied, seeds=seeds, memory=memory)
        batches = batches_of_sweep(groups)
    else:
        batches = batches_of_run(build(base, memory=memory))
    found = dict(plans(batches, machine, mesh))
    if typed.json:
        print(json.dumps(as_json(machine, found), indent=2))
        return
    table, notes = format_plan(machine, found)
    Console().print(table)
    print(notes)
