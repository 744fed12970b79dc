"""Time and memory of the benchmark by federated dataset, for the estimate of ``--dry-run``.

    python -m experiments.benchmarks.benchmark_costs --data-dir FOLDER

Each figure is measured in a new process without a compilation cache: the time of four methods, and
the memory of as many as are kept compiled at a time, with two rounds, on whose number memory does
not depend. Datasets in the file are not measured again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from experiments.common import append_rows
from fedjax_fair.benchmark import runner
from fedjax_fair.benchmark.federations import Federation
from fedjax_fair.benchmark.protocol import TRACKS
from fedjax_fair.benchmark.unit import is_done

TIMED = ("fedavg", "divfl", "scaffold", "ditto")
KEPT = (
    *TIMED,
    *("centralized", "local_converged", "fine_tuned", "unionfl", "equitable", "fedrep"),
    *("q_fedavg", "scaffold+fedadam"),
)
"""Twelve methods; among them are the largest states: gradients, control variates and models of all
clients."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="folder of the standard track's datasets")
    parser.add_argument("--output", type=Path, default=Path("fedjax_fair/benchmark/costs.csv"))
    options = parser.parse_args()
    for track, chosen in TRACKS.items():
        for name in chosen.federations:
            known = pd.DataFrame(columns=["federation"])
            if options.output.exists():
                known = pd.read_csv(options.output)
            if name in set(known["federation"]):
                continue
            arguments = track, name, options.data_dir
            row = {
                "federation": name,
                "seconds": alone(seconds_per_method, *arguments),
                "gigabytes": alone(gigabytes, *arguments),
            }
            append_rows(known, pd.DataFrame([row]), options.output, digits=3)
            print(row, flush=True)


def alone(function: Callable[..., float], *arguments: Any) -> float:
    """Calls a function in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        return process.submit(function, *arguments).result()


def seconds_per_method(track: str, name: str, data_dir: str | None) -> float:
    """Returns the mean time of a method, compilation included."""
    with tempfile.TemporaryDirectory() as folder:
        planned = runner.plan(track, Path(folder), TIMED, [name])
        started = time.perf_counter()
        run(planned, Path(folder), data_dir)
        return (time.perf_counter() - started) / len(TIMED)


def gigabytes(track: str, name: str, data_dir: str | None) -> float:
    """Returns the largest memory of this process."""
    with tempfile.TemporaryDirectory() as folder:
        planned = runner.plan(track, Path(folder), KEPT, [name])
        units = [unit._replace(federation=shortened(unit.federation)) for unit in planned.units]
        run(planned._replace(units=units), Path(folder), data_dir)
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes * 1024 / 1e9


def shortened(federation: Federation) -> Federation:
    training = replace(federation.config.training, rounds=2, eval_every=2)
    return federation._replace(config=replace(federation.config, training=training))


def run(planned: runner.Plan, folder: Path, data_dir: str | None) -> None:
    jax.config.update("jax_enable_compilation_cache", False)  # Also one of the environment.
    runner.run(planned, folder, data_dir)
    if not all(is_done(unit) for unit in planned.units):
        raise RuntimeError(str(runner.failures(runner.failed_units(folder))))


if __name__ == "__main__":
    main()
