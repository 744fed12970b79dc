"""Memory of training beyond the interpreter's: ``python -m experiments.benchmarks.memory``.

For the networks and datasets of ``experiments.benchmarks.peers``, with random images, each in a new
process: the data, the model, the estimate of ``fit``, and the growth of resident memory after
compilation, including the data. Linux only.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import jax
import xarray  # noqa: F401  # Loaded here, so that no run is charged for it.

from experiments.benchmarks.peers.networks import NETWORKS
from experiments.benchmarks.peers.ours import selector_of
from experiments.benchmarks.peers.programs.shared.workloads import WORKLOADS, Workload
from experiments.benchmarks.timing import (
    federated_round,
    in_new_process,
    print_header,
    print_row,
    random_data,
    start,
)
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.training.fit import fit
from fedjax_fair.training.loop import Callback

SHAPES = {"lenet": (28, 28, 1), "cnn": (32, 32, 3), "resnet18": (32, 32, 3)}
IMAGES = {"lenet": 60_000, "cnn": 50_000, "resnet18": 50_000}
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


def measure(workload: Workload, clients_per_batch: int) -> dict[str, float]:
    """MiB of a run of two rounds and two evaluations, in this process."""
    mesh, watch, model = core_mesh(), Watch(), NETWORKS[workload.network]()
    size = IMAGES[workload.network] // workload.clients
    shape = SHAPES[workload.network]
    data = random_data(shape, workload.clients, size, test_size=TESTED)
    round = federated_round(
        model,
        selector_of(workload),
        workload.batch_size,
        steps=workload.steps,
        clients_per_batch=clients_per_batch,
    )
    fit(round, data, rounds=2, eval_every=2, train_loss=False, mesh=mesh, callbacks=[watch])
    grown = resident("VmHWM") - watch.before
    of_data = tree_bytes(data)
    of_model = tree_bytes(jax.eval_shape(model.init, jax.random.key(0), data.train.features[:1]))
    return {
        "cores": mesh.size,
        "data": of_data / MIB,
        "model": of_model / MIB,
        "reported": watch.reported / MIB,
        "used": (of_data + grown) / MIB,
    }


def main() -> None:
    choices, settings = {"only": WORKLOADS}, {"clients_per_batch": [1, 4]}
    options = start("Memory of training", choices, only=list(WORKLOADS), **settings)
    print_header("| parallel clients | data, MiB | model | reported | used | used over reported")
    for name, clients_per_batch in product(options.only, options.clients_per_batch):
        row = in_new_process(measure, WORKLOADS[name], clients_per_batch)
        parallel = clients_per_batch * row["cores"]
        sizes = (f"{row[name]:.0f}" for name in ("reported", "used"))
        ratio = f"{row['used'] / row['reported']:.2f}"
        print_row(name, parallel, f"{row['data']:.0f}", f"{row['model']:.1f}", *sizes, ratio)


if __name__ == "__main__":
    main()
