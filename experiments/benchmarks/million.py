"""Rounds among a thousand to ten million clients: ``python -m experiments.benchmarks.million``.

Synthetic datasets with lognormal sizes, 20 examples per client on average, a logistic model, 100
participants a round. Beyond a million clients, each has two training examples and one for testing,
from one distribution, which are faster to generate. Every size and method is a new process, which
isolates its peak memory, and adds a line to ``docs/million.csv``; existing lines are not run again.
Then ``docs/million.png`` is drawn.

``--loss`` measures the cost of a pool instead: the representation by a cohort of 100 out of 10,000
clients, against greedy among all of them with full gradients.
"""

from __future__ import annotations

import argparse
import resource
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_fair as ff
from experiments.benchmarks.timing import (
    environment,
    federated_round,
    in_new_process,
    print_header,
)
from experiments.common import append_rows, has_rows, read_rows
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.numerics.sketch import CountSketch
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Selector
from fedjax_fair.selectors.gradients import Fresh, Stale
from fedjax_fair.submodular import (
    facility_location_from_distances,
    facility_location_from_features,
    greedy,
)

SIZES = (1_000, 10_000, 100_000, 1_000_000)
COHORT, POOL, REFERENCES, WIDTH, MEAN_SIZE, ROUNDS = 100, 1_000, 20_000, 32, 20, 3
COLUMNS: tuple[str, ...] = (
    "clients", "examples", "method", "start_s", "round_s", "round_cpu_s", "evaluation_s",
    "data_gib", "peak_gib",
)  # fmt: skip
LABELS = {
    "fedavg": "FedAvg",
    "power_of_choice": "Power-of-Choice",
    "divfl": "DivFL",
    "subtrunc": "SubTrunc",
    "unionfl": "UnionFL",
    "divfl_references": "DivFL, reference clients",
    "divfl_fresh_references": "DivFL, reference clients, fresh",
}


def make_selector(method: str, num_clients: int) -> Selector:
    """The methods compared; those that represent gradients do so with sketches."""
    pooled: Any = {"candidates": "all", "pool": POOL, "gradients": Stale(CountSketch(WIDTH))}
    sampled = pooled | {"num_reference_clients": min(REFERENCES, num_clients)}
    current = sampled | {"gradients": Fresh(CountSketch(WIDTH))}
    return {
        "fedavg": partial(ff.selectors.Uniform, COHORT),
        "power_of_choice": partial(ff.selectors.PowerOfChoice, COHORT, 2 * COHORT),
        "divfl": partial(ff.selectors.DivFL, COHORT, **pooled),
        "subtrunc": partial(ff.selectors.SubTrunc, COHORT, 0.5, **pooled),
        "unionfl": partial(ff.selectors.UnionFL, COHORT, 0.001, 5, **pooled),
        "divfl_references": partial(ff.selectors.DivFL, COHORT, **sampled),
        "divfl_fresh_references": partial(ff.selectors.DivFL, COHORT, **current),
    }[method]()


def federation(num_clients: int, cache: Path) -> FederatedData:
    """Made once, then mapped from files: making a million clients takes longer than measuring."""
    folder = cache / str(num_clients)
    if not (folder / "done").exists():
        _save(make_federation(num_clients), folder)

    def part(name: str) -> ClientExamples:
        paths = {path.stem.removeprefix(f"{name}_"): path for path in folder.glob(f"{name}_*.npy")}
        arrays = {field: np.load(path, mmap_mode="r") for field, path in paths.items()}
        return ClientExamples(**arrays)

    data = FederatedData(part("train"), part("test"), None, 10, "synthetic(1.0, 1.0)")
    return jax.device_put(data)  # Which on a CPU copies nothing.


def _save(data: FederatedData, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        for name, array in getattr(data, part)._asdict().items():
            if array is not None:
                np.save(folder / f"{part}_{name}.npy", array)
    (folder / "done").touch()


def make_federation(num_clients: int) -> FederatedData:
    """In memory."""
    if num_clients > 1_000_000:
        return ff.data.synthetic(
            1.0, 1.0, num_clients, mean_size=3, test_fraction=1 / 3, independent=True
        )
    return ff.data.synthetic(
        1.0, 1.0, num_clients, mean_size=MEAN_SIZE, spread=1.0, max_size=10_000
    )


def measure(method: str, num_clients: int, cache: Path) -> dict[str, Any]:
    """One line of the table, in this process."""
    data = federation(num_clients, cache)
    selector = make_selector(method, num_clients)
    round = federated_round(ff.models.logistic(10), selector, 10, rate=0.05, epochs=1)
    start = jax.jit(round.init).lower(jax.random.key(0), data).compile()
    evaluate = jax.jit(partial(client_performance, round.model))
    variables = round.model.init(jax.random.key(0), data.train.features[:1])
    # Reads all examples, so that no round waits for the disk and all of them count as memory.
    jax.block_until_ready([evaluate(variables, part) for part in (data.train, data.test)])
    _, evaluation_s, _ = _timed(partial(evaluate, variables, data.test))
    state, start_s, _ = _timed(lambda: start(jax.random.key(0), data))
    step = jax.jit(round.step, donate_argnums=0).lower(state, data).compile()
    times = []
    for _ in range(ROUNDS):
        (state, _), *taken = _timed(partial(step, state, data))
        times.append(taken)
    round_s, round_cpu_s = np.median(times, axis=0)
    assert int(state.participation.sum()) == ROUNDS * COHORT
    seconds = {"start_s": start_s, "round_s": round_s, "round_cpu_s": round_cpu_s,
               "evaluation_s": evaluation_s}  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "clients": num_clients,
        "examples": data.train.order.shape[0] + data.test.order.shape[0],
        "method": method,
        **{name: f"{value:.4g}" for name, value in seconds.items()},
        "data_gib": f"{tree_bytes(data) / 2**30:.3f}",
        "peak_gib": f"{peak / 2**20:.3f}",
    }


def _timed(call):
    """A result, and the seconds that passed until it was there: on the clock, and of the cores."""
    clocks = time.perf_counter, time.process_time
    begin = [clock() for clock in clocks]
    result = jax.block_until_ready(call())
    return result, *(clock() - start for clock, start in zip(clocks, begin, strict=True))


def run_all(sizes, methods, table: Path, cache: Path, seconds: float) -> None:
    """Adds the missing lines, as many as can be begun in the time."""
    until = time.monotonic() + seconds
    for num_clients, method in product(sizes, methods):
        known = read_rows(table, dtype=str)
        if has_rows(known, clients=str(num_clients), method=method) or time.monotonic() > until:
            continue
        row = in_new_process(measure, method, num_clients, cache)
        append_rows(known, pd.DataFrame([row]), table)
        print(*row.values(), sep="  ", flush=True)


def draw(table: Path, image: Path) -> None:
    """Time of a round and peak memory against the number of clients."""
    import matplotlib.pyplot as plt

    rows: Any = pd.read_csv(table)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    what = (("round_s", "seconds a round"), ("peak_gib", "peak memory of the process, GiB"))
    for axis, (column, label) in zip(axes, what, strict=True):
        for method, name in LABELS.items():
            measured = rows[rows["method"] == method].sort_values("clients")
            axis.loglog(measured["clients"], measured[column], marker="o", markersize=4, label=name)
        data: Any = rows.groupby("clients")["data_gib"].max()
        ends = data.index.to_numpy()[[0, -1]]
        if column == "peak_gib":
            axis.loglog(data.index, data, color="gray", linestyle=":", label="the data")
        else:
            axis.loglog(ends, 5e-6 * ends, color="gray", linestyle=":", label="in proportion")
        axis.set(xlabel="clients", ylabel=label)
        axis.legend(fontsize=8)
    figure.savefig(image, dpi=150)


def compare_pools(seeds: int) -> None:
    """Prints the loss of the objective by pools and sketches at 10,000 clients."""
    data = jax.tree.map(jnp.asarray, make_federation(10_000))
    round = federated_round(ff.models.logistic(10), COHORT, 10, rate=0.05, epochs=1)
    state = jax.jit(round.init)(jax.random.key(0), data)
    measure = jax.jit(partial(client_gradients, round.model), static_argnames="project")
    print_header("rounds before | pool | G, full gradients | distance | G, sketches | distance")
    for done in (0, 50):
        if done:
            state, _ = jax.jit(partial(ff.run, round, num_rounds=done))(state, data)
        full = measure(state.variables, data.train).gradient
        sketches = [
            measure(state.variables, data.train, project=CountSketch(WIDTH, seed)).gradient
            for seed in range(seeds)
        ]
        _compare(done, full, sketches)


def _compare(done: int, full: jax.Array, sketches: list[jax.Array]) -> None:
    distances = _distances(np.asarray(full, np.float64))
    best = jax.jit(lambda matrix: greedy(facility_location_from_distances(matrix), COHORT).items)
    exact = _quality(distances, best(jnp.asarray(distances)))
    pooled = jax.jit(
        lambda rows, pool: pool[greedy(facility_location_from_features(rows, pool), COHORT).items]
    )
    count = full.shape[0]
    for size in (100, 300, 1_000, 3_000, count):
        # All clients with full gradients are the reference itself.
        columns = [sketches] if size == count else [[full] * len(sketches), sketches]
        cells = ["100 % | 1"] if size == count else []
        for column in columns:
            shares = []
            for seed, rows in enumerate(column):
                pool = np.sort(np.random.default_rng(seed).permutation(count)[:size])
                reached = _quality(distances, pooled(rows, pool.astype(np.int32)))
                shares.append(np.array(reached) / np.array(exact))
            mean, spread = np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1)
            cells.append(f"{100 * mean[0]:.2f} ± {100 * spread[0]:.2f} % | {mean[1]:.3f}")
        print(f"| {done} | {size:,} |", " | ".join(cells), "|")


def _distances(rows: np.ndarray) -> np.ndarray:
    rows = rows - rows.mean(axis=0)
    squares = (rows**2).sum(axis=1)
    squared = squares[:, None] + squares - 2 * rows @ rows.T
    np.fill_diagonal(squared, 0)
    return np.sqrt(np.maximum(squared, 0)).astype(np.float32)


def _quality(distances: np.ndarray, cohort: jax.Array) -> tuple[float, float]:
    """The representation G of a cohort, a mean over clients, and their distance from it."""
    near = distances[:, np.asarray(cohort)].min(axis=1).astype(np.float64)
    return float((distances.max(axis=1) - near).mean()), float(near.mean())


def main() -> None:
    """Measures what is missing, or the loss of objective."""
    parser = argparse.ArgumentParser(description="Rounds among up to a million clients")
    parser.add_argument("--clients", type=int, nargs="*", default=SIZES)
    parser.add_argument("--methods", nargs="*", choices=LABELS, default=tuple(LABELS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing later")
    parser.add_argument("--table", type=Path, default=Path("docs/million.csv"))
    parser.add_argument("--cache", type=Path, default=Path(".cache/million"))
    parser.add_argument("--loss", action="store_true")
    parser.add_argument("--seeds", type=int, default=5, help="pools and sketches of --loss")
    options = parser.parse_args()
    if options.loss:
        print(environment(), end="\n\n")
        compare_pools(options.seeds)
    else:
        print(environment(), *COLUMNS, sep="  ")
        run_all(options.clients, options.methods, options.table, options.cache, options.seconds)
        draw(options.table, options.table.with_suffix(".png"))


if __name__ == "__main__":
    main()
