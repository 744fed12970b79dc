"""Seconds of instructions and programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.accelerators.costs import Cost
from experiments.benchmarks.accelerators.estimates import Rates, estimate, kernel_seconds
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.plan import compile_ahead, place

# 10 bytes a second from memory, 100 operations, 25 in full precision, 5 bytes to a neighbor.
GPU = Rates(10, 200, 100, 25, 5)
TPU = GPU._replace(clock_hz=50.0)


@pytest.mark.parametrize(
    ("rates", "cost", "seconds"),
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
def test_an_instruction_takes_the_time_of_its_bottleneck(rates, cost, seconds):
    assert kernel_seconds(rates, cost) == pytest.approx(seconds)


CPU = Machine("local CPU", 1e9)
RATES = Rates(1e15, 4e6, 2e6, 1e6, 1.0)
FLOPS = 2 * 30 * 40 * 50


@pytest.mark.parametrize(
    ("dtype", "precision", "seconds"),
    [
        ("float32", None, FLOPS / 2e6),
        ("float32", "highest", FLOPS / 1e6),
        ("bfloat16", None, FLOPS / 4e6),
    ],
)
def test_products_take_the_time_of_their_precision(dtype, precision, seconds):
    def function(a, b):
        return jnp.matmul(a, b, precision=precision)

    shapes = place(CPU, (np.zeros((30, 40), dtype), np.zeros((40, 50), dtype)))
    found = estimate(RATES, compile_ahead(CPU, jax.jit(function), *shapes))
    assert found.seconds == pytest.approx(seconds, rel=1e-3)


def test_every_trip_of_a_loop_takes_time():
    def powers(a):
        return jax.lax.fori_loop(0, 7, lambda _, power: jnp.tanh(power @ a), a)

    made = compile_ahead(CPU, jax.jit(powers), place(CPU, np.zeros((30, 30), np.float32)))
    assert estimate(RATES, made).seconds == pytest.approx(7 * 2 * 30**3 / 2e6, rel=1e-3)
