"""Choosing among very many items: ``python -m experiments.benchmarks.many_items``.

* ``neighbors``: facility location of 100,000 points and their nearest neighbors, beside apricot's;
* ``stream``: 100 of a million rows that come in batches, and the memory that it takes. Linux only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from experiments.benchmarks.memory import MIB, resident
from experiments.benchmarks.peers.environment import Worker
from experiments.benchmarks.timing import environment
from fedjax_fair import submodular as sm
from fedjax_fair.submodular import estimators

K = 100
BATCH, FEATURES = 10_000, 64


def benchmark_neighbors(points: int, count: int, repeats: int, cache: Path) -> None:
    """The same sparse similarities for both, in alternation."""
    rows = np.random.default_rng(0).normal(size=(points, 20)).astype(np.float32)
    start = time.perf_counter()
    distances, items = NearestNeighbors(n_neighbors=count).fit(rows).kneighbors(rows)
    print(f"{count} neighbors of {points} points: {time.perf_counter() - start:.0f} s", end="\n\n")
    near = (distances.max() - distances).astype(np.float32)
    starts = np.arange(points + 1) * count
    matrix = sparse.csr_matrix((near.ravel(), items.ravel(), starts), shape=(points, points))
    model, worker = estimators.FacilityLocation(K, metric="precomputed"), Worker("apricot", cache)
    model.fit(matrix)  # Which compiles.
    before, ours, theirs = resident("VmHWM"), [], []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "near.npz")
        sparse.save_npz(path, matrix, compressed=False)
        for _ in range(repeats):
            start = time.perf_counter()
            model.fit(matrix)
            ours.append(time.perf_counter() - start)
            theirs.append(worker.request(matrix=path, k=K, optimizer="lazy"))
    worker.close()
    fits = np.array([answer["fit"] for answer in theirs])
    selections = np.array([answer["seconds"] for answer in theirs])
    print("| | `fit`, s | selection, s | value |")
    print("|---|---|---|---|")
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


def benchmark_stream(number: int, epsilon: float) -> None:
    """The time of a stream, and by how much memory grows after its first batches."""
    sm.sieve_batches(sm.FeatureBased, batches(2), K, epsilon)  # Which compiles.
    Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak.
    print("| rows | s | rows a second | memory beyond that of two batches, MiB | value |")
    print("|---|---|---|---|---|")
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
    """Prints tables for ``docs/performance.md``."""
    parser = argparse.ArgumentParser(description="Choosing among very many items")
    parser.add_argument("parts", nargs="*", help="neighbors, stream; by default both")
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--neighbors", type=int, default=50)
    parser.add_argument("--batches", type=int, default=100, help=f"of {BATCH} rows")
    parser.add_argument("--epsilon", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"))
    options = parser.parse_args()
    parts = options.parts or ["neighbors", "stream"]
    print(environment(), end="\n\n")
    if "neighbors" in parts:
        benchmark_neighbors(options.points, options.neighbors, options.repeats, options.cache)
    if "stream" in parts:
        benchmark_stream(options.batches, options.epsilon)


if __name__ == "__main__":
    main()
