"""Seconds of single instructions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.planning.compilation import compile_ahead, kernel_seconds, place
from fedjax_fair.planning.costs import Cost
from fedjax_fair.planning.machines import Machine

# 10 bytes a second from memory, 100 operations, 25 in full precision, 5 bytes to a neighbor.
GPU = Machine("gpu", 1e9, 10, 200, 100, 25, 5, shape=(8,), module="jax")
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


RATES = Machine("rates", 1e9, 1e12, 4e6, 2e6, 1e6, 1.0)
SLOW = RATES._replace(bandwidth=1e4)
FLOPS, ELEMENTS = 2 * 30 * 40 * 50, 30 * 40 + 40 * 50 + 30 * 50


@pytest.mark.parametrize(
    ("machine", "dtype", "precision", "seconds"),
    [
        (RATES, "float32", None, FLOPS / 2e6),
        (RATES, "float32", "highest", FLOPS / 1e6),
        (RATES, "bfloat16", None, FLOPS / 4e6),
        (SLOW, "float32", None, 4 * ELEMENTS / 1e4),
        (SLOW, "bfloat16", None, 2 * ELEMENTS / 1e4),
        (SLOW._replace(cache=8_800), "float32", None, 1.0),
        (RATES._replace(peak_flops=1e15), "float32", None, 1e-6),
    ],
)
def test_rates_bound_the_time_of_products(machine, dtype, precision, seconds):
    def function(a, b):
        products = jnp.matmul(a, b, precision=precision)
        return jnp.sort(jnp.tanh(products), axis=0)  # Other operations do not count.

    shapes = place(machine, (np.zeros((30, 40), dtype), np.zeros((40, 50), dtype)))
    made = compile_ahead(machine, jax.jit(function), *shapes)
    assert made.seconds == pytest.approx(seconds, rel=1e-6)
    assert (made.program.cost.flops, made.program.cost.kernels) == (FLOPS, 1)


def test_rates_count_every_trip_of_a_loop():
    def powers(a):
        return jax.lax.fori_loop(0, 7, lambda _, power: jnp.tanh(power @ a), a)

    made = compile_ahead(RATES, jax.jit(powers), place(RATES, np.zeros((30, 30), np.float32)))
    assert made.program.cost.flops == 7 * 2 * 30**3
    assert made.seconds == pytest.approx(7 * 2 * 30**3 / 2e6)
