"""Cost of federated maximization.

Run ``python -m experiments.benchmarks.federated_maximization``. On random ratings of the shape of
MovieLens-1M (6,040 clients, 3,706 items, 4.5 % rated), in alternation and after compilation:

* ``gradient``: the exact multilinear gradients of all clients and their mean, against sparse NumPy
  and our implementation for dense scores;
* ``fedcg``: 100 rounds of FedCG, all clients voting for 20 items, against NumPy;
* ``greedy``: 50 items by centralized greedy, against submodlib-py and NumPy;
* ``memory``: the peak of a new process with 1,000,000 clients of 20 real scores each.
"""

from __future__ import annotations

import resource
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.peers.environment import Worker
from experiments.benchmarks.timing import alternate, in_new_process, print_header, run_parts
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids

CLIENTS, ITEMS, RATED = 6040, 3706, 1_000_209
K, ROUNDS, LEVELS, POINTS = 20, 100, 5, 20


class Ratings:
    """A list of ratings from 1 to 5, of popular and rare items by busy and less busy clients."""

    def __init__(self):
        rng = np.random.default_rng(0)
        # No client has rated less than about 40, so that all have K favorites, as in MovieLens.
        busy = np.maximum(rng.lognormal(0, 1, CLIENTS), 0.4)
        popular = rng.permutation(np.arange(1, ITEMS + 1) ** -0.8)
        # A pair is rated with a probability that grows with both.
        rates = np.outer(busy / busy.mean(), popular / popular.mean())
        rates *= RATED / rates.size
        for _ in range(20):
            rates *= RATED / (1 - np.exp(-rates)).sum()
        self.owners, self.items = np.nonzero(rng.random(rates.shape) < 1 - np.exp(-rates))
        self.scores = rng.choice(
            np.arange(1, 6), self.owners.size, p=[0.06, 0.11, 0.26, 0.35, 0.22]
        )

    def sparse(self) -> fed.SparseScores:
        """As the library takes it."""
        return fed.sparse_scores(
            self.owners, self.items, self.scores, num_clients=CLIENTS, size=ITEMS
        )

    def matrix(self) -> np.ndarray:
        """With a 0 for a pair that is not rated."""
        matrix = np.zeros((CLIENTS, ITEMS), np.float32)
        matrix[self.owners, self.items] = self.scores
        return matrix


class ByNumpy:
    """The same in NumPy, all clients at once, touching rated pairs alone."""

    def __init__(self, ratings: Ratings):
        self.owners, self.items = ratings.owners, ratings.items
        self.scores = ratings.scores.astype(np.float64)
        self.cells = self.owners * LEVELS + ratings.scores - 1

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Of all clients, an entry a rated pair; products over levels as sums of logarithms."""
        absent = np.log1p(-x)[self.items]
        cells = np.bincount(self.cells, absent, CLIENTS * LEVELS).reshape(-1, LEVELS)
        nothing = np.exp(np.cumsum(cells[:, ::-1], axis=1)[:, ::-1])
        return np.cumsum(nothing, axis=1).ravel()[self.cells] / np.exp(absent)

    def mean_gradient(self, x: np.ndarray) -> np.ndarray:
        """Over all clients, an entry an item."""
        return np.bincount(self.items, self.gradient(x), ITEMS) / CLIENTS

    def fedcg(self) -> np.ndarray:
        """All clients vote for the ``K`` items of the largest entries."""
        x = np.zeros(ITEMS)
        rows = np.zeros((CLIENTS, ITEMS), np.float32)
        for _ in range(ROUNDS):
            # A coordinate of 1 would need another form; 1 / ROUNDS a round reaches it last.
            rows[self.owners, self.items] = self.gradient(np.minimum(x, 1 - 1e-9))
            votes = np.argpartition(-rows, K, axis=1)[:, :K]
            x += np.bincount(votes.ravel(), minlength=ITEMS) / (CLIENTS * ROUNDS)
        return x

    def greedy(self, k: int) -> list[int]:
        """Greedy that computes the gains of all items at every step."""
        best, chosen = np.zeros(CLIENTS), []
        for _ in range(k):
            more = np.maximum(self.scores - best[self.owners], 0)
            chosen.append(int(np.argmax(np.bincount(self.items, more, ITEMS))))
            own = self.items == chosen[-1]
            np.maximum.at(best, self.owners[own], self.scores[own])
        return chosen


def benchmark_gradient(options) -> None:
    """The mean of all clients' gradients at several points, as an ascent needs it."""
    ratings = Ratings()
    by_numpy = ByNumpy(ratings)
    points = np.random.default_rng(1).uniform(0, 0.05, (POINTS, ITEMS))
    sparse, matrix = ratings.sparse(), jnp.asarray(ratings.matrix())
    compute = jax.jit(lambda scores, points: jax.lax.map(partial(_mean_gradient, scores), points))
    inside = jnp.asarray(points, jnp.float32)

    def reference():
        return np.stack([by_numpy.mean_gradient(point) for point in points])

    ours = partial(compute, sparse, inside)
    own, simple = alternate(ours, reference, repeats=options.repeats)
    apart = np.max(np.abs(np.asarray(ours()) - reference())) / reference().max()
    one, whole = alternate(
        partial(compute, sparse, inside[:1]),
        partial(compute, matrix, inside[:1]),
        repeats=options.repeats,
    )
    print_header("mean gradient of all clients | ms | ours over it | largest difference")
    print(f"| ours, one of {POINTS} points | {1e3 * own.median / POINTS:.2f} | 1 | |")
    print(
        f"| NumPy | {1e3 * simple.median / POINTS:.2f} | **{own.ratio_to(simple):.2f}** | "
        f"{apart:.0e} |"
    )
    dense = f"{1e3 * whole.median:.0f} | **1/{whole.ratio_to(one):.0f}**"
    print(f"| ours from a matrix, one point alone | {dense} | |")


def _mean_gradient(scores, x):
    problem = fed.facility_location(scores)
    weights = jnp.full(problem.num_clients, 1 / problem.num_clients)
    gradients = problem.extensions(jax.random.key(0), x).gradients
    return fed.secure_aggregate(gradients.messages(weights), problem.size)


def benchmark_fedcg(options) -> None:
    """Whole runs; ours also computes values, bounds and progress of every round."""
    ratings = Ratings()
    by_numpy, matroid = ByNumpy(ratings), matroids.Uniform(K, ITEMS)
    problem = fed.facility_location(ratings.sparse())
    ours = partial(fed.fedcg, jax.random.key(0), problem, matroid, ROUNDS)
    own, theirs = alternate(ours, by_numpy.fedcg, repeats=max(3, options.repeats // 2))
    value = jax.jit(lambda problem, x: problem.extensions(None, x).values.mean())
    reached, reference = (
        float(value(problem, jnp.asarray(x, jnp.float32))) for x in (ours().x, by_numpy.fedcg())
    )
    print_header(f"FedCG, k = {K}, T = {ROUNDS} | s | ours over it | extension")
    print(f"| ours | {own.median:.2f} | 1 | {reached:.5f} |")
    ratio = own.ratio_to(theirs)
    print(f"| NumPy | {theirs.median:.2f} | **{ratio:.3f}** | {reference:.5f} |")


def benchmark_greedy(options) -> None:
    """Selection alone; submodlib gets the matrix, of which it makes a copy beforehand."""
    ratings = Ratings()
    k, by_numpy, matrix = 50, ByNumpy(ratings), ratings.matrix()
    matroid = matroids.Uniform(k, ITEMS)

    problem = fed.facility_location(ratings.sparse())

    def ours():
        return fed.centralized_greedy(problem, matroid).items

    worker = Worker("submodlib", options.cache)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "ratings.npy")
        np.save(path, matrix)
        answers = []

        def peer():
            answers.append(worker.request(matrix=path, k=k, optimizer="LazyGreedy"))

        own, simple, _ = alternate(ours, partial(by_numpy.greedy, k), peer, repeats=options.repeats)
    worker.close()
    # Its own clock, so that passing requests does not count.
    seconds = np.array([answer["seconds"] for answer in answers[1:]])
    sets = {"ours": ours(), "NumPy": by_numpy.greedy(k), "submodlib": answers[0]["items"]}
    values = {
        name: matrix[:, np.asarray(items)].max(axis=1).astype(np.float64).mean()
        for name, items in sets.items()
    }
    print_header(f"greedy, k = {k} | ms | ours over it | value")
    for name, times in (("ours", own.seconds), ("NumPy", simple.seconds), ("submodlib", seconds)):
        ratio = np.median(own.seconds / times)
        print(f"| {name} | {1e3 * np.median(times):.1f} | **{ratio:.3f}** | {values[name]:.6f} |")


def benchmark_memory(options) -> None:
    """A million clients from lists to a fractional point and a greedy set."""
    clients, size, own = 1_000_000, 1000, 20
    rng = np.random.default_rng(0)
    starts = rng.integers(0, size, (clients, 1), np.int32)
    # Different items for a client: steps of 47 with less than 47 added.
    items = (
        starts + 47 * np.arange(own, dtype=np.int32) + rng.integers(0, 40, starts.shape)
    ) % size
    sparse = fed.sparse_scores(
        np.repeat(np.arange(clients, dtype=np.int32), own),
        items.ravel().astype(np.int32),
        rng.random(items.size, np.float32),
        num_clients=clients,
        size=size,
    )
    del items, starts
    matroid, key = matroids.Uniform(K, size), jax.random.key(0)

    problem = fed.facility_location(sparse)
    prepared = _peak()
    jax.block_until_ready(fed.fedcg(key, problem, matroid, 2).x)
    jax.block_until_ready(fed.centralized_greedy(problem, matroid).values)
    held = tree_bytes(sparse) / 2**30
    print_header("1,000,000 clients x 20 scores | GiB")
    print(f"| the problem | {held:.2f} |")
    print(f"| peak while it is made from lists | {prepared:.2f} |")
    print(f"| peak of the process, after 2 rounds of FedCG and greedy | **{_peak():.2f}** |")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parts = {
        "gradient": benchmark_gradient,
        "fedcg": benchmark_fedcg,
        "greedy": benchmark_greedy,
        "memory": partial(in_new_process, benchmark_memory),
    }
    run_parts("Cost of federated maximization", parts, repeats=7, cache=Path(".cache/peers"))


if __name__ == "__main__":
    main()
