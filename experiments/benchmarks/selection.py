"""Cost of selecting clients: ``python -m experiments.benchmarks.selection``.

* ``greedy``: facility location on a similarity matrix, against apricot-select and submodlib-py in
  separate environments that the first call creates;
* ``distances``: between gradients, against the matrix product and scikit-learn's distances;
* ``round``: SubTrunc and DivFL rounds against random ones of the same local training;
* ``kept``: rounds among many clients with stored distances, and with recomputed ones;
* ``population``: losses and gradients of all clients against one gradient pass;
* ``sketch``: loss of the objective by sketches of gradients of real clients (with ``--tfds-dir``).

All times are in alternation. Matrices and images are random; times do not depend on them, except
where the number of changed points in facility location matters, for which points are Gaussian.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_fair as ff
from experiments.benchmarks.peers.environment import Worker
from experiments.benchmarks.timing import (
    alternate,
    federated_round,
    print_header,
    print_row,
    random_data,
    run_parts,
)
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.numerics.sketch import CountSketch, ravel
from fedjax_fair.rounds.round import run
from fedjax_fair.selectors.gradients import Stale, Updates
from fedjax_fair.submodular import (
    estimators,
    facility_location,
    facility_location_from_distances,
    greedy,
    stochastic_greedy,
)

SIZES = [(1000, 10), (1000, 100), (10_000, 100)]
PEERS = {
    "apricot": ("naive", "lazy", "two-stage"),
    "submodlib": ("LazyGreedy", "NaiveGreedy"),
}
TOO_SLOW = {("submodlib", "NaiveGreedy", 10_000)}  # Most of a minute a call.


def benchmark_greedy(options) -> None:
    """Greedy facility location, compared with other libraries in one run."""
    workers = {name: Worker(name, options.cache) for name in PEERS}
    print_header(
        "items, k | program | selection, ms | as `fit` | times ours | `fit` times ours | value"
    )
    with tempfile.TemporaryDirectory() as folder:
        for size, k in SIZES:
            matrix = _similarities(size)
            path = str(Path(folder) / f"{size}.npy")
            np.save(path, matrix)
            _compare(matrix, path, k, options.repeats, workers)
    for worker in workers.values():
        worker.close()


def _compare(matrix: np.ndarray, path: str, k: int, repeats: int, workers: dict) -> None:
    size = matrix.shape[0]
    device = jax.device_put(matrix)
    solve = jax.jit(lambda similarity: greedy(facility_location(similarity), k))
    model = estimators.FacilityLocation(k, metric="precomputed")
    # The fastest pass over the matrix, faster than ``jnp.sum``: the gains of all items alone.
    read = jax.jit(lambda similarity: facility_location(similarity).init())
    key = jax.random.key(0)
    sample = jax.jit(
        lambda similarity: stochastic_greedy(
            key, facility_location_from_distances(similarity), k, size // k
        )
    )
    for warm in (solve, read, sample):
        jax.block_until_ready(warm(device))
    model.fit(matrix)
    others = [
        (name, optimizer)
        for name, optimizers in PEERS.items()
        for optimizer in optimizers
        if (name, optimizer, size) not in TOO_SLOW
    ]
    own_calls = {
        "solve": lambda: solve(device),
        "fit": lambda: model.fit(matrix).ranking_,
        "read": lambda: read(device),
        "sample": lambda: sample(device),
    }
    times: dict[str, list[float]] = {name: [] for name in own_calls}
    theirs: dict[tuple[str, str], list[dict]] = {other: [] for other in others}
    # A repetition is a few calls of each, so that a small matrix is in the cache for all of them.
    burst = 5 if size <= 1000 else 1
    for _ in range(repeats):
        for name, call in own_calls.items():
            times[name].append(float(np.median([_seconds(call) for _ in range(burst)])))
        for name, optimizer in others:
            answers = [
                workers[name].request(matrix=path, k=k, optimizer=optimizer) for _ in range(burst)
            ]
            middle = {
                clock: float(np.median([answer[clock] for answer in answers]))
                for clock in ("seconds", "fit")
            }
            theirs[name, optimizer].append(answers[0] | middle)
    ours, fits, reads, samples = (np.array(times[name]) for name in own_calls)
    own = 1e3 * np.median(ours)
    value = float(matrix[:, np.asarray(solve(device).items)].max(axis=1).astype(np.float64).sum())
    fit = np.median(fits)
    print(f"| {size}, {k} | ours | **{own:.2f}** | {1e3 * fit:.1f} | 1 | 1 | 1 |")
    for (name, optimizer), answers in theirs.items():
        seconds = np.array([answer["seconds"] for answer in answers])
        whole = np.array([answer["fit"] for answer in answers])
        reached = matrix[:, answers[0]["items"]].max(axis=1).astype(np.float64).sum() / value
        print(
            f"| | {name} {optimizer} | {1e3 * np.median(seconds):.2f} | "
            f"{1e3 * np.median(whole):.0f} | {np.median(seconds / ours):.1f} | "
            f"{np.median(whole / fits):.1f} | {reached:.6f} |"
        )
    touched = (1 + _rows_touched(matrix, np.asarray(solve(device).items)) / size) * np.median(reads)
    print(f"| | reading what changes | {1e3 * touched:.2f} | | {1e3 * touched / own:.2f} | | |")
    print(f"| | ours, stochastic | {1e3 * np.median(samples):.2f} | | | | |")


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def _similarities(size: int) -> np.ndarray:
    """Largest distance less distance of Gaussian points, as float32."""
    points = np.random.default_rng(0).normal(size=(size, 20)).astype(np.float32)
    distances = np.asarray(pairwise_distances(jnp.asarray(points)))
    return np.ascontiguousarray(distances.max() - distances)


def _rows_touched(matrix: np.ndarray, items: np.ndarray) -> int:
    """Counts points that are served better, over all steps but the last; each is a row to read."""
    best, touched = np.zeros(matrix.shape[0], np.float32), 0
    for item in items[:-1]:
        touched += int((matrix[:, item] > best).sum())
        best = np.maximum(best, matrix[:, item])
    return touched


def benchmark_distances(options) -> None:
    """Distances of gradients against the product that they need."""
    from sklearn.metrics import pairwise_distances as by_sklearn

    width = 61_706
    print_header("clients | distances, ms | bare product, ms | ratio | scikit-learn / ours")
    for count in (100, 1000):
        rng = np.random.default_rng(0)
        common = rng.normal(size=width).astype(np.float32)
        apart = rng.normal(size=(count, width)).astype(np.float32)
        vectors = jax.device_put(common + 0.5 * apart)
        ours = jax.jit(pairwise_distances)
        product = jax.jit(lambda rows: rows @ rows.T)
        times = alternate(
            partial(ours, vectors), partial(product, vectors), repeats=options.repeats
        )
        peer = "-"
        if count == 100:  # By itself, since it leaves nothing of ours in the cache.
            again = alternate(
                partial(ours, vectors),
                partial(by_sklearn, np.asarray(vectors)),
                repeats=options.repeats,
            )
            peer = f"{again[1].ratio_to(again[0]):.0f}"
        ms = (f"{1e3 * each.median:.1f}" for each in times)
        print_row(count, *ms, f"**{times[0].ratio_to(times[1]):.2f}**", peer)


def benchmark_round(options) -> None:
    """Rounds of LeNet with 100 clients, 10 of which take 50 steps of 50 images."""
    data = random_data((28, 28, 1), 100, 600)
    model = ff.models.lenet(10)
    selectors = {
        "random": 10,
        "subtrunc, updates": ff.selectors.SubTrunc(10, 0.5, gradients=Updates(0.01)),
        "subtrunc, stale": ff.selectors.SubTrunc(10, 0.5, gradients=Stale()),
        "divfl, stale": ff.selectors.DivFL(10, gradients=Stale()),
        "subtrunc, fresh": ff.selectors.SubTrunc(10, 0.5),
        "divfl, fresh": ff.selectors.DivFL(10),
    }
    measure = jax.jit(partial(client_gradients, model))
    start = federated_round(model, 10, 50, steps=50).init(jax.random.key(0), data)
    calls = [partial(measure, start.variables, data.train, jnp.arange(10, dtype=jnp.int32))]
    for selector in selectors.values():
        round = federated_round(model, selector, 50, steps=50)
        state = jax.jit(round.init)(jax.random.key(0), data)
        calls.append(partial(jax.jit(round.step), state, data))
    gradients, random, *others = alternate(*calls, repeats=options.repeats)
    print_header("round | s | times random | times random and the gradients of the cohort")
    print(f"| random | {random.median:.2f} | 1 | - |")
    for name, times in zip(list(selectors)[1:], others, strict=True):
        both = np.median(times.seconds / (random.seconds + gradients.seconds))
        print(f"| {name} | {times.median:.2f} | **{times.ratio_to(random):.2f}** | {both:.2f} |")


class Anew(Stale):
    """Stale gradients, all distances between which are computed in every round."""

    updates_only_responders = False


def benchmark_kept(options) -> None:
    """Rounds among many clients whose distances are kept, or computed in every round."""
    rounds = 5
    model = ff.models.lenet(10)
    print_header("clients, LeNet | random, s a round | DivFL, stale | all distances anew")
    for clients, size in ((100, 600), (1000, 60), (3000, 20)):
        data = random_data((28, 28, 1), clients, size)
        calls = []
        for selector in (10, *(ff.selectors.DivFL(10, gradients=g) for g in (Stale(), Anew()))):
            round = federated_round(model, selector, 10, epochs=1)
            state = jax.jit(round.init)(jax.random.key(0), data)
            calls.append(partial(jax.jit(ff.run, static_argnums=3), round, state, data, rounds))
        random, kept, whole = alternate(*calls, repeats=options.repeats)
        ratios = f"**{kept.ratio_to(random):.2f}**", f"{whole.ratio_to(random):.2f}"
        print_row(f"{clients} of {size} images", f"{random.median / rounds:.3f}", *ratios)


def benchmark_population(options) -> None:
    """All clients' gradients against one flat pass over as many examples."""
    print_header("clients x examples | per client, examples/s | flat, examples/s | ratio")
    model = ff.models.lenet(10)
    for clients, size in ((50, 600), (100, 166)):
        data = random_data((28, 28, 1), clients, size)
        variables = model.init(jax.random.key(0), data.train.features[:1])
        total = clients * size
        flat = jax.jit(partial(_flat_gradient, model, chunk=total // (total // 200)))
        ours = jax.jit(partial(client_gradients, model))
        times = alternate(
            partial(ours, variables, data.train),
            partial(flat, variables, data.train),
            repeats=options.repeats,
        )
        rates = (f"{total / each.median:,.0f}" for each in times)
        print_row(f"{clients} x {size}", *rates, f"**{1 / times[0].ratio_to(times[1]):.2f}**")


def _flat_gradient(model, variables, examples, chunk: int):
    """Gradient of the summed loss over all examples, ``chunk`` of them at a time."""

    def loss(params, rows):
        features = examples.features[rows]
        logits, _ = model.apply(params, variables.state, features, train=False, key=None)
        return optax.softmax_cross_entropy_with_integer_labels(logits, examples.labels[rows]).sum()

    rows = examples.order[: examples.order.shape[0] // chunk * chunk].reshape(-1, chunk)
    zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, variables.params)
    return jax.lax.fori_loop(
        0,
        rows.shape[0],
        lambda i, sums: jax.tree.map(
            jnp.add, sums, jax.value_and_grad(loss)(variables.params, rows[i])
        ),
        zero,
    )


def benchmark_sketch(options) -> None:
    """Share of the objective that cohorts found from sketches reach, on MNIST clients."""
    data = ff.data.load("mnist", data_dir=options.tfds_dir)
    model = ff.models.lenet(10)
    round = federated_round(model, 10, 50, steps=50)
    distances = jax.jit(
        lambda variables, project: pairwise_distances(
            client_gradients(model, variables, data.train, project=project).gradient
        ),
        static_argnums=1,
    )
    print_header("numbers kept | at the start | after 5 rounds | after 20 rounds")
    states = [round.init(jax.random.key(0), data)]
    for rounds in (5, 15):
        states.append(jax.jit(run, static_argnums=(0, 3))(round, states[-1], data, rounds)[0])
    functions = []
    for state in states:
        functions.append(facility_location_from_distances(distances(state.variables, ravel)))
    for size in (64, 256, 1024, 4096):
        shares = []
        for state, function in zip(states, functions, strict=True):
            reached = []
            for seed in range(3):
                near = distances(state.variables, CountSketch(size, seed))
                items = greedy(facility_location_from_distances(near), 10).items
                mask = jnp.zeros(function.size, bool).at[items].set(True)
                reached.append(function.value(mask) / greedy(function, 10).value)
            shares.append(float(np.mean(reached)))
        print(f"| {size} | " + " | ".join(f"{100 * share:.2f} %" for share in shares) + " |")


def main() -> None:
    parts = {
        "greedy": benchmark_greedy,
        "distances": benchmark_distances,
        "round": benchmark_round,
        "kept": benchmark_kept,
        "population": benchmark_population,
        "sketch": benchmark_sketch,
    }
    cache = Path(".cache/peers")
    run_parts("Cost of selecting clients", parts, repeats=7, cache=cache, tfds_dir=None)


if __name__ == "__main__":
    main()
