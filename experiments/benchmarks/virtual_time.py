"""Costs of asynchronous rounds: ``python -m experiments.benchmarks.virtual_time``.

For 10, 20, 50 and 100 clients that train at the same time, out of 100 and of a million: the time
of an arrival, and its ratio to the time of a client's update in synchronous rounds of ten clients.
The buffer has ten results, and both train an MLP of 19 kB on images of 8 x 8 pixels. Each row is a
process, in which calls of both alternate; its peak memory is that of both. The state between rounds
has a model for each client that trains.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from functools import partial

import jax
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.timing import (
    alternate,
    environment,
    federated_round,
    print_header,
    print_row,
    random_data,
)
from fedjax_fair.numerics.trees import tree_bytes

POPULATIONS = (100, 1_000_000)
CONCURRENCIES = (10, 20, 50, 100)
BUFFER, STEPS, BATCH, EXAMPLES, ROUNDS = 10, 10, 10, 4, 20


class _Rounds:
    """A compiled function of some rounds, called repeatedly on its donated state."""

    def __init__(self, round: ff.Round, data: ff.data.FederatedData) -> None:
        self.round, self.data = round, data  # Arguments, as in `fit`.
        self.state = jax.jit(round.init)(jax.random.key(0), data)
        self.state_bytes = tree_bytes(self.state)
        run = jax.jit(partial(ff.run, num_rounds=ROUNDS), donate_argnums=1)
        self.program = run.lower(round, self.state, data).compile()

    def __call__(self):
        self.state, _ = self.program(self.round, self.state, self.data)
        return self.state.variables


def measure(num_clients: int, concurrency: int, repeats: int) -> None:
    """Prints a row of the table."""
    data = jax.device_put(random_data((8, 8), num_clients, EXAMPLES, test_size=num_clients))
    model = ff.models.mlp(10, hidden=(64,))
    speeds = np.random.default_rng(0).lognormal(0, 1, num_clients)
    schedule = ff.schedules.Asynchronous(
        ff.timing.ClientTimes(speeds, jitter=0.2), buffer_size=BUFFER
    )
    synchronous = federated_round(model, BUFFER, BATCH, steps=STEPS)
    asynchronous = synchronous.replace(
        selector=ff.selectors.Uniform(concurrency),
        aggregator=ff.aggregators.FedBuff(),
        schedule=schedule,
    )
    plain, timed = _Rounds(synchronous, data), _Rounds(asynchronous, data)
    times = alternate(plain, timed, repeats=repeats)
    per_update = [1e6 * each.median / (ROUNDS * BUFFER) for each in times]
    memory = timed.program.memory_analysis()
    assert memory is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print_row(
        f"{num_clients:,}",
        concurrency,
        *(f"{time:.1f}" for time in per_update),
        f"{times[1].ratio_to(times[0]):.2f}",
        f"{timed.state_bytes / 1e6:.2f}",
        f"{memory.temp_size_in_bytes / 1e6:.2f}",
        f"{peak:.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clients", type=int, nargs="*", default=POPULATIONS)
    parser.add_argument("--concurrency", type=int, nargs="*", default=CONCURRENCIES)
    parser.add_argument("--one-row", action="store_true", help="measure in this process")
    options = parser.parse_args()
    if options.one_row:
        measure(options.clients[0], options.concurrency[0], options.repeats)
        return
    print(environment(), end="\n\n")
    print_header(
        "clients | training at the same time | synchronous, µs per update | "
        "asynchronous, µs per arrival | ratio | state, MB | temporaries, MB | peak memory, GiB"
    )
    for num_clients in options.clients:
        for concurrency in options.concurrency:
            row = {
                "clients": num_clients, "concurrency": concurrency, "repeats": options.repeats,
            }  # fmt: skip
            settings = [f"--{name}={value}" for name, value in row.items()]
            module = "experiments.benchmarks.virtual_time"
            subprocess.run([sys.executable, "-m", module, "--one-row", *settings], check=True)


if __name__ == "__main__":
    main()
