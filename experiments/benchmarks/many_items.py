"""Selection among very many items: ``python -m experiments.benchmarks.many_items``.

* ``neighbors``: facility location of 100,000 points and their nearest neighbors, against apricot;
* ``stream``: 100 of a million rows that come in batches, and the memory. Linux only.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from experiments.benchmarks.memory import MIB, resident
from experiments.benchmarks.peers.environment import Worker
from experiments.benchmarks.timing import print_header, run_parts
from fedjax_fair import submodular as sm
from fedjax_fair.submodular import estimators

K = 100
BATCH, FEATURES = 10_000, 64


def benchmark_neighbors(options) -> None:
    """The same sparse similarities for both, in alternation."""
    points, count = options.points, options.neighbors
    rows = np.random.default_rng(0).normal(size=(points, 20)).astype(np.float32)
    start = time.perf_counter()
    distances, items = NearestNeighbors(n_neighbors=count).fit(rows).kneighbors(rows)
    print(f"{count} neighbors of {points} points: {time.perf_counter() - start:.0f} s", end="\n\n")
    near = (distances.max() - distances).astype(np.float32)
    starts = np.arange(points + 1) * count
    matrix = sparse.csr_matrix((near.ravel(), items.ravel(), starts), shape=(points, points))
    model, worker = (
        estimators.FacilityLocation(K, metric="precomputed"),
        Worker("apricot", options.cache),
    )
    model.fit(matrix)  # Which compiles.
    before, ours, theirs = resident("VmHWM"), [], []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "near.npz")
        sparse.save_npz(path, matrix, compressed=False)
        for _ in range(options.repeats):
            start = time.perf_counter()
            model.fit(matrix)
            ours.append(time.perf_counter() - start)
            theirs.append(worker.request(matrix=path, k=K, optimizer="lazy"))
    worker.close()
    fits = np.array([answer["fit"] for answer in theirs])
    selections = np.array([answer["seconds"] for answer in theirs])
    print_header("| `fit`, s | selection, s | value")
    print(f"| ours | {np.median(ours):.2f} | | {model.gains_.astype(float).sum():.2f} |")
    value = matrix[:, theirs[0]["items"]].max(axis=1).sum(dtype=float)
    print(f"| apricot lazy | {np.median(fits):.2f} | {np.median(selections):.2f} | {value:.2f} |")
    print(
        f"\n`fit` {np.median(fits / ours):.1f} times ours, their selection alone "
        f"{np.median(selections / ours):.1f} times our `fit`; peak memory {before / MIB:,.0f} MiB"
    )


def batches(number: int) -> Iterator[np.ndarray]:
    """Amounts of features, made when they are asked for."""
    for seed in range(number):
        rng = np.random.default_rng(seed)
        yield rng.standard_gamma(0.2, (BATCH, FEATURES), np.float32)


def benchmark_stream(options) -> None:
    """The time of a stream, and by how much memory grows after its first batches."""
    number, epsilon = options.batches, options.epsilon
    sm.sieve_batches(sm.FeatureBased, batches(2), K, epsilon)  # Which compiles.
    Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak.
    print_header("rows | s | rows a second | memory beyond that of two batches, MiB | value")
    for batch_count in sorted({number // 10, number}):
        before, start = resident("VmHWM"), time.perf_counter()
        chosen = sm.sieve_batches(sm.FeatureBased, batches(batch_count), K, epsilon)
        value, seconds = float(chosen.value), time.perf_counter() - start
        grown = (resident("VmHWM") - before) / MIB
        total = batch_count * BATCH
        print(f"| {total:,} | {seconds:.0f} | {total / seconds:,.0f} | {grown:.1f} | {value:.1f} |")
    rows = np.concatenate(list(batches(number // 10)))
    whole = estimators.FeatureBased(K).fit(rows).gains_.astype(float).sum()
    print(f"\nGreedy on the first {len(rows):,} rows: {whole:.1f}")


def main() -> None:
    run_parts(
        "Selection among very many items",
        {"neighbors": benchmark_neighbors, "stream": benchmark_stream},
        repeats=5,
        points=100_000,
        neighbors=50,
        batches=100,
        epsilon=0.1,
        cache=Path(".cache/peers"),
    )


if __name__ == "__main__":
    main()
