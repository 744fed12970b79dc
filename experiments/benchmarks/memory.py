"""Memory of training beyond the interpreter's: ``python -m experiments.benchmarks.memory``.

For the networks and federations of ``experiments.benchmarks.peers``, with generated images, each in
a process of its own: the data, the model, what the compiled programs are said to take, and by how
much the resident memory of the process grew beyond that after compilation. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import xarray  # noqa: F401  # Loaded here, so that no run is charged for it.

import fedjax_fair as ff
from experiments.benchmarks.peers.networks import NETWORKS
from experiments.benchmarks.peers.ours import selector_of
from experiments.benchmarks.peers.programs.shared.workloads import WORKLOADS, Workload
from experiments.benchmarks.timing import environment, without_settings
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.training.fit import Callback, fit

SHAPES = {"lenet": (60_000, 28, 28, 1), "cnn": (50_000, 32, 32, 3), "resnet18": (50_000, 32, 32, 3)}
TESTED = 2_000
MIB = 2**20


class Watch(Callback):
    """Forgets the peak that compilation made."""

    def on_compiled(self, num_bytes: int) -> None:
        """Keeps the estimate, and what is resident already."""
        self.reported, self.before = num_bytes, resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def federation(workload: Workload) -> ff.data.FederatedData:
    shape = SHAPES[workload.network]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, shape, dtype=np.uint8)
    labels = rng.integers(0, 10, shape[0]).astype(np.int32)
    return ff.data.from_arrays(
        images,
        labels,
        np.array_split(rng.permutation(shape[0]), workload.clients),
        test_features=images[:TESTED],
        test_labels=labels[:TESTED],
        test_client_indices=np.array_split(np.arange(TESTED), workload.clients),
    )


def measure(workload: Workload, side_by_side: int) -> dict[str, float]:
    """MiB of a run of two rounds and two evaluations, in this process."""
    mesh, watch, model = core_mesh(), Watch(), NETWORKS[workload.network]()
    data = federation(workload)
    round = ff.Round(
        model,
        selector_of(workload),
        ff.solvers.SGD(0.01, workload.batch_size, steps=workload.steps),
        ff.aggregators.Mean(),
        clients_per_batch=side_by_side,
    )
    fit(round, data, rounds=2, eval_every=2, train_loss=False, mesh=mesh, callbacks=[watch])
    grown = resident("VmHWM") - watch.before
    of_data, of_model = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in (data, jax.eval_shape(model.init, jax.random.key(0), data.train.features[:1]))
    )
    return {
        "cores": mesh.size,
        "data": of_data / MIB,
        "model": of_model / MIB,
        "reported": watch.reported / MIB,
        "used": (of_data + grown) / MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of training")
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--side-by-side", nargs="*", type=int, default=[1, 4])
    parser.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        name, side_by_side = options.here
        print(json.dumps(measure(WORKLOADS[name], int(side_by_side))))
        return
    print(environment())
    print("| | clients at once | data, MiB | model | reported | used | used over reported |")
    print("|---|---|---|---|---|---|---|")
    for name in options.only:
        for side_by_side in options.side_by_side:
            command = [sys.executable, "-m", __spec__.name, "--here", name, str(side_by_side)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=without_settings()
            )
            row = json.loads(done.stdout.splitlines()[-1])
            at_once = side_by_side * row["cores"]
            print(
                f"| {name} | {at_once} | {row['data']:.0f} | {row['model']:.1f} | "
                f"{row['reported']:.0f} | {row['used']:.0f} | "
                f"{row['used'] / row['reported']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
