"""Cost of reference clients: ``python -m experiments.benchmarks.reference_clients``.

Cohorts of 100 from a pool of 1,000, on the dataset of ``benchmarks.million`` at the initial
logistic model, among 10,000 and 100,000 clients.

* ``loss``: the loss of representation G, with full and sketched gradients, of a cohort that was
  selected for some reference clients, against one for all clients from the same pool; and the error
  of the sample's estimate of G.
* ``designs``: the same loss for other samples of the same size, from sketches.
"""

from __future__ import annotations

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.million import COHORT, POOL, WIDTH, make_federation
from experiments.benchmarks.timing import print_header, start
from fedjax_fair.base import ClientGradients
from fedjax_fair.client_evaluation import client_gradients
from fedjax_fair.numerics.distances import nearest
from fedjax_fair.numerics.sketch import CountSketch, ravel
from fedjax_fair.simulate import make_context
from fedjax_fair.submodular import facility_location_from_features, greedy

REFERENCES = (1_000, 2_000, 5_000, 10_000, 20_000)
MODEL = ff.models.logistic(10)


def known_of(data, project) -> ClientGradients:
    """Gradients of all clients at the initial model."""
    variables = MODEL.init(jax.random.key(0), data.train.features[:1])
    return jax.jit(partial(client_gradients, MODEL, project=project))(variables, data.train)


def selection(data, references: int | None):
    """``(key, gradients) -> (clients, info)`` of DivFL, with remembered gradients."""
    selector = ff.selectors.DivFL(
        COHORT, pool=POOL, num_reference_clients=references, gradients="stale"
    )

    @jax.jit
    def select(key, known):
        variables = MODEL.init(jax.random.key(0), data.train.features[:1])
        context = make_context(MODEL, jnp.int32(0), variables, data)
        cohort, _, info = selector.select(key, (known, (), ()), context)
        return cohort.clients, info

    return select


@jax.jit
def mean_distance(rows, clients):
    """Of all clients from the nearest of some."""
    return jnp.mean(nearest(rows, clients)[1])


def losses(data, known: ClientGradients, keys) -> dict[int, np.ndarray]:
    """For each number of reference clients and key three shares.

    Of G they are what the cohort loses, and what its sample says too much; of the mean distance
    from the nearest participant, the standard error that a round states.
    """
    exact = [selection(data, None)(key, known)[1] for key in keys]
    shares = {}
    for references in REFERENCES:
        if references > known.loss.shape[0]:
            continue
        select, rows = selection(data, references), []
        for key, best in zip(keys, exact, strict=True):
            clients, info = select(key, known)
            distance = float(mean_distance(known.gradient, clients))
            # The pool is the same with one key, and so is the distance of the phantom.
            phantom = float(best["representation"] + best["representation_bound"])
            reached, said = phantom - distance, float(info["representation"])
            error = float(info["standard_error"]) / distance
            rows.append((1 - reached / float(best["representation"]), said / reached - 1, error))
        shares[references] = np.array(rows)
    return shares


def print_losses(seeds: int, sizes: list[int]) -> None:
    """A line for each number of clients and reference clients: gradients in full, then sketches."""
    print_header(
        "clients | reference clients | loss of G, full gradients | overestimate | "
        "loss of G, sketches | overestimate | standard error of the distance"
    )
    for size in sizes:
        data = jax.tree.map(jnp.asarray, make_federation(size))
        keys = jax.random.split(jax.random.key(0), seeds)
        kinds = [losses(data, known_of(data, p), keys) for p in (ravel, CountSketch(WIDTH))]
        for references in kinds[0]:
            cells = []
            for kind in kinds:
                mean, spread = kind[references].mean(axis=0), kind[references].std(axis=0, ddof=1)
                cells += [
                    f"{100 * mean[0]:.3f} ± {100 * spread[0]:.3f} %",
                    f"{100 * mean[1]:.2f} %",
                ]
            error = 100 * kinds[1][references][:, 2].mean()
            print(f"| {size:,} | {references:,} |", " | ".join(cells), f"| {error:.2f} % |")


def uniform(rng, rows, pool, references):
    """Of all clients alike."""
    count = len(rows)
    return _weights(count, rng.permutation(count)[:references], count / references)


def pool_and_uniform(rng, rows, pool, references):
    """The pool for itself, and a uniform sample of the others: what the selectors do."""
    others = _others(rows, pool)
    chosen = others[rng.permutation(len(others))[:references]]
    return _weights(len(rows), chosen, len(others) / references, pool)


def pool_and_long(rng, rows, pool, references):
    """Others in proportion to how long their gradient is beyond the mean (importance)."""
    others = _others(rows, pool)
    lengths = _lengths(rows)[others]
    shares = np.minimum(1, references * lengths / lengths.sum())
    order = rng.permutation(len(others))
    ends = np.cumsum(shares[order])
    chosen = order[np.searchsorted(ends, np.arange(rng.random(), ends[-1]))]
    return _weights(len(rows), others[chosen], 1 / shares[chosen], pool)


def pool_and_strata_of_length(rng, rows, pool, references):
    """Others at equal steps of the order by that length."""
    others = _others(rows, pool)
    return _at_steps(rng, len(rows), others[np.argsort(_lengths(rows)[others])], pool, references)


def pool_and_strata_of_neighbors(rng, rows, pool, references):
    """Others at equal steps of the order by the nearest of the pool, and the distance from it."""
    others = _others(rows, pool)
    places, distances = jax.jit(nearest)(rows, pool)
    order = np.lexsort((np.asarray(distances)[others], np.asarray(places)[others]))
    return _at_steps(rng, len(rows), others[order], pool, references)


DESIGNS = (
    uniform,
    pool_and_uniform,
    pool_and_long,
    pool_and_strata_of_length,
    pool_and_strata_of_neighbors,
)


def _others(rows, pool) -> np.ndarray:
    return np.setdiff1d(np.arange(len(rows)), pool)


def _lengths(rows) -> np.ndarray:
    rows = np.asarray(rows)
    return np.linalg.norm(rows - rows.mean(axis=0), axis=1)


def _at_steps(rng, count, ordered, pool, references):
    step = len(ordered) / references
    places = ((np.arange(references) + rng.random()) * step).astype(int)
    return _weights(count, ordered[places], step, pool)


def _weights(count, chosen, weight, pool=()) -> np.ndarray:
    """Returns how many clients each client represents."""
    weights = np.zeros(count, np.float32)
    weights[chosen] = weight
    weights[np.asarray(pool, int)] = 1
    return weights


@jax.jit
def _chosen(rows, pool, weights):
    function = facility_location_from_features(rows, pool, weights=weights)
    return greedy(function, COHORT).items


@jax.jit
def _worth(rows, pool, items):
    function = facility_location_from_features(rows, pool)
    return function.value(jnp.zeros(function.size, bool).at[items].set(True))


def print_designs(seeds: int, sizes: list[int]) -> None:
    """A line for each number of clients and reference clients, a column for each design."""
    names = [design.__name__.replace("_", " ") for design in DESIGNS]
    print_header(" | ".join(["clients", "reference clients", *names]))
    for size in sizes:
        data = jax.tree.map(jnp.asarray, make_federation(size))
        rows = known_of(data, CountSketch(WIDTH)).gradient
        rngs = [np.random.default_rng(seed) for seed in range(seeds)]
        pools = [np.sort(rng.permutation(size)[:POOL]).astype(np.int32) for rng in rngs]
        everyone = np.ones(size, np.float32)
        best = [float(_worth(rows, pool, _chosen(rows, pool, everyone))) for pool in pools]
        for references in (1_000, 5_000):
            cells = []
            for design in DESIGNS:
                lost = []
                for rng, pool, most in zip(rngs, pools, best, strict=True):
                    items = _chosen(rows, pool, design(rng, rows, pool, references))
                    lost.append(100 * (1 - float(_worth(rows, pool, items)) / most))
                cells.append(f"{np.mean(lost):.3f} ± {np.std(lost, ddof=1):.3f} %")
            print(f"| {size:,} | {references:,} |", " | ".join(cells), "|")


def main() -> None:
    """Prints tables for ``docs/performance.md``."""
    parser = argparse.ArgumentParser(description="What a sample of the represented clients costs")
    parser.add_argument("part", choices=("loss", "designs"))
    parser.add_argument("--clients", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--seeds", type=int, default=5, help="pools, each with a sample of its own")
    options = start(parser)
    measured = {"loss": print_losses, "designs": print_designs}[options.part]
    measured(options.seeds, options.clients)


if __name__ == "__main__":
    main()
