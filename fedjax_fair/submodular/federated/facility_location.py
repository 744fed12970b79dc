"""Facility location: every client is served by the item of the set with its largest score."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.arrays import as_finite
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.facility_location import FacilityLocation
from fedjax_fair.submodular.federated.problem import ClientFunction, Extensions, Problem, family
from fedjax_fair.submodular.federated.sparse import (
    SparseScores,
    clipped,
    entries,
    for_each,
    per_client_max,
    run_of,
    runs,
)

__all__ = ["OFFERS", "facility_location", "sparse_facility_location"]

# Entries processed together where few clients change.
_BLOCK = 4096

# Stands for the factor 1 - x of a certain item, so that it can be divided by: a product with one of
# them is negligible, with two it is 0, and divided by the one it is right to 1e-8.
_CERTAIN = 1e-30

OFFERS = ClientFunction(
    value=lambda offers, mask: jnp.max(
        offers.scores,
        where=mask.at[offers.items].get(mode="fill", fill_value=False),
        initial=0,
    ),
    gains=lambda offers, mask: multilinear.facility_location_gradient(
        offers, mask.astype(offers.scores.dtype)
    ),
    extension=lambda offers, key, x: multilinear.facility_location_value(offers, x),
    gradient=lambda offers, key, x: multilinear.facility_location_gradient(offers, x),
)


def facility_location(scores: ArrayLike | SparseScores) -> Problem:
    r"""``f_i(S) = max_{j in S} c_ij``: ratings, similarities, closeness.

    Args:
        scores: The score of each item for each client, ``[clients, n]``, or ``sparse_scores`` where
            most of them are 0. Negative ones count as 0, with a warning.

    Returns:
        The problem, with an exact extension. Its gradient costs two passes over the scores, and in
        the sparse form over those that are not 0.

    Raises:
        ValueError: If a score is not finite, or shapes do not fit.

    Examples:
        >>> problem = facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> float(problem.value(jnp.array([False, True, False])))
        1.5
    """
    if isinstance(scores, SparseScores):
        return sparse_facility_location("facility_location", scores)
    matrix = as_finite("scores", scores, "clients n")
    if not isinstance(matrix, Tracer):
        clipped("scores", np.asarray(matrix))
    matrix = jnp.maximum(matrix, 0)
    return family(
        "facility_location",
        jax.vmap(multilinear.ranked)(matrix),
        OFFERS,
        size=matrix.shape[1],
        exact=True,
        total=lambda weights: FacilityLocation(matrix * weights[:, None]),
    )


def sparse_facility_location(name: str, sparse: SparseScores) -> Problem:
    """The same for a list of scores, in one pass for all clients."""

    def extensions(key, x):
        form = _by_levels if sparse.cells is not None else _by_rank
        values, gradient = form(sparse, x)
        return Extensions(values, entries(sparse, gradient))

    def own(client):
        places = run_of(sparse, client)
        offers = multilinear.ranked(sparse.scores.at[places].get(mode="fill", fill_value=0))
        items = sparse.items.at[places].get(mode="fill", fill_value=sparse.size)
        return multilinear.Ranked(offers.scores, items[offers.items])

    return Problem(
        name=name,
        num_clients=sparse.num_clients,
        size=sparse.size,
        exact=True,
        own=own,
        function=OFFERS,
        values=lambda mask: _served(sparse, mask),
        extensions=extensions,
        gains=lambda mask: extensions(None, mask.astype(sparse.scores.dtype)).gradients,
        total=lambda weights: _total(sparse, weights),
    )


def _by_levels(
    sparse: SparseScores, x: Float[Array, " size"]
) -> tuple[Float[Array, " clients"], Float[Array, " entries"]]:
    """Extension and gradient from products over the levels of each client."""
    assert sparse.cells is not None
    assert sparse.steps is not None
    num_levels = sparse.steps.shape[0]
    absent = jnp.maximum(1 - x, _CERTAIN)[sparse.items]
    per_cell = jax.ops.segment_prod(absent, sparse.cells, sparse.num_clients * num_levels)
    nothing = jax.lax.cumprod(per_cell.reshape(-1, num_levels), axis=1, reverse=True)
    left = sparse.steps[None] * nothing
    values = jnp.sum(sparse.steps[None] - left, axis=1)
    gradient = jnp.cumsum(left, axis=1).ravel()[sparse.cells] / absent
    # The gain of an item is 0 if a certain one is at least as good, rather than a tiny number.
    return values, jnp.where(gradient > 1e-20 * jnp.min(sparse.steps), gradient, 0)


def _by_rank(
    sparse: SparseScores, x: Float[Array, " size"]
) -> tuple[Float[Array, " clients"], Float[Array, " entries"]]:
    """Extension and gradient from the two prefix passes, for one group of clients at a time."""
    values, gradient = jnp.zeros(sparse.num_clients), jnp.zeros_like(sparse.scores)

    def evaluate(places, inside):
        ranking = jnp.arange(places.shape[0], dtype=jnp.int32)
        scores = jnp.where(inside, sparse.scores.at[places].get(mode="clip"), 0)
        present = jnp.where(inside, x[sparse.items.at[places].get(mode="clip")], 0)
        offers = multilinear.Ranked(scores, ranking)
        value = multilinear.facility_location_value(offers, present)
        return value, multilinear.facility_location_gradient(offers, present)

    for clients, width in zip(sparse.alike, sparse.widths, strict=True):
        value, own = for_each(sparse, clients, width, evaluate)
        values = values.at[clients].set(value)
        places, inside = runs(sparse, clients, width)
        into = jnp.where(inside, places, sparse.items.shape[0])
        gradient = gradient.at[into].set(own, mode="drop")
    return values, gradient


class _Memo(NamedTuple):
    """The best score of every client in the set, and the gain of every item."""

    best: Float[Array, " clients"]
    gains: Float[Array, " size"]


def _total(sparse: SparseScores, weights: Float[Array, " clients"]) -> SetFunction:
    """The weighted sum, with the gains of all items cached.

    An added item changes them only at the clients for which it is the best of the set.
    """
    own_weights = weights[sparse.owners]

    def all_gains(best):
        better = jnp.maximum(sparse.scores - best[sparse.owners], 0)
        return jax.ops.segment_sum(own_weights * better, sparse.items, sparse.size)

    def column(best, item):
        """The best scores with one more item."""
        lanes = sparse.item_offsets[item] + jnp.arange(sparse.most_raters, dtype=jnp.int32)
        places = sparse.by_item.at[lanes].get(mode="clip")
        clients = jnp.where(
            lanes < sparse.item_offsets[item + 1], sparse.owners[places], sparse.num_clients
        )
        return best.at[clients].max(sparse.scores[places], mode="drop")

    def add(memo, item):
        best = column(memo.best, item)
        changed = best > memo.best

        def subtract():
            gains = memo.gains
            for clients, width in zip(sparse.alike, sparse.widths, strict=True):
                gains = gains - _lost(sparse, weights, clients, width, memo.best, best)
            return gains

        # Where most clients change, recomputing is no more work and discards rounding errors.
        recompute = 3 * jnp.sum(changed, dtype=jnp.int32) > 2 * sparse.num_clients
        return _Memo(best, jax.lax.cond(recompute, lambda: all_gains(best), subtract))

    return SetFunction(
        size=sparse.size,
        value=lambda mask: product(weights, _served(sparse, mask)),
        init=lambda: _Memo(jnp.zeros(sparse.num_clients), all_gains(jnp.zeros(sparse.num_clients))),
        gains=lambda memo: memo.gains,
        gain=lambda memo, item: product(weights, column(memo.best, item) - memo.best),
        add=add,
    )


def _lost(
    sparse: SparseScores,
    weights: Float[Array, " clients"],
    clients: Int[Array, " alike"],
    width: int,
    old: Float[Array, " clients"],
    new: Float[Array, " clients"],
) -> Float[Array, " size"]:
    """The decrease of all gains where the best scores of some clients rise from old to new."""
    ranks = jnp.cumsum(new[clients] > old[clients], dtype=jnp.int32)
    count, rows = ranks[-1], max(1, _BLOCK // width)

    def block(number, lost):
        # The clients that change, by binary search rather than from a list of all of them.
        numbers = number * rows + jnp.arange(rows, dtype=jnp.int32)
        some = clients[jnp.searchsorted(ranks, jnp.minimum(numbers + 1, count))]
        places, inside = runs(sparse, some, width)
        inside = inside & (numbers < count)[:, None]
        scores = sparse.scores.at[places].get(mode="clip")
        less = jnp.clip(scores, old[some][:, None], new[some][:, None]) - old[some][:, None]
        items = jnp.where(inside, sparse.items.at[places].get(mode="clip"), sparse.size)
        return lost.at[items].add(less * weights[some][:, None], mode="drop")

    return jax.lax.fori_loop(0, -(-count // rows), block, jnp.zeros(sparse.size))


def _served(sparse: SparseScores, mask: Bool[Array, " size"]) -> Float[Array, " clients"]:
    offered = jnp.where(mask[sparse.items], sparse.scores, 0)
    return jnp.maximum(per_client_max(sparse, offered), 0)
