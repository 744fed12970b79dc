"""Compiles one program for a device that is not there, and prints what the compiler says of it.

Run by ``experiments.benchmarks.accelerators`` in an environment that has the device's compiler:
``python -m experiments.benchmarks.accelerators.compiled WORKLOAD FORM``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from experiments.benchmarks.accelerators.reading import Loop, Program, read
from experiments.benchmarks.accelerators.workloads import ROUNDS, WORKLOADS, program
from fedjax_fair.numerics.target import tracing_for

# Bounds of a host are needed for a single chip alone.
_CHIP = {
    "topology_name": "v5e:1x1",
    "platform": "tpu",
    "chips_per_host_bounds": (1, 1, 1),
}


def compiled(name: str, form: str) -> Any:
    """Compiles a workload for one chip."""
    device = topologies.get_topology_desc(**_CHIP).devices[0]
    with tracing_for("tpu"):
        function, args = program(WORKLOADS[name], form)
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=SingleDeviceSharding(device)
            ),
            args,
        )
        traced = jax.jit(function).trace(*shapes)
    return traced.lower(lowering_platforms=("tpu",)).compile()


def summary(name: str, costs: Program) -> dict[str, Any]:
    """Cycles of a round, of a local step, and the operations that cost most."""

    def largest(trips: int) -> Loop | None:
        loops = [loop for loop in costs.loops if loop.trips == trips]
        return max(loops, key=lambda loop: loop.runs * trips * loop.cycles, default=None)

    rounds, steps = largest(ROUNDS), largest(WORKLOADS[name].steps)
    dearest = sorted(costs.operations, key=lambda each: -each.cycles * each.runs)
    return {
        "cycles": costs.cycles,
        "round": rounds and rounds.cycles,
        "entry": rounds and costs.cycles - ROUNDS * rounds.cycles,
        "step": steps and steps.cycles,
        "steps_a_round": steps and rounds and steps.trips * steps.runs // rounds.trips,
        "unknown_loops": sum(not loop.known for loop in costs.loops),
        "dearest": [
            (each.cycles, each.runs, each.text[:100], each.origin[-80:]) for each in dearest[:10]
        ],
    }


def main() -> None:
    name, form = sys.argv[1:]
    started = time.perf_counter()
    made = compiled(name, form)
    memory, costs = made.memory_analysis(), made.cost_analysis()
    answer = summary(name, read(made.as_text())) | {
        "seconds": time.perf_counter() - started,
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "operations": costs.get("flops"),
        "bytes": costs.get("bytes accessed"),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
