"""Compiles programs for a machine, and estimates how long they take there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.reading import Cost, Program, read

__all__ = ["Compiled", "compile_ahead", "of_kernel", "roofline"]

# What XLA's own model of performance puts down for starting a kernel.
_LAUNCH = 1e-6


class Compiled(NamedTuple):
    """A program that was compiled for a machine.

    Attributes:
        program: What its instructions cost.
        seconds: How long it takes, by the compiler's estimate.
        arguments: Bytes of its arguments on a device.
        temporaries: Bytes on a device that it takes besides, results among them.
        compile_seconds: Seconds of compiling, on the machine at hand.
        results: Shapes of what it gives.
    """

    program: Program
    seconds: float
    arguments: int
    temporaries: int
    compile_seconds: float
    results: Any


def compile_ahead(
    machine: Machine,
    function: Any,
    *arguments: Any,
    trip_count_fn: Callable[[str], float | None] = lambda origin: None,
) -> Compiled:
    """Compiles a jitted function.

    Args:
        machine: From ``machines.find``.
        function: From ``jax.jit``.
        *arguments: Its arguments, as shapes on the devices of the machine.
        trip_count_fn: As for ``reading.read``.
    """
    started = time.perf_counter()
    with tracing_for(machine.platform):
        traced = function.trace(*arguments)
    platform = "cuda" if machine.platform == "gpu" else machine.platform
    lowered = traced.lower(lowering_platforms=(platform,))
    made = lowered.compile()
    took = time.perf_counter() - started
    memory, program = made.memory_analysis(), read(made.as_text(), trip_count_fn)
    passed_on = memory.alias_size_in_bytes
    return Compiled(
        program,
        _seconds(machine, program),
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes + memory.output_size_in_bytes - passed_on,
        took,
        lowered.out_info,
    )


def of_kernel(machine: Machine, cost: Cost) -> float:
    """How long an instruction takes by estimates alone, in seconds.

    A TPU's compiler estimates cycles. For a GPU, a kernel takes as long as its bytes or its
    products at the device's peak, and no less than it takes to start it. Neither knows of other
    devices: a sum over all of them sends twice its bytes around a ring, and starts as a kernel.

    Args:
        machine: Where it would run.
        cost: Of one run of it.
    """
    if cost.collectives:
        return max(2 * cost.collective_bytes / machine.link, _LAUNCH)
    if machine.clock_hz is not None:
        return cost.cycles / machine.clock_hz
    return max(roofline(machine, cost), _LAUNCH)


def roofline(machine: Machine, cost: Cost) -> float:
    """Seconds in which a device can move these bytes, or compute these products, at its peaks.

    Args:
        machine: Where it would run.
        cost: Of anything.
    """
    products = (
        cost.flops - cost.fp32_flops
    ) / machine.peak_flops + cost.fp32_flops / machine.peak_fp32_flops
    return max(cost.bytes / machine.bandwidth, products)


def _seconds(machine: Machine, program: Program) -> float:
    return sum(each.runs * of_kernel(machine, each.cost) for each in program.operations)
