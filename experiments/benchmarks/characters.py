"""Federated averaging of a character LSTM, here and as a loop in PyTorch.

    python -m experiments.benchmarks.characters --repeats 5

The network is that of LEAF: an embedding of 8, two LSTM layers of 256 and a dense layer. Random
windows, equal numbers of clients, steps and windows. The programs alternate, one repetition of each
at a time. PyTorch is in an environment of the peers, created by the first call.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.peers.environment import PROGRAMS, Worker
from experiments.benchmarks.timing import alternate, print_header, print_row


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sizes of a round, also those of the PyTorch program."""

    clients: int = 20
    windows: int = 30
    length: int = 80
    characters: int = 79
    cohort_size: int = 5
    batch_size: int = 10
    steps: int = 3
    width: int = 256
    layers: int = 2
    embedding_width: int = 8
    rounds: int = 1
    learning_rate: float = 0.5


def rounds_here(workload: Workload) -> Any:
    """Returns a function that trains for one repetition."""
    rng = np.random.default_rng(0)
    total = workload.clients * workload.windows
    tokens = rng.integers(workload.characters, size=(total, workload.length + 1))
    data = ff.data.from_arrays(
        tokens[:, :-1],
        tokens[:, 1:],
        clients=np.arange(total) % workload.clients,
        test_fraction=0.0,
        num_classes=workload.characters,
    )
    model = ff.models.char_lstm(
        workload.characters, workload.embedding_width, workload.width, workload.layers
    )
    method = ff.Round(
        model,
        ff.selectors.Uniform(workload.cohort_size),
        ff.solvers.SGD(workload.learning_rate, workload.batch_size, steps=workload.steps),
        ff.aggregators.Mean(),
    )
    data = ff.data.on_device(data)
    state = jax.jit(method.init)(jax.random.key(0), data)
    advance = jax.jit(lambda state, data: ff.run(method, state, data, workload.rounds)[0])

    def train():
        nonlocal state
        state = jax.block_until_ready(advance(state, data))
        return state

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"))
    parser.add_argument("--small", action="store_true", help="small sizes, to check the programs")
    parser.add_argument("--without-pytorch", action="store_true")
    options = parser.parse_args()
    small = {"clients": 4, "windows": 4, "length": 8, "cohort_size": 2, "width": 16}
    workload = Workload(**({**small, "batch_size": 2} if options.small else {}))
    programs, workers = {"fedjax_fair": rounds_here(workload)}, []
    if not options.without_pytorch:
        # The environment of the loop over images has all that is needed.
        requirements = PROGRAMS / "pytorch_loop.txt"
        program = PROGRAMS / "pytorch_characters.py"
        workers.append(Worker(requirements.stem, options.cache.resolve(), "-P", str(program)))
        workers[0].request(**dataclasses.asdict(workload))
        programs["PyTorch loop"] = lambda: workers[0].request(do="train")
    times = alternate(*programs.values(), repeats=options.repeats)
    windows = workload.rounds * workload.cohort_size * workload.steps * workload.batch_size
    print_header("program | seconds | characters/s | times the last")
    for name, measured in zip(programs, times, strict=True):
        speed = windows * workload.length / measured.median
        cells = f"{measured.median:.3g}", f"{speed:,.0f}", f"{times[-1].ratio_to(measured):.2f}"
        print_row(name, *cells)
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
