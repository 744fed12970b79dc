"""Costs of asynchronous rounds: ``python -m experiments.benchmarks.virtual_time``.

For 10, 20, 50 and 100 clients that train at the same time, out of 100 and of a million: the time
of an arrival, and its ratio to the time of a client's update in synchronous rounds of ten clients.
The buffer has ten results, and both train an MLP of 19 kB on images of 8 x 8 pixels. Each row is a
process, in which calls of both alternate; its peak memory is that of both. The state between rounds
has a model for each client that trains.
"""

from __future__ import annotations

import resource
from itertools import product

import jax
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.timing import (
    RepeatedRounds,
    alternate,
    federated_round,
    in_new_process,
    print_header,
    print_row,
    random_data,
    start,
)
from fedjax_fair.numerics.trees import tree_bytes

POPULATIONS = (100, 1_000_000)
CONCURRENCIES = (10, 20, 50, 100)
BUFFER, STEPS, BATCH, EXAMPLES, ROUNDS = 10, 10, 10, 4, 20


def measure(num_clients: int, concurrency: int, repeats: int) -> list[str]:
    """Returns the measured cells of a row of the table."""
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
    plain, timed = (RepeatedRounds(each, data, ROUNDS) for each in (synchronous, asynchronous))
    state_bytes = tree_bytes(timed.state)
    times = alternate(plain, timed, repeats=repeats)
    per_update = [1e6 * each.median / (ROUNDS * BUFFER) for each in times]
    memory = timed.program.memory_analysis()
    assert memory is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sizes = state_bytes / 1e6, memory.temp_size_in_bytes / 1e6, peak
    shown = (f"{value:.2f}" for value in (times[1].ratio_to(times[0]), *sizes))
    return [*(f"{time:.1f}" for time in per_update), *shown]


def main() -> None:
    options = start(__doc__, repeats=9, clients=POPULATIONS, concurrency=CONCURRENCIES)
    print_header(
        "clients | training at the same time | synchronous, µs per update | "
        "asynchronous, µs per arrival | ratio | state, MB | temporaries, MB | peak memory, GiB"
    )
    for clients, concurrency in product(options.clients, options.concurrency):
        cells = in_new_process(measure, clients, concurrency, options.repeats)
        print_row(f"{clients:,}", concurrency, *cells)


if __name__ == "__main__":
    main()
