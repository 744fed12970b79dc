"""Ahead-of-time compilation for a machine, and estimates of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.planning.costs import Cost, Program, read_program
from fedjax_fair.planning.machines import Machine
from fedjax_fair.training.memory import transient_bytes

__all__ = ["Compiled", "compile_ahead", "kernel_seconds", "roofline_seconds"]

_LAUNCH_S = 1e-6  # XLA's performance model assumes it for starting a kernel.


class Compiled(NamedTuple):
    """A function that was compiled for a machine.

    Attributes:
        program: The costs of its instructions.
        seconds: Estimated run time.
        arguments: Bytes of its arguments on a device.
        temporaries: Additional bytes on a device, including outputs.
        compile_seconds: Seconds of compilation on this machine.
        results: Shapes of its outputs.
    """

    program: Program
    seconds: float
    arguments: int
    temporaries: int
    compile_seconds: float
    results: Any


def compile_ahead(
    machine: Machine,
    jitted: Any,
    *arguments: Any,
    trip_count_fn: Callable[[str], float | None] = lambda origin: None,
) -> Compiled:
    """Compiles a jitted function for arguments that are shapes on the devices of a machine.

    ``trip_count_fn`` is that of ``read_program``.
    """
    started = time.perf_counter()
    with tracing_for(machine.platform):
        traced = jitted.trace(*arguments)
    platform = "cuda" if machine.platform == "gpu" else machine.platform
    lowered = traced.lower(lowering_platforms=(platform,))
    executable = lowered.compile()
    compile_seconds = time.perf_counter() - started
    program = read_program(executable.as_text(), trip_count_fn)
    return Compiled(
        program,
        sum(each.runs * kernel_seconds(machine, each.cost) for each in program.operations),
        executable.memory_analysis().argument_size_in_bytes,
        transient_bytes(executable),
        compile_seconds,
        lowered.out_info,
    )


def kernel_seconds(machine: Machine, cost: Cost) -> float:
    """Estimates the seconds of one instruction.

    A TPU's compiler estimates cycles. A GPU kernel takes the time of its bytes or its products at
    the device's peak, and at least the time to start it. A collective sends twice its bytes around
    a ring and starts as a kernel; neither compiler counts waiting for other devices.
    """
    if cost.collectives:
        return max(2 * cost.collective_bytes / machine.link, _LAUNCH_S)
    if machine.clock_hz is not None:
        return cost.cycles / machine.clock_hz
    return max(roofline_seconds(machine, cost), _LAUNCH_S)


def roofline_seconds(machine: Machine, cost: Cost) -> float:
    """Returns the seconds of these bytes, or of these products, at the device's peaks."""
    products = (cost.flops - cost.fp32_flops) / machine.peak_flops
    products += cost.fp32_flops / machine.peak_fp32_flops
    return max(cost.bytes / machine.bandwidth, products)
