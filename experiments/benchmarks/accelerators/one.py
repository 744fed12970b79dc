"""Compiles one program for a machine that is not there, and prints what its compiler says of it.

Run by ``experiments.benchmarks.accelerators`` in an environment that has the machine's compiler:
``python -m experiments.benchmarks.accelerators.one MACHINE WORKLOAD FORM``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax

from experiments.benchmarks.accelerators.workloads import ROUNDS, WORKLOADS, program
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.planning import machines
from fedjax_fair.planning.compiled import compiled, of_kernel
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.places import on
from fedjax_fair.planning.reading import Loop, Program


def answer(machine: Machine, name: str, form: str) -> dict[str, Any]:
    """What a compiler says of a workload in a form."""
    with tracing_for(machine.platform):
        function, arguments = program(WORKLOADS[name], form)
    made = compiled(machine, jax.jit(function), *on(machine, arguments))
    costs = made.program

    def largest(trips: int) -> Loop | None:
        loops = [loop for loop in costs.loops if loop.trips == trips]
        return max(loops, key=lambda loop: loop.runs * trips * loop.cost.kernels, default=None)

    rounds, steps = largest(ROUNDS), largest(WORKLOADS[name].steps)
    found = {"whole": costs.cost, "round": rounds and rounds.cost, "step": steps and steps.cost}
    return {
        "costs": {part: cost and cost._asdict() for part, cost in found.items()},
        "seconds": made.seconds,
        "steps_a_round": steps and rounds and steps.trips * steps.runs // rounds.trips,
        "unknown_loops": sum(not loop.known for loop in costs.loops),
        "arguments": made.arguments,
        "temporaries": made.temporaries,
        "compiled_in": made.compiled_in,
        "dearest": _dearest(machine, costs),
    }


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
