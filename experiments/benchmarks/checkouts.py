"""Rounds on a CPU against another checkout: ``python -m experiments.benchmarks.checkouts``.

    python -m experiments.benchmarks.checkouts FOLDER --repeats 3

The checkouts train in alternating processes. Processor time is printed next to wall time, because
it varies less on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import fedjax_fair as ff

_CALLS = 3
_MNIST, _CIFAR = (28, 28, 1), (32, 32, 3)


class Workload(NamedTuple):
    """A federation to train, with images of the same shape; ``rounds`` are those of a call."""

    network: Callable
    shape: tuple[int, ...] = _MNIST
    clients: int = 100
    size: int = 480
    cohort: int = 10
    steps: int = 20
    batch: int = 50
    rounds: int = 2
    selector: Callable = ff.selectors.Uniform


_lenet, _divfl = ff.models.lenet, ff.selectors.DivFL
WORKLOADS = {
    "LeNet": Workload(_lenet),
    "LeNet, three channels": Workload(_lenet, _CIFAR, rounds=1),
    "MLP": Workload(ff.models.mlp, rounds=5),
    "FEMNIST's network": Workload(ff.models.femnist_cnn, _MNIST, 20, 160, 3, 5, 20, 5),
    "ResNet-18": Workload(ff.models.resnet18, _CIFAR, 10, 60, 2, 2, 10, 1),
    "DivFL, fresh gradients": Workload(_lenet, size=100, rounds=1, selector=_divfl),
    "DivFL, stale gradients": Workload(
        _lenet, size=100, selector=partial(_divfl, gradients="stale")
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds beside those of another checkout")
    parser.add_argument("against", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", action="store_true", help="only this process, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps({name: _seconds(workload) for name, workload in WORKLOADS.items()}))
        return
    if options.against is None:
        parser.error("expected a folder with another checkout.")
    measured: dict[Path, list[dict]] = {Path.cwd(): [], options.against.resolve(): []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats + 1):
            for number, (checkout, rows) in enumerate(measured.items()):
                settings = {
                    **{key: text for key, text in os.environ.items() if key[:4] != "JAX_"},
                    "PYTHONPATH": str(checkout),
                    "JAX_COMPILATION_CACHE_DIR": f"{folder}/{number}",
                }
                command = [sys.executable, __file__, "--one"]
                done = subprocess.run(command, env=settings, capture_output=True, check=True)
                if repeat:  # Programs are compiled first.
                    rows.append(json.loads(done.stdout))
    own, other = measured.values()
    print("| a round | s | processor, s | times the other's | by processor |")
    print("|---|---|---|---|---|")
    for name in WORKLOADS:
        ours, theirs = (np.array([row[name] for row in rows]) for rows in (own, other))
        seconds, ratio = np.median(ours, axis=0), np.median(ours / theirs, axis=0)
        cells = f"{seconds[0]:.3f} | {seconds[1]:.3f} | {ratio[0]:.2f} | **{ratio[1]:.2f}**"
        print(f"| {name} | {cells} |")


def _seconds(workload: Workload) -> list[float]:
    """Medians of wall and of processor time of a round."""
    rng = np.random.default_rng(0)
    count = workload.clients * workload.size
    images = rng.integers(0, 256, (count, *workload.shape), dtype=np.uint8)
    labels = rng.integers(0, 10, count).astype(np.int32)
    data = ff.data.from_arrays(images, labels, np.split(np.arange(count), workload.clients))
    round = ff.Round(
        workload.network(10),
        workload.selector(workload.cohort),
        ff.solvers.SGD(0.05, workload.batch, steps=workload.steps),
        ff.aggregators.Mean(),
    )
    state = jax.jit(round.init)(jax.random.key(0), data)
    train = partial(jax.jit(ff.run, static_argnums=(0, 3)), round, state, data, workload.rounds)
    jax.block_until_ready(train())
    times = []
    for _ in range(_CALLS):
        started = time.perf_counter(), time.process_time()
        jax.block_until_ready(train())
        ended = time.perf_counter(), time.process_time()
        times.append(np.subtract(ended, started) / workload.rounds)
    return np.median(times, axis=0).tolist()


if __name__ == "__main__":
    main()
