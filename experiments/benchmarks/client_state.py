"""Rounds whose clients have states: ``python -m experiments.benchmarks.client_state``.

Logistic regression with 650 parameters, 10 participants with 5 steps of 5 examples each, chunks of
50 rounds. Numbers of clients and methods alternate, one repetition of each at a time. The last
column is an evaluation of all clients with Ditto, at the global and at the personalized models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.timing import alternate, print_header, print_row, start
from fedjax_fair.data import FederatedData, from_arrays
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_runs import CompiledRuns
from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.training.train_options import TrainOptions

FEATURES, CLASSES, COHORT, ROUNDS, SIZE = 64, 10, 10, 50, 5
SGD = ff.solvers.SGD(0.1, 5, steps=5)
METHODS = {
    "FedAvg": (SGD, ff.aggregators.Mean(), None),
    "SCAFFOLD": (ff.solvers.Scaffold(SGD), ff.aggregators.ScaffoldMean(), None),
    "Ditto": (ff.solvers.Ditto(SGD, 0.5), ff.aggregators.Mean(), None),
    "Ditto in bfloat16": (ff.solvers.Ditto(SGD, 0.5), ff.aggregators.Mean(), "bfloat16"),
}
"""Solver, aggregator and type of stored states."""


def make_data(num_clients: int) -> FederatedData:
    """Returns clients of five examples, for training and for tests, from one thousand vectors."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, FEATURES)).astype(np.float32)
    rows = rng.integers(0, 1000, num_clients * SIZE)
    labels = rng.integers(0, CLASSES, len(rows)).astype(np.int32)
    clients = np.arange(len(rows)).reshape(num_clients, SIZE)
    return from_arrays(
        features[rows], labels, list(clients),
        test_features=features[rows], test_labels=labels, test_client_indices=list(clients),
    )  # fmt: skip


class Timed:
    """A run that makes chunks of rounds, and evaluates."""

    def __init__(
        self,
        data: FederatedData,
        solver: ff.Solver,
        aggregator: ff.Aggregator,
        dtype: Literal["bfloat16"] | None,
    ) -> None:
        model, selector = ff.models.logistic(CLASSES), ff.selectors.Uniform(COHORT)
        round = ff.Round(model, selector, solver, aggregator, client_state_dtype=dtype)
        with RunBatch(data, (0,)) as batch:
            options = TrainOptions(ROUNDS, ROUNDS, False, "raise")
            self.functions = CompiledRuns(stack_trees([round]), batch, options)
            self.state = self.functions.init()
            self.chunk()  # Compiles; functions that are still unused would be cancelled.
            self.evaluation()
        self.store_bytes = tree_bytes(self.state.clients)

    def chunk(self) -> Any:
        """Runs a chunk of rounds."""
        self.state, info = self.functions.step(self.state, ROUNDS)
        return info.loss

    def evaluation(self) -> Any:
        """Evaluates all clients."""
        return self.functions.evaluate(self.state, self.functions.empty_cohort)


def seconds(functions: list[Callable[[], Any]], repeats: int) -> list[float]:
    return [times.median for times in alternate(*functions, repeats=repeats)]


def main() -> None:
    sizes = [1_000, 100_000, 1_000_000]
    options = start("Time of rounds with client state.", clients=sizes, repeats=31)
    runs = {}
    for num_clients in options.clients:
        data = make_data(num_clients)
        runs |= {(num_clients, name): Timed(data, *roles) for name, roles in METHODS.items()}
    chunks = seconds([run.chunk for run in runs.values()], options.repeats)
    rounds = dict(zip(runs, (1e6 * chunk / ROUNDS for chunk in chunks), strict=True))
    print_header(
        "clients | states of a method, MB | " + ", µs | ".join(METHODS) + ", µs | evaluation, s"
    )
    for num_clients in options.clients:
        ditto = runs[num_clients, "Ditto"]
        (evaluation,) = seconds([ditto.evaluation], 3)
        cells = [f"{rounds[num_clients, name]:.0f}" for name in METHODS]
        store = f"{ditto.store_bytes / 1e6:,.1f}"
        print_row(f"{num_clients:,}", store, *cells, f"{evaluation:.2f}")


if __name__ == "__main__":
    main()
