"""Compiles one function for a machine, and prints the estimates of its compiler.

Run by ``experiments.benchmarks.accelerators`` in an environment that has the machine's compiler:
``python -m experiments.benchmarks.accelerators.one MACHINE WORKLOAD FORM``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import jax

from experiments.benchmarks.accelerators.choices import CHOICES
from experiments.benchmarks.accelerators.costs import Loop, Operation, Program
from experiments.benchmarks.accelerators.estimates import (
    Estimate,
    Rates,
    estimate,
    kernel_seconds,
    rates_of,
)
from experiments.benchmarks.accelerators.workloads import ROUNDS, WORKLOADS, federation, program
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.mesh import client_mesh
from fedjax_fair.planning import machines
from fedjax_fair.planning.machines import Machine, devices_of
from fedjax_fair.planning.plan import AheadOfTime, compile_ahead, place, place_data, place_runs
from fedjax_fair.training.memory_estimate import transient_bytes

# Operations of single clients, which are divided among devices. All devices repeat the others.
_OF_CLIENTS = re.compile(r"clients_\d+_by_\d+|client_chunks|local_steps|step_blocks")


def answer(machine: Machine, name: str, form: str) -> dict[str, Any]:
    """Returns the estimates of a workload in a form, or of a part of selection."""
    if name in CHOICES:
        function, shapes = CHOICES[name]
        made = compile_ahead(machine, jax.jit(function), *place(machine, shapes))
        found = estimate(rates_of(machine), made)
        costs: dict[str, Any] = {"whole": found.program.cost, "round": None, "step": None}
        return _estimates(machine, made, found, costs, None)
    workload, mesh = WORKLOADS[name], None
    if machine.num_devices > 1:
        # Points of a sweep need nothing of each other.
        runs = machine.num_devices if workload.runs else None
        mesh = client_mesh(runs=runs, available=devices_of(machine))
    with tracing_for(machine.platform):
        data = place_data(machine, mesh, federation(workload))
        function, values = program(workload, form, mesh)
    made = compile_ahead(machine, jax.jit(function), place_runs(machine, mesh, values), data)
    found = estimate(rates_of(machine), made)

    def largest(trip_count: int) -> Loop | None:
        loops = [loop for loop in found.program.loops if loop.trip_count == trip_count]
        return max(loops, key=lambda loop: loop.runs * trip_count * loop.cost.kernels, default=None)

    rounds, steps = largest(ROUNDS), largest(workload.steps)
    costs = {"round": rounds and rounds.cost, "step": steps and steps.cost}
    steps_a_round = steps and rounds and steps.trip_count * steps.runs // rounds.trip_count
    return _estimates(machine, made, found, {"whole": found.program.cost, **costs}, steps_a_round)


def _estimates(
    machine: Machine,
    made: AheadOfTime,
    found: Estimate,
    costs: dict[str, Any],
    steps_a_round: float | None,
) -> dict[str, Any]:
    program, rates = found.program, rates_of(machine)
    memory: Any = made.executable.memory_analysis()
    return {
        "costs": {part: cost and cost._asdict() for part, cost in costs.items()},
        "seconds": found.seconds,
        "steps_a_round": steps_a_round,
        "waiting": _seconds(rates, program, lambda each: each.cost.collectives > 0),
        "not_divided": _seconds(rates, program, lambda each: not _OF_CLIENTS.search(each.origin)),
        "unknown_loops": sum(not loop.known for loop in program.loops),
        "arguments": memory.argument_size_in_bytes,
        "temporaries": transient_bytes(made.executable),
        "compile_seconds": made.compile_seconds,
        "dearest": _dearest(rates, program),
    }


def _seconds(rates: Rates, costs: Program, which: Callable[[Operation], bool]) -> float:
    """Seconds of some operations of a chunk."""
    chosen = [each for each in costs.operations if which(each)]
    return sum(each.runs * kernel_seconds(rates, each.cost) for each in chosen)


def _dearest(rates: Rates, costs: Program) -> list[tuple[float, float, str, str]]:
    """Operations that take longest: seconds of one, how often it runs, what it is, its origin."""
    rows = [
        (kernel_seconds(rates, each.cost), each.runs, each.text[:100], each.origin[-80:])
        for each in costs.operations
    ]
    return sorted(rows, key=lambda row: -row[0] * row[1])[:10]


def main() -> None:
    target, name, form = sys.argv[1:]
    machine = machines.find(target)
    machines.prepare(machine)
    print(json.dumps(answer(machine, name, form)))


if __name__ == "__main__":
    main()
