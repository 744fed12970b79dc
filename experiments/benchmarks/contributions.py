"""Time of exact contributions of clients: ``python -m experiments.benchmarks.contributions``.

Trains FedAvg on digits with every coalition of clients, in a new process for each row, with
compilation. CPU seconds are of all cores.
"""

from __future__ import annotations

import resource
import time
from itertools import product

import fedjax_fair as ff
from experiments.benchmarks.timing import in_new_process, print_header, print_row, start
from fedjax_fair.parallel.cores import default_core_mesh

MODELS = {
    "logistic": lambda num_classes: ff.models.logistic(num_classes),
    "MLP 64-64-10": lambda num_classes: ff.models.mlp(num_classes, hidden=(64,)),
}
CLIENTS, ROUNDS = (6, 8, 10, 12), 10


def measure(model: str, num_clients: int) -> tuple[str, ...]:
    """Returns the measured cells of a row of the table."""
    data = ff.data.load("digits", ff.data.dirichlet(num_clients, alpha=0.3))
    method = ff.Round(
        MODELS[model](data.num_classes),
        ff.selectors.Full(),
        ff.solvers.SGD(0.1, batch_size=10, epochs=1),
        ff.aggregators.Mean("num_examples"),
    )
    started, cpu_started = time.perf_counter(), time.process_time()
    found = ff.analysis.contributions(method, data, rounds=ROUNDS, mesh=default_core_mesh())
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    utilities = found.utilities[0]
    error = abs(found.values.sum() - (utilities[-1] - utilities[0]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    cells = f"{len(utilities):,}", f"{seconds:.0f}", f"{cpu_seconds:.0f}", f"{peak:.2f}"
    return *cells, f"{error:.0e}"


def main() -> None:
    options = start(__doc__, {"models": MODELS}, models=list(MODELS), clients=CLIENTS)
    print_header(
        "model | clients | trainings | seconds | CPU seconds | peak memory, GiB | error of the sum"
    )
    for row in product(options.models, options.clients):
        print_row(*row, *in_new_process(measure, *row))


if __name__ == "__main__":
    main()
