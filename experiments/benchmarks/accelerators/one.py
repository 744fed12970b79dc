"""Compiles one program for a machine that is not there, and prints what its compiler says of it.

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

from experiments.benchmarks.accelerators.workloads import ROUNDS, WORKLOADS, federation, program
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.mesh import client_mesh
from fedjax_fair.planning import machines
from fedjax_fair.planning.compiled import compiled, of_kernel
from fedjax_fair.planning.machines import Machine, devices_of
from fedjax_fair.planning.places import federation_on, runs_on
from fedjax_fair.planning.reading import Loop, Operation, Program

# What is computed of clients one by one, and divided among devices; the rest all compute alike.
_OF_CLIENTS = re.compile(r"clients_\d+_by_\d+|client_chunks|local_steps|step_blocks")


def answer(machine: Machine, name: str, form: str) -> dict[str, Any]:
    """What a compiler says of a workload in a form."""
    workload, mesh = WORKLOADS[name], None
    if machine.num_devices > 1:
        mesh = client_mesh(available=devices_of(machine))
    with tracing_for(machine.platform):
        data = federation_on(machine, mesh, federation(workload))
        function, values = program(workload, form, mesh)
    made = compiled(machine, jax.jit(function), runs_on(machine, mesh, values), data)
    costs = made.program

    def largest(trips: int) -> Loop | None:
        loops = [loop for loop in costs.loops if loop.trips == trips]
        return max(loops, key=lambda loop: loop.runs * trips * loop.cost.kernels, default=None)

    rounds, steps = largest(ROUNDS), largest(workload.steps)
    found = {"whole": costs.cost, "round": rounds and rounds.cost, "step": steps and steps.cost}
    return {
        "costs": {part: cost and cost._asdict() for part, cost in found.items()},
        "seconds": made.seconds,
        "steps_a_round": steps and rounds and steps.trips * steps.runs // rounds.trips,
        "waiting": _seconds(machine, costs, lambda each: each.cost.collectives > 0),
        "alike": _seconds(machine, costs, lambda each: not _OF_CLIENTS.search(each.origin)),
        "unknown_loops": sum(not loop.known for loop in costs.loops),
        "arguments": made.arguments,
        "temporaries": made.temporaries,
        "compiled_in": made.compiled_in,
        "dearest": _dearest(machine, costs),
    }


def _seconds(machine: Machine, costs: Program, which: Callable[[Operation], bool]) -> float:
    """Seconds of some operations of a chunk."""
    chosen = [each for each in costs.operations if which(each)]
    return sum(each.runs * of_kernel(machine, each.cost) for each in chosen)


def _dearest(machine: Machine, costs: Program) -> list[tuple[float, float, str, str]]:
    """Operations that take longest: seconds of one, how often it runs, what it is, its origin."""
    rows = [
        (of_kernel(machine, each.cost), each.runs, each.text[:100], each.origin[-80:])
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
