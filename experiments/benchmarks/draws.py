"""Sampling of a cohort among many clients: ``python -m experiments.benchmarks.draws``.

Samples of 100 clients, uniform among available clients and in proportion to size, against
implementations that sort a random number for each client. In alternation.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.timing import alternate, print_header, start
from fedjax_fair.numerics.successive import sample_successively
from fedjax_fair.selectors.uniform import sample_clients

COUNT, DRAWS = 100, 10


def _clients(available: jax.Array) -> Any:
    """Returns what uniform sampling reads of a context."""
    size = available.shape[0]
    return SimpleNamespace(available=available, unavailable=None, num_clients=size)


def _sorted_available(key, available):
    noise = jax.random.uniform(key, available.shape)
    return jax.lax.top_k(jnp.where(available, noise, -1), COUNT)[1]


def _sorted_by_size(key, cumulative_sizes):
    noise = jax.random.gumbel(key, cumulative_sizes.shape)
    return jax.lax.top_k(
        jnp.log(jnp.diff(cumulative_sizes, prepend=0).astype(noise.dtype)) + noise, COUNT
    )[1]


def _several(draw_one):
    """Some draws in a program, as a chunk of rounds makes them."""
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return jax.jit(lambda values: jax.lax.map(lambda key: draw_one(key, values), keys))


FORMS = {
    "available": (lambda key, mask: sample_clients(key, COUNT, _clients(mask)), _sorted_available),
    "by size": (
        lambda key, cumulative_sizes: sample_successively(key, cumulative_sizes, COUNT),
        _sorted_by_size,
    ),
}
"""Ours, and the form that looks at all clients."""


def main() -> None:
    """Prints a table for ``docs/performance.md``."""
    repeats = start(__doc__, repeats=5).repeats
    print_header("clients | draw | ms | times ours if all are sorted")
    for clients in (10_000, 1_000_000):
        rng = np.random.default_rng(0)
        sizes = jnp.asarray(rng.integers(10, 31, clients), jnp.int32)
        values = {
            "available": jnp.asarray(rng.uniform(size=clients) < 0.5),
            "by size": jnp.cumsum(sizes),
        }
        for name, forms in FORMS.items():
            calls = [partial(_several(form), values[name]) for form in forms]
            ours, other = alternate(*calls, repeats=repeats)
            ms = 1e3 * ours.median / DRAWS
            print(f"| {clients:,} | {name} | {ms:.2f} | {other.ratio_to(ours):.0f} |")


if __name__ == "__main__":
    main()
