"""What finding groups costs: ``python -m experiments.benchmarks.clustering``.

* ``kmeans``: on the spectral embedding of activations and on Gaussian points, against
  scikit-learn's ``KMeans`` of as many restarts, as it comes and on one thread;
* ``pipeline``: from activations to weights: similarities, embedding, k-means, cluster weights.

Everything is timed in alternation, compiled once before. Activations are log-softmax of random
features, with or without planted groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from experiments.benchmarks.timing import alternate, environment
from fedjax_fair.clustering import cluster_weights, kmeans, spectral_embedding

RESTARTS = 10
# Clients, width of the activations, clusters.
SIZES = [(1000, 512, 20), (18, 512, 5)]


def benchmark_kmeans(repeats: int) -> None:
    """The same points, as many restarts."""
    print("| points | ours, ms | scikit-learn | one thread | ours over it | over one thread |")
    print("|---|---|---|---|---|---|")
    for count, width, num in SIZES:
        solve = jax.jit(lambda key, points, num=num: kmeans(key, points, num, RESTARTS))
        embed = jax.jit(partial(_embedding, num=num))
        rng = np.random.default_rng(0)
        problems = {
            "embedded groups": embed(_activations(count, width, num)),
            "embedded noise": embed(_activations(count, width, 0)),
            "Gaussian": jnp.asarray(rng.normal(size=(count, num)), jnp.float32),
        }
        for name, points in problems.items():
            ours = partial(solve, jax.random.key(0), points)
            peer = partial(_by_sklearn, np.asarray(points), num)
            own, theirs, single = alternate(
                ours, peer, partial(_on_one_thread, peer), repeats=repeats
            )
            print(
                f"| {count} x {num}, {name} | {1e3 * own.median:.2f} | {1e3 * theirs.median:.1f} | "
                f"{1e3 * single.median:.1f} | **{own.ratio_to(theirs):.2f}** | "
                f"**{own.ratio_to(single):.2f}** |",
                flush=True,
            )
            print(f"| | inertia | {ours().inertia / peer():.4f} of theirs | | | |")


def benchmark_pipeline(repeats: int) -> None:
    """From activations to weights, and what of it the eigenvectors take."""
    print("| activations, clusters | all, ms | similarities and eigenvectors, ms | share |")
    print("|---|---|---|---|")
    for count, width, num in SIZES:
        activations = _activations(count, width, num)
        whole = jax.jit(partial(_weights, num=num))
        embed = jax.jit(partial(_embedding, num=num))
        both, first = alternate(
            partial(whole, activations), partial(embed, activations), repeats=repeats
        )
        print(
            f"| {count} x {width}, {num} | {1e3 * both.median:.1f} | {1e3 * first.median:.1f} | "
            f"**{first.ratio_to(both):.2f}** |",
            flush=True,
        )


def _activations(count: int, width: int, groups: int) -> Array:
    """Log-softmax of Gaussian features, around a centre for each group if there are any."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, width))
    if groups:
        features = 0.3 * features + rng.normal(size=(groups, width))[rng.integers(0, groups, count)]
    return jax.nn.log_softmax(jnp.asarray(features, jnp.float32))


def _embedding(activations: Array, num: int) -> Array:
    return spectral_embedding(activations @ activations.T, num)


def _weights(activations: Array, num: int) -> Array:
    labels = kmeans(jax.random.key(0), _embedding(activations, num), num, RESTARTS).labels
    return cluster_weights(labels, num)


def _by_sklearn(points: np.ndarray, num: int) -> float:
    from sklearn.cluster import KMeans

    model = KMeans(num, n_init=RESTARTS, random_state=0)  # pyright: ignore[reportArgumentType]
    return float(model.fit(points).inertia_)  # pyright: ignore[reportArgumentType]


def _on_one_thread(call: Callable[[], float]) -> float:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return call()


def main() -> None:
    """Prints tables for ``docs/performance.md``."""
    parser = argparse.ArgumentParser(description="What finding groups costs")
    parts = ("kmeans", "pipeline")
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    print(environment(), end="\n\n")
    if "kmeans" in options.only:
        benchmark_kmeans(options.repeats)
    if "pipeline" in options.only:
        benchmark_pipeline(options.repeats)


if __name__ == "__main__":
    main()
