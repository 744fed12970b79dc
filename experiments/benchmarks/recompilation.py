"""Seconds and compilations of repeated calls: ``python -m experiments.benchmarks.recompilation``.

* ``fit`` on digits (50 clients, logistic regression, five rounds): a first call, another seed, new
  equal objects, other numbers, and another cohort size, for three methods and for two selectors
  that are defined in the program itself, as in a notebook; each method in a fresh process.
  ``--cached`` starts a second process with ``ff.enable_compilation_cache()``.
* Eager calls of maximizers, rounding functions, federated algorithms and k-means at 200 items: a
  first call, and the median of later ones with new equal objects.
* Memory maps of the process before and after ``--calls`` calls of greedy, pipage and swap.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks.timing import CompileTimes, print_header, run_parts, run_python

FIT = """
import sys
import time
import jax
import fedjax_fair as ff

method, folder = sys.argv[1:]
if folder:
    ff.enable_compilation_cache(folder)
compiled = []
def keep(name, seconds, **_):
    if name == "/jax/core/compile/backend_compile_duration":
        compiled.append(seconds)
jax.monitoring.register_event_duration_secs_listener(keep)
data = ff.data.load("digits")

class Loudest(ff.Selector):
    cohort_size: int
    penalty: ff.Number = 0.0

    def select(self, key, state, context):
        losses = context.losses(context.variables) - self.penalty * context.sizes
        _, clients = jax.lax.top_k(losses, self.cohort_size)
        weights = jax.numpy.full(self.cohort_size, 1 / self.cohort_size)
        return ff.Cohort(clients, weights), state, {}

class Own(ff.selectors.UnionFL):
    def select(self, key, state, context):
        return super().select(key, state, context)

def call(rate=0.1, mu=1.0, cohort_size=10, seed=0):
    selector, aggregator = {
        "uniform + mean": lambda: (ff.selectors.Uniform(cohort_size), ff.aggregators.Mean()),
        "unionfl + equitable": lambda: (
            ff.selectors.UnionFL(cohort_size, mu), ff.aggregators.Equitable(3)
        ),
        "unionfl + q_fedavg": lambda: (
            ff.selectors.UnionFL(cohort_size, mu),
            ff.aggregators.QFedAvg(mu, learning_rate=rate),
        ),
        "own selector + mean": lambda: (Loudest(cohort_size, mu), ff.aggregators.Mean()),
        "own unionfl + equitable": lambda: (Own(cohort_size, mu), ff.aggregators.Equitable(3)),
    }[method]()
    solver = ff.solvers.SGD(rate, batch_size=10, epochs=1, prox=mu)
    round = ff.Round(ff.models.logistic(10), selector, solver, aggregator)
    compiled.clear()
    started = time.perf_counter()
    ff.fit(round, data, rounds=5, seeds=(seed,))
    print(time.perf_counter() - started, len(compiled))

call()
call(seed=1)
call()
call(rate=0.05, mu=0.5)
call(cohort_size=5)
"""
METHODS = (
    "uniform + mean",
    "unionfl + equitable",
    "unionfl + q_fedavg",
    "own selector + mean",
    "own unionfl + equitable",
)
CALLS = ("first fit", "other seed", "new equal objects", "other numbers", "other cohort size")


def main() -> None:
    parts = {"fit": benchmark_fit, "eager": benchmark_eager, "maps": count_maps}
    run_parts(__doc__, parts, repeats=3, cached=False, calls=10_000)


def benchmark_fit(options) -> None:
    """Medians over processes."""
    print_header(" | ".join(["method", *CALLS]))
    for method in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            cache = folder if options.cached else ""
            if options.cached:
                _fit(method, cache)
            runs = [_fit(method, cache) for _ in range(options.repeats)]
        cells = [
            f"{median(seconds for seconds, _ in each):.2f} s ({max(count for _, count in each)})"
            for each in zip(*runs, strict=True)
        ]
        print(f"| {method} |", " | ".join(cells), "|")


def _fit(method: str, folder: str) -> list[tuple[float, int]]:
    lines = (line.split() for line in run_python("-c", FIT, method, folder))
    return [(float(seconds), int(count)) for seconds, count in lines]


def eager_calls() -> dict[str, Callable[[], Any]]:
    """Each makes new objects of the same structure."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fedjax_fair import submodular as sm
    from fedjax_fair.numerics.spectral_clustering import kmeans
    from fedjax_fair.submodular import federated, matroids, rounding

    rng = np.random.default_rng(0)
    size, k = 200, 10
    similarity = rng.uniform(size=(size, size)).astype(np.float32)
    scores = rng.uniform(size=(50, size)).astype(np.float32)
    x = np.full(size, k / size, np.float32)
    points = jnp.asarray(rng.normal(size=(size, 4)), jnp.float32)
    blocks = np.arange(size) % 5

    def function() -> sm.SetFunction:
        return sm.facility_location(similarity)

    def partition() -> matroids.Matroid:
        return matroids.Partition(blocks, np.full(5, k // 5))

    key = jax.random.key(0)
    return {
        "greedy": lambda: sm.greedy(function(), k),
        "lazy_greedy": lambda: sm.lazy_greedy(function(), k),
        "stochastic_greedy": lambda: sm.stochastic_greedy(key, function(), k, candidates=40),
        "threshold_greedy": lambda: sm.threshold_greedy(function(), k, 0.2),
        "sieve_streaming": lambda: sm.sieve_streaming(function(), k, 0.2),
        "random_greedy": lambda: sm.random_greedy(key, function(), k),
        "double_greedy": lambda: sm.double_greedy(key, function()),
        "best_swap": lambda: sm.best_swap(function(), list(range(k))),
        "pipage": lambda: rounding.pipage(key, partition(), x),
        "swap": lambda: rounding.swap(key, partition(), x),
        "kmeans": lambda: kmeans(key, points, 3, 4),
        "fedcg": lambda: federated.fedcg(
            key, federated.facility_location(scores), partition(), 10, cohort_size=10
        ),
        "discrete_greedy": lambda: federated.discrete_greedy(
            key, federated.facility_location(scores), partition(), kappa=10.0
        ),
    }


def benchmark_eager(options) -> None:
    """Calls outside of any ``jax.jit``."""
    compiled = CompileTimes()
    print_header("call | first, ms | compilations | again, ms | compilations")
    for name, call in eager_calls().items():
        compiled.clear()
        first, count = _milliseconds(call), len(compiled)
        compiled.clear()
        again = median(_milliseconds(call) for _ in range(10 * options.repeats))
        print(f"| {name} | {first:.0f} | {count} | {again:.1f} | {len(compiled)} |")


def count_maps(options) -> None:
    """Memory maps, of which Linux allows a process 65,530."""
    chosen = {name: eager_calls()[name] for name in ("greedy", "pipage", "swap")}
    for call in chosen.values():
        call()
    before = _num_maps()
    for _ in range(-(-options.calls // len(chosen))):
        for call in chosen.values():
            call()
    print(f"{before} memory maps before, {_num_maps()} after {options.calls:,} calls")


def _milliseconds(call: Callable[[], Any]) -> float:
    import jax

    started = time.perf_counter()
    jax.block_until_ready(call())
    return 1e3 * (time.perf_counter() - started)


def _num_maps() -> int:
    return len(Path("/proc/self/maps").read_bytes().splitlines())


if __name__ == "__main__":
    main()
