"""Estimates of the seconds of compiled functions on accelerators, from the texts of programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from experiments.benchmarks.accelerators.costs import Cost, Program, read_program
from experiments.benchmarks.accelerators.trip_counts import TripCounts
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.plan import AheadOfTime, Plan
from fedjax_fair.training.train_options import evaluated_rounds

__all__ = [
    "RATES",
    "Estimate",
    "Rates",
    "estimate",
    "kernel_seconds",
    "rates_of",
    "roofline_seconds",
    "seconds_of_runs",
]

_PRODUCT_OF_16_BITS = re.compile(r"stablehlo\.(dot_general|convolution)\b.*xb?f16>")
_LAUNCH_S = 1e-6  # XLA's performance model assumes it for starting a kernel.


class Rates(NamedTuple):
    """Peak rates of one device, a second.

    Attributes:
        bandwidth: Bytes from and to memory.
        peak_16bit_flops: FLOP of products of bfloat16 and float16.
        peak_flops: FLOP of products in JAX's default precision for float32.
        peak_fp32_flops: The same in the precision of float32.
        link: Bytes to a neighbor.
        clock_hz: Clock rate; None if no compiler estimates cycles.
    """

    bandwidth: float
    peak_16bit_flops: float
    peak_flops: float
    peak_fp32_flops: float
    link: float
    clock_hz: float | None = None


# Data sheets. TPUs: cloud.google.com/tpu/docs/v5e and v5p for bandwidth and FLOP/s in bfloat16,
# which float32 products use by default; six such products make one of full precision. Clocks and
# links, in one direction: jax-ml.github.io/scaling-book/tpus. nvidia.com/en-us/data-center/h200,
# without sparsity: FLOP/s in BF16, in TF32, which float32 products use by default, and in FP32 for
# full precision; half of the bandwidth of NVLink, which counts both directions.
RATES = {
    "h200": Rates(4.8e12, 989e12, 494e12, 67e12, 450e9),
    "v5e": Rates(819e9, 197e12, 197e12, 197e12 / 6, 45e9, clock_hz=1.5e9),
    "v5p": Rates(2765e9, 459e12, 459e12, 459e12 / 6, 90e9, clock_hz=1.75e9),
}
"""Rates by kind of machine."""


class Estimate(NamedTuple):
    """The program of a compiled function, and the seconds of one call."""

    program: Program
    seconds: float


def rates_of(machine: Machine) -> Rates:
    """Returns the rates of a machine of this package."""
    return RATES[machine.name.partition(":")[0]]


def estimate(
    rates: Rates,
    made: AheadOfTime,
    trip_count_fn: Callable[[str], float | None] = lambda origin: None,
) -> Estimate:
    """Estimates the seconds of a compiled function; ``trip_count_fn`` as in ``read_program``."""
    program = read_program(made.executable.as_text() or "", trip_count_fn)
    if _PRODUCT_OF_16_BITS.search(made.lowered.as_text()):
        rates = rates._replace(peak_flops=rates.peak_16bit_flops)
    seconds = sum(each.runs * kernel_seconds(rates, each.cost) for each in program.operations)
    return Estimate(program, seconds)


def kernel_seconds(rates: Rates, cost: Cost) -> float:
    """Estimates the seconds of one instruction.

    A TPU's compiler estimates cycles. A GPU kernel takes the time of its bytes or products at the
    device's peak, and at least the time to start it. A collective sends twice its bytes around a
    ring; waiting for other devices is not counted.
    """
    if cost.collectives:
        return max(2 * cost.collective_bytes / rates.link, _LAUNCH_S)
    if rates.clock_hz is not None:
        return cost.cycles / rates.clock_hz
    return max(roofline_seconds(rates, cost), _LAUNCH_S)


def roofline_seconds(rates: Rates, cost: Cost) -> float:
    """Returns the seconds of these bytes, or of these products, at the device's peaks."""
    products = (cost.flops - cost.fp32_flops) / rates.peak_flops
    products += cost.fp32_flops / rates.peak_fp32_flops
    return max(cost.bytes / rates.bandwidth, products)


def seconds_of_runs(
    machine: Machine,
    planned: Plan,
    data: FederatedData,
    local_steps: Callable[[np.ndarray], np.ndarray],
    eval_every: int,
    mesh: Mesh | None = None,
) -> float:
    """Estimates the seconds of complete runs, without compilation.

    ``local_steps`` maps the sizes of clients to their local steps; other arguments are those of the
    plan.
    """
    programs, rounds = planned.programs, planned.rounds
    assert programs is not None
    trip_counts = TripCounts(machine, data, programs.cohort_size, planned.runs, local_steps, mesh)

    def seconds(made: AheadOfTime) -> float:
        return estimate(rates_of(machine), made, trip_counts.trip_count).seconds

    chunks = rounds / min(eval_every, rounds)
    total = seconds(programs.init) + chunks * seconds(programs.steps)
    return total + len(evaluated_rounds(rounds, eval_every)) * seconds(programs.evaluation)
