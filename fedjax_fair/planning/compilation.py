"""Ahead-of-time compilation for a machine, with estimates of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PyTree

from fedjax_fair.data.device_layout import to_device_layout
from fedjax_fair.data.federated import FederatedData, map_arrays
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.mesh import shapes_on, shard_data, split_runs
from fedjax_fair.planning.costs import Cost, Program, read_program
from fedjax_fair.planning.machines import Machine, devices_of
from fedjax_fair.training.memory import transient_bytes

__all__ = [
    "Compiled", "compile_ahead", "kernel_seconds", "place", "place_data", "place_runs",
    "roofline_seconds",
]  # fmt: skip

_LAUNCH_S = 1e-6  # XLA's performance model assumes it for starting a kernel.


class Compiled(NamedTuple):
    """A function that was compiled for a machine.

    ``seconds`` is the estimated run time, ``temporaries`` include outputs, and sizes are bytes of
    one device.
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
