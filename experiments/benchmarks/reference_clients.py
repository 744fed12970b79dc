"""Cost of reference clients: ``python -m experiments.benchmarks.reference_clients``.

Cohorts of 100 from a pool of 1,000, on the dataset of ``benchmarks.million`` at the initial
logistic model, among 10,000 and 100,000 clients.

The table has the loss of representation G, with full and sketched gradients, of a cohort that was
selected for some reference clients, against one for all clients from the same pool; and the error
of the sample's estimate of G. ``--seeds`` is the number of pools, each with a sample.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.million import COHORT, POOL, WIDTH, make_federation
from experiments.benchmarks.timing import print_header, start
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.numerics.distances import nearest
from fedjax_fair.numerics.sketch import CountSketch, ravel
from fedjax_fair.roles import ClientGradients
from fedjax_fair.rounds.round_context import make_context

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
    return jnp.mean(nearest(rows, clients, jnp.ones_like(clients, bool))[1])


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


def main() -> None:
    """Prints a table for ``docs/performance.md``."""
    options = start(__doc__, clients=[10_000, 100_000], seeds=5)
    print_losses(options.seeds, options.clients)


if __name__ == "__main__":
    main()
