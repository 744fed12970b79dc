"""Ahead-of-time compilation for a machine, with estimates of seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PyTree

from fedjax_fair.data.device_layout import to_device_layout
from fedjax_fair.data.federated import FederatedData, map_arrays
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.mesh import shapes_on, shard_data, split_runs
from fedjax_fair.planning.costs import Cost, Program, read_program
from fedjax_fair.planning.machines import Machine, devices_of
from fedjax_fair.training.memory_estimate import transient_bytes

__all__ = [
    "Compiled", "compile_ahead", "kernel_seconds", "place", "place_data", "place_runs",
    "roofline_seconds",
]  # fmt: skip

_LOWERED = {"gpu": "cuda"}
_PRODUCT_OF_16_BITS = re.compile(r"stablehlo\.(dot_general|convolution)\b.*xb?f16>")
_LAUNCH_S = 1e-6  # XLA's performance model assumes it for starting a kernel.


class Compiled(NamedTuple):
    """A compiled function: estimated seconds, and bytes of one device (outputs are temporaries)."""

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
    platform = "cpu" if machine.module is None else _LOWERED.get(machine.platform, machine.platform)
    lowered = traced.lower(lowering_platforms=(platform,))
    executable = lowered.compile()
    compile_seconds = time.perf_counter() - started
    program = read_program(executable.as_text(), trip_count_fn)
    is_16bit = _PRODUCT_OF_16_BITS.search(lowered.as_text()) is not None
    if is_16bit:
        machine = machine._replace(peak_flops=machine.peak_16bit_flops)
    if machine.module is None:
        program = _products_of(program, machine.cache, is_16bit)
    return Compiled(
        program,
        sum(each.runs * kernel_seconds(machine, each.cost) for each in program.operations),
        executable.memory_analysis().argument_size_in_bytes,
        transient_bytes(executable),
        compile_seconds,
        lowered.out_info,
    )


def _products_of(program: Program, cache: float, is_16bit: bool) -> Program:
    """Returns the part of a CPU's program that has the same cost on a device, or a smaller one.

    Other compilers fuse other operations than matrix products differently. Inputs and results of a
    product may stay in the cache. A CPU converts 16-bit ones to float32.
    """
    share = 0.5 if is_16bit else 1.0
    operations = [
        each._replace(cost=each.cost._replace(bytes=max(0.0, share * each.cost.bytes - cache)))
        for each in program.operations
        if each.cost.flops
    ]
    cost = reduce(Cost.plus, (each.cost.times(each.runs) for each in operations), Cost())
    return program._replace(cost=cost, operations=operations)


def kernel_seconds(machine: Machine, cost: Cost) -> float:
    """Estimates the seconds of one instruction.

    A TPU's compiler estimates cycles. A GPU kernel takes the time of its bytes or products at the
    device's peak, and at least the time to start it. A collective sends twice its bytes around a
    ring; waiting for other devices is not counted.
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


def place(machine: Machine, tree: PyTree) -> PyTree:
    """Returns the shapes of arrays on the first device of a machine."""
    return shapes_on(SingleDeviceSharding(devices_of(machine)[0]), tree)


def place_runs(machine: Machine, mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Returns the shapes of arrays ``[runs, ...]``, split over the groups of a mesh if any."""
    return place(machine, tree) if mesh is None else split_runs(tree, mesh)


def place_data(machine: Machine, mesh: Mesh | None, data: FederatedData) -> FederatedData:
    """Returns the shapes of a federated dataset; call it while tracing for the machine."""
    if mesh is None:
        return map_arrays(data, lambda data: place(machine, to_device_layout(data)))
    return shard_data(data, mesh)
