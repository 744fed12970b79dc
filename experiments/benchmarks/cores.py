"""Speedup by a device for each core: ``python -m experiments.benchmarks.cores``.

Rounds of ten out of a hundred clients, 20 steps each: on one device of all cores, with cores that
share a run, and with a run for each core. Prints examples per second.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.timing import (
    alternate,
    federated_round,
    print_header,
    print_row,
    random_data,
    start,
)
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import groups_of_cores, over_mesh, shard_data

# Network, batch size, side of the images, and rounds in a repetition.
CASES = {
    "LeNet, batch 10": (ff.models.lenet(10), 10, 28, 2),
    "LeNet, batch 50": (ff.models.lenet(10), 50, 28, 1),
    "MLP 784-200-200-10, batch 10": (ff.models.mlp(10), 10, 28, 10),
    "MLP 784-200-200-10, batch 50": (ff.models.mlp(10), 50, 28, 5),
    "MLP 64-64-10, batch 10": (ff.models.mlp(10, hidden=(64,)), 10, 8, 100),
    "logistic 784-10, batch 10": (ff.models.logistic(10), 10, 28, 50),
}
CLIENTS, SIZE, COHORT, STEPS = 100, 200, 10, 20


def measure(model, batch_size: int, side: int, rounds: int, mesh, repeats: int) -> list[float]:
    """Examples a second of the three forms."""

    def variables(side_by_side, seed, data):
        settings = {"steps": STEPS, "clients_per_batch": side_by_side}
        method = federated_round(model, COHORT, batch_size, **settings)
        start = method.init(jax.random.key(seed), data)
        return ff.run(method, start, data, rounds)[0].variables

    data = random_data((side, side, 1), CLIENTS, SIZE, test_size=CLIENTS)
    seeds = np.arange(mesh.size, dtype=np.uint32)
    own = partial(variables, None)
    one = partial(jax.jit(partial(variables, COHORT)), seeds[0], jax.device_put(data))
    cores = partial(jax.jit(over_mesh(own, mesh)), seeds[0], shard_data(data, mesh))

    def mapped(seeds, data):
        return jax.lax.map(lambda seed: own(seed, data), seeds)

    groups = groups_of_cores(mesh)
    runs = partial(jax.jit(over_mesh(mapped, groups)), seeds, shard_data(data, groups))
    times = alternate(one, cores, runs, repeats=repeats)
    alone = times[0]
    rate = rounds * COHORT * STEPS * batch_size / alone.median
    return [rate, rate * alone.ratio_to(times[1]), rate * alone.ratio_to(times[2]) * mesh.size]


def main() -> None:
    mesh = core_mesh()  # Before JAX starts.
    options = start("Speedup by a device for each core", repeats=9)
    print_header("| one device, examples/s | cores share a run | | a run a core |")
    for name, case in CASES.items():
        one, cores, runs = measure(*case, mesh, options.repeats)
        shared, separate = ((f"{rate:,.0f}", f"**{rate / one:.2f}**") for rate in (cores, runs))
        print_row(name, f"{one:,.0f}", *shared, *separate)


if __name__ == "__main__":
    main()
