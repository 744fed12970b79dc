"""Cost of clustering clients: ``python -m experiments.benchmarks.clustering``.

* ``kmeans``: on the spectral embedding of activations and on Gaussian points, against
  scikit-learn's ``KMeans`` with as many restarts, with its default threads and on one thread;
* ``pipeline``: from activations to weights: similarities, embedding, k-means, cluster weights;
* ``round``: the same within a round of the FEMNIST network, 18 clients of 160 examples, five
  epochs, and the pass over the examples that averages activations.

All times are in alternation, after compilation. Activations are log-softmax of random features,
with or without ground-truth groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import fedjax_fair as ff
from experiments.benchmarks.timing import (
    alternate,
    federated_round,
    print_header,
    print_row,
    random_data,
    run_parts,
)
from fedjax_fair.numerics.spectral_clustering import cluster_weights, kmeans, spectral_embedding
from fedjax_fair.rounds.round_context import make_context

RESTARTS = 10
# Clients, width of the activations, clusters.
SIZES = [(1000, 512, 20), (18, 512, 5)]


def benchmark_kmeans(options) -> None:
    """The same points, as many restarts."""
    print_header("points | ours, ms | scikit-learn | one thread | ours over it | over one thread")
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
                ours, peer, partial(_on_one_thread, peer), repeats=options.repeats
            )
            ms = (f"{1e3 * own.median:.2f}", *(f"{1e3 * t.median:.1f}" for t in (theirs, single)))
            ratios = (f"**{own.ratio_to(other):.2f}**" for other in (theirs, single))
            print_row(f"{count} x {num}, {name}", *ms, *ratios)
            print(f"| | inertia | {ours().inertia / peer():.4f} of theirs | | | |")


def benchmark_pipeline(options) -> None:
    """From activations to weights, and what of it the eigenvectors take."""
    print_header("activations, clusters | all, ms | similarities and eigenvectors, ms | share")
    for count, width, num in SIZES:
        activations = _activations(count, width, num)
        whole = jax.jit(partial(_weights, num=num))
        embed = jax.jit(partial(_embedding, num=num))
        both, first = alternate(
            partial(whole, activations), partial(embed, activations), repeats=options.repeats
        )
        ms = (f"{1e3 * times.median:.1f}" for times in (both, first))
        print_row(f"{count} x {width}, {num}", *ms, f"**{first.ratio_to(both):.2f}**")


def benchmark_round(options) -> None:
    """A round of local work, the activations of its models, and what clustering adds."""
    num_clients, num = 18, 5
    data = random_data((28, 28, 1), num_clients, 160, classes=62)
    method = federated_round(ff.models.femnist_cnn(62), ff.selectors.Full(), 64, epochs=5)
    data = jax.device_put(data)
    start = jax.jit(method.init)(jax.random.key(0), data)
    clients = jnp.arange(num_clients, dtype=jnp.int32)

    @jax.jit
    def activations(variables, data):
        def metric_fn(variables, features, labels):
            return jax.nn.log_softmax(
                method.model.features(variables.params, variables.state, features)
            )

        return make_context(method.model, jnp.int32(0), variables, data).client_means(
            metric_fn, clients
        )

    weights = jax.jit(partial(_weights, num=num))
    vectors = activations(start.variables, data)
    work, seen, weighed = alternate(
        partial(jax.jit(method.step), start, data),
        partial(activations, start.variables, data),
        partial(weights, vectors),
        repeats=min(3, options.repeats),
    )
    print_header("| ms | of the round")
    print(f"| a round of FedAvg | {1e3 * work.median:.0f} | 1 |")
    print(f"| activations of all examples | {1e3 * seen.median:.1f} | {seen.ratio_to(work):.4f} |")
    print(f"| clusters and weights | {1e3 * weighed.median:.2f} | {weighed.ratio_to(work):.6f} |")


def _activations(count: int, width: int, groups: int) -> Array:
    """Log-softmax of Gaussian features, around a center for each group if there are any."""
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
    parts = {"kmeans": benchmark_kmeans, "pipeline": benchmark_pipeline, "round": benchmark_round}
    run_parts("Cost of clustering clients", parts, repeats=11)


if __name__ == "__main__":
    main()
