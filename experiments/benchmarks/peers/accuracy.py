"""Accuracy of the same trainings here and in other libraries.

    python -m experiments.benchmarks.peers.accuracy

Writes ``docs/benchmark/peers.csv`` and prints the table of ``docs/benchmark/peers.md``. Each
library is a process of a separate environment, which the first call creates. Seeds of the file are
not trained again; ``--table`` only prints.

Partition, initial model, cohorts, steps, minibatch size and step size are the same; minibatches are
not. The mean of ten trainings here, with different minibatches, is what the other libraries are
compared with: the minibatches of a single one are part of every difference. One seed is also
trained with all examples of a client in each step.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.benchmarks.peers import trainings
from experiments.benchmarks.peers.environment import PROGRAMS, Worker
from experiments.benchmarks.peers.programs.shared.trainings import Settings
from experiments.common import interval_of, markdown_table
from fedjax_fair.app.settings import presets
from fedjax_fair.benchmark.federations import FEDERATIONS

FILE = Path(__file__).parents[3] / "docs" / "benchmark" / "peers.csv"
SEEDS = range(100, 110)
METHODS = {"fedavg": 0.0, "fedprox": 1.0}
"""FedProx's mu by method."""
HERE, OTHER_MINIBATCHES = "fedjax_fair", "fedjax_fair, other minibatches"
EXAMPLE = "flower, example of its documentation"
DRAWS = 10
"""Trainings here, with other minibatches, whose mean the other libraries are compared with."""
_ALL = 10**6
"""Minibatch size above the number of examples of any client."""


def start(num_clients: int, cache: Path) -> dict[str, Worker]:
    """Starts the programs of the other libraries."""
    commands: dict[str, tuple[str, ...]] = {
        "fedjax": (),
        "pfl": (),
        "flower": (str(num_clients),),
        EXAMPLE: (str(num_clients), "example"),
    }
    return {
        library: Worker(f"{peer}_peer", cache, "-P", str(PROGRAMS / f"{peer}_trainings.py"), *more)
        for library, more in commands.items()
        for peer in [library.partition(",")[0]]
    }


def train_missing(federation: str, seeds: Sequence[int], cache: Path, file: Path) -> None:
    """Trains the seeds that a file lacks, and appends their results seed after seed."""
    done = set()
    if file.exists():
        runs: Any = pd.read_csv(file)
        done = set(runs.loc[runs["federation"] == federation, "seed"])
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in [seed for seed in seeds if seed not in done]:
            described = Path(folder).resolve() / f"{seed}.npz"
            trainings.write(federation, seed, described)
            if not workers:
                workers = start(len(np.load(described)["sizes"]), cache)
            rows = train_seed(federation, seed, described, workers, with_all=seed == seeds[0])
            added = pd.DataFrame(rows)
            header = not file.exists()
            added.to_csv(file, mode="a", index=False, header=header, float_format="%.6g")
            print(added.groupby(["federation", "seed", "method", "library"])["accuracy"].mean())
        for worker in workers.values():
            worker.close()


def train_seed(
    federation: str, seed: int, file: Path, workers: dict[str, Worker], with_all: bool
) -> Iterator[dict[str, Any]]:
    """Yields the result of each training of a seed, also with all examples in a step if asked."""
    solver, arrays = presets.resolve(FEDERATIONS[federation].config).solver, dict(np.load(file))
    for method, prox in METHODS.items():
        for batch_size in (solver.batch_size, _ALL)[: 1 + with_all]:
            settings = Settings(
                batch_size, solver.steps or 0, solver.learning_rate or 0, prox, seed
            )
            common = {"federation": federation, "method": method, "seed": seed}
            common["minibatch"] = "all" if batch_size == _ALL else str(batch_size)
            here = None
            for library, drawn, layers in _train(arrays, settings, workers, file):
                here = here or layers
                measured = measure(arrays, layers, here)
                yield {**common, "library": library, "minibatch_seed": drawn, **measured}


def _train(
    arrays: trainings.Arrays, settings: Settings, workers: dict[str, Worker], file: Path
) -> Iterator[tuple[str, int, trainings.Arrays]]:
    """Yields library, seed of the minibatches and trained layers, first those of here."""
    num_draws = DRAWS + 1 if settings.batch_size < _ALL else 1
    for draw in range(num_draws):
        drawn = settings.seed + 1000 * draw
        layers = trainings.train(arrays, settings._replace(seed=drawn))
        yield HERE if draw < DRAWS else OTHER_MINIBATCHES, drawn, layers
    for library, worker in workers.items():
        if settings.prox or library != EXAMPLE:
            result = file.with_suffix(".result.npz")
            worker.request(file=str(file), settings=settings._asdict(), result=str(result))
            yield library, settings.seed, dict(np.load(result))


def measure(
    arrays: trainings.Arrays, layers: trainings.Arrays, here: trainings.Arrays
) -> dict[str, float]:
    """Measures a model on test examples, and how far its parameters are from those of here.

    Returns:
        Mean and standard deviation of the accuracies of clients; the largest difference of a
        parameter to ``here``, and the largest change of one from the initial model to ``here``.
    """
    accuracies = trainings.client_accuracies(arrays, layers)
    return {
        "accuracy": float(accuracies.mean()),
        "standard_deviation": float(accuracies.std()),
        "difference": max(float(np.abs(layers[name] - here[name]).max()) for name in here),
        "change": max(float(np.abs(arrays[name] - here[name]).max()) for name in here),
    }


def compare(runs: Any) -> Any:
    """Compares each library with this one.

    Args:
        runs: The table that `train_missing` writes.

    Returns:
        A table with a row for each federation, method and library: the means over seeds of
        ``accuracy`` and ``standard_deviation``, in percent; the mean paired difference to this
        library of each, in points, with the ``_low`` and ``_high`` end of its 95% t interval; and,
        of the training with all examples, ``rounding``, the difference of parameters over their
        change.
    """
    rows, batches = [], runs["minibatch"] != "all"
    for (federation, method), own in runs[batches].groupby(["federation", "method"], sort=False):
        names = ["accuracy", "standard_deviation"]
        by_library = own.groupby(["library", "seed"])[names].mean()
        full = runs[~batches & (runs["federation"] == federation) & (runs["method"] == method)]
        full = full.set_index("library")
        for library in own["library"].unique():
            row = {"federation": federation, "method": method, "library": library}
            for name in names:
                row[name] = 100 * by_library.loc[library, name].mean()
                if library != HERE:
                    difference = by_library.loc[library, name] - by_library.loc[HERE, name]
                    found = interval_of(100 * difference)
                    row |= {f"{name}_{key}": found[key] for key in ("difference", "low", "high")}
            if library in full.index and library != HERE:
                row["rounding"] = full.loc[library, "difference"] / full.loc[library, "change"]
            rows.append(row)
    return pd.DataFrame(rows)


def markdown(table: Any) -> str:
    """Returns the table of the page. Intervals that exclude 0 are bold."""
    rows = []
    for _, row in table.iterrows():
        cells = [row["federation"], row["method"], row["library"]]
        for name in ("accuracy", "standard_deviation"):
            cells += [f"{row[name]:.1f}", _shown(row, name)]
        cells.append("" if np.isnan(row["rounding"]) else f"{row['rounding']:.0e}")
        rows.append(cells)
    headings = (
        "dataset", "method", "library", "accuracy, %", "difference, points",
        "standard deviation, %", "difference, points", "parameters, all examples",
    )  # fmt: skip
    return "\n".join(markdown_table(headings, rows))


def _shown(row: Any, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if np.isnan(low):
        return ""
    center, low_text, high_text = (
        f"{value:+.1f}".replace("-0.0", "+0.0").replace("-", "\N{MINUS SIGN}")
        for value in (row[f"{name}_difference"], low, high)
    )
    shown = f"{center} ({low_text} to {high_text})"
    return shown if low <= 0 <= high else f"**{shown}**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="do not train")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"))
    options = parser.parse_args()
    if not options.table:
        for federation in ("digits", "synthetic"):
            train_missing(federation, options.seeds, options.cache.resolve(), options.file)
    print(markdown(compare(pd.read_csv(options.file, dtype={"minibatch": str}))))


if __name__ == "__main__":
    main()
