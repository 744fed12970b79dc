"""Facility location: every client is served by the item of the set with its largest score."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.arrays import as_finite
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.facility_location import facility_location as total_facility_location
from fedjax_fair.submodular.federated.problem import (
    ClientFunction,
    DenseProblem,
    Extensions,
    Gains,
    Problem,
)
from fedjax_fair.submodular.federated.sparse import (
    SparseScores,
    clipped,
    entries,
    for_each,
    per_client_max,
    run_of,
    runs,
)

__all__ = ["OFFERS", "FacilityLocation", "SparseFacilityLocation", "facility_location"]

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
        return SparseFacilityLocation(scores)
    matrix = as_finite("scores", scores, "clients n")
    if not isinstance(matrix, Tracer):
        clipped("scores", np.asarray(matrix))
    return _ranked(matrix)


class FacilityLocation(DenseProblem):
    """Facility location of a matrix of scores; ``facility_location`` makes it.

    Attributes:
        scores: The score of each item for each client, ``[clients, n]``, >= 0.
        offers: The same, best item first.
    """

    scores: Float[Array, "clients n"]
    offers: multilinear.Ranked

    name = "facility_location"

    @property
    def function(self) -> ClientFunction:
        """The function of one client's data."""
        return OFFERS

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.scores.shape[-2]

    @property
    def size(self) -> int:
        """Items in the ground set."""
        return self.scores.shape[-1]

    def data(self) -> multilinear.Ranked:
        """Returns the offers of all clients."""
        return self.offers

    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        """Returns the weighted sum of all functions, a facility location of weighted scores."""
        return total_facility_location(self.scores * weights[:, None])


@jax.jit
def _ranked(matrix):
    scores = jnp.maximum(matrix, 0)
    return FacilityLocation(scores, jax.vmap(multilinear.ranked)(scores))


class SparseFacilityLocation(Problem):
    """Facility location of a list of scores, in one pass for all clients.

    Attributes:
        scores: The scores that are not 0.
    """

    scores: SparseScores

    name = "facility_location"

    @property
    def function(self) -> ClientFunction:
        """The function of one client's data."""
        return OFFERS

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.scores.num_clients

    @property
    def size(self) -> int:
        """Items in the ground set."""
        return self.scores.size

    def own(self, client: Int[Array, ""]) -> multilinear.Ranked:
        """Returns the scores of one client, best item first."""
        sparse = self.scores
        places = run_of(sparse, client)
        offers = multilinear.ranked(sparse.scores.at[places].get(mode="fill", fill_value=0))
        items = sparse.items.at[places].get(mode="fill", fill_value=sparse.size)
        return multilinear.Ranked(offers.scores, items[offers.items])

    def values(self, mask: Bool[Array, " size"]) -> Float[Array, " clients"]:
        """Computes the value of a set for every client."""
        return _served(self.scores, mask)

    def extensions(self, key: Key[Array, ""] | None, x: Float[Array, " size"]) -> Extensions:
        """Computes the multilinear extensions of all clients and their gradients."""
        form = _by_levels if self.scores.cells is not None else _by_rank
        values, gradient = form(self.scores, x)
        return Extensions(values, entries(self.scores, gradient))

    def gains(self, mask: Bool[Array, " size"]) -> Gains:
        """Computes ``f_i(S + e) - f_i(S - e)`` of all clients."""
        return self.extensions(None, mask.astype(self.scores.scores.dtype)).gradients

    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        """Returns the weighted sum of all functions, with the gains of all items cached."""
        return _Total(self.scores, weights)


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


class _Total(SetFunction):
    """The weighted sum, with the gains of all items cached.

    An added item changes them only at the clients for which it is the best of the set.
    """

    sparse: SparseScores
    weights: Float[Array, " clients"]

    @property
    def size(self) -> int:
        return self.sparse.size

    def value(self, mask):
        return product(self.weights, _served(self.sparse, mask))

    def init(self):
        best = jnp.zeros(self.sparse.num_clients)
        return _Memo(best, self._all_gains(best))

    def gains(self, memo):
        return memo.gains

    def gain(self, memo, item):
        return product(self.weights, self._best_with(memo.best, item) - memo.best)

    def add(self, memo, item):
        sparse, best = self.sparse, self._best_with(memo.best, item)
        changed = best > memo.best

        def subtract():
            gains = memo.gains
            for clients, width in zip(sparse.alike, sparse.widths, strict=True):
                gains = gains - _lost(sparse, self.weights, clients, width, memo.best, best)
            return gains

        # Where most clients change, recomputing is no more work and discards rounding errors.
        recompute = 3 * jnp.sum(changed, dtype=jnp.int32) > 2 * sparse.num_clients
        return _Memo(best, jax.lax.cond(recompute, lambda: self._all_gains(best), subtract))

    def _all_gains(self, best):
        sparse = self.sparse
        better = jnp.maximum(sparse.scores - best[sparse.owners], 0)
        gains = self.weights[sparse.owners] * better
        return jax.ops.segment_sum(gains, sparse.items, sparse.size)

    def _best_with(self, best, item):
        """The best scores with one more item."""
        sparse = self.sparse
        lanes = sparse.item_offsets[item] + jnp.arange(sparse.max_raters, dtype=jnp.int32)
        places = sparse.by_item.at[lanes].get(mode="clip")
        clients = jnp.where(
            lanes < sparse.item_offsets[item + 1], sparse.owners[places], sparse.num_clients
        )
        return best.at[clients].max(sparse.scores[places], mode="drop")


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
