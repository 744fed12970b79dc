"""Seconds of single instructions."""

import pytest

from fedjax_fair.planning.compilation import kernel_seconds
from fedjax_fair.planning.costs import Cost
from fedjax_fair.planning.machines import Machine

# 10 bytes a second from memory, 100 operations, 25 in full precision, 5 bytes to a neighbor.
GPU = Machine("gpu", "gpu", (8,), 1e9, 10, 100, 25, 5, None, "", "jax")
TPU = GPU._replace(platform="tpu", clock_hz=50.0)


@pytest.mark.parametrize(
    ("machine", "cost", "seconds"),
    [
        (GPU, Cost(bytes=20, flops=100), 2.0),
        (GPU, Cost(bytes=20, flops=400), 4.0),
        (GPU, Cost(bytes=20, flops=400, fp32_flops=100), 7.0),
        (GPU, Cost(kernels=1), 1e-6),
        (TPU, Cost(cycles=25, bytes=20, flops=400), 0.5),
        # A ring sends all but one part of the bytes twice.
        (GPU, Cost(bytes=20, kernels=1, collectives=1, collective_bytes=20), 8.0),
        (TPU, Cost(cycles=25, kernels=1, collectives=1, collective_bytes=20), 8.0),
        (TPU, Cost(kernels=1, collectives=1), 1e-6),
    ],
)
def test_an_instruction_takes_the_time_of_its_bottleneck(machine, cost, seconds):
    assert kernel_seconds(machine, cost) == pytest.approx(seconds)
