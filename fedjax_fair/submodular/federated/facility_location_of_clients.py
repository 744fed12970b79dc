"""Facility location: each client is served by the item of the set with its largest score."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.cached_gains import renewed
from fedjax_fair.submodular.checked_arrays import as_finite
from fedjax_fair.submodular.facility_location import facility_location as total_facility_location
from fedjax_fair.submodular.federated.problem import (
    ClientFunction,
    DenseProblem,
    Extensions,
    Problem,
    WeightedSum,
)
from fedjax_fair.submodular.federated.sparse_scores import SparseScores, clip_negative, sparse_gains
from fedjax_fair.submodular.set_function import SetFunction

__all__ = ["FACILITY_LOCATION", "FacilityLocation", "SparseFacilityLocation", "facility_location"]

# Entries per block when few clients change.
_BLOCK = 4096

# Replaces the factor 1 - x of a certain item to allow division by it: a product with one of them is
# negligible, with two it is 0, and the quotient is accurate to 1e-8.
_CERTAIN = 1e-30

FACILITY_LOCATION = ClientFunction(
    value=lambda ranked, mask: jnp.max(
        ranked.scores, where=mask.at[ranked.items].get(mode="fill", fill_value=False), initial=0
    ),
    gains=lambda ranked, mask: multilinear.facility_location_gradient(
        ranked, mask.astype(ranked.scores.dtype)
    ),
    extension=lambda ranked, key, x: multilinear.facility_location_value(ranked, x),
    gradient=lambda ranked, key, x: multilinear.facility_location_gradient(ranked, x),
)


def facility_location(scores: ArrayLike | SparseScores) -> Problem:
    """Creates the problem of ``f_i(S) = max_{j in S} c_ij``: ratings, similarities, closeness.

    Args:
        scores: Finite score of each item for each client, ``[clients, n]``, or ``sparse_scores`` if
            most are 0. Negative scores count as 0, with a warning.

    Examples:
        >>> problem = facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> float(problem.value(jnp.array([False, True, False])))
        1.5
    """
    if isinstance(scores, SparseScores):
        return SparseFacilityLocation(scores)
    matrix = as_finite("scores", scores, "clients n")
    if not isinstance(matrix, Tracer):
        clip_negative("scores", np.asarray(matrix))
    return _rank(matrix)


class FacilityLocation(DenseProblem):
    """Facility location with a matrix of scores; use ``facility_location``.

    Attributes:
        scores: Scores, ``[clients, n]``, >= 0.
        ranked: The same, best item first.
    """

    scores: Float[Array, "clients n"]
    ranked: multilinear.Ranked

    name = "facility_location"
    function = FACILITY_LOCATION

    def data(self):
        return self.ranked

    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        return total_facility_location(self.scores * weights[:, None])


@jax.jit
def _rank(matrix):
    scores = jnp.maximum(matrix, 0)
    return FacilityLocation(scores, jax.vmap(multilinear.ranked)(scores))


class SparseFacilityLocation(Problem):
    """Facility location with a list of scores."""

    scores: SparseScores

    name = "facility_location"
    function = FACILITY_LOCATION

    @property
    def num_clients(self) -> int:
        return self.scores.num_clients

    @property
    def size(self) -> int:
        return self.scores.size

    def client_data(self, client):
        entries = self.scores.entries_of(client)
        scores = self.scores.scores.at[entries].get(mode="fill", fill_value=0)
        items = self.scores.items.at[entries].get(mode="fill", fill_value=self.size)
        ranked = multilinear.ranked(scores)
        return multilinear.Ranked(ranked.scores, items[ranked.items])

    def values(self, mask):
        offered = jnp.where(mask[self.scores.items], self.scores.scores, 0)
        return jnp.maximum(self.scores.max_per_client(offered), 0)

    def extensions(self, key, x):
        compute = _by_rank if self.scores.cells is None else _by_level
        values, gradient = compute(self.scores, x)
        return Extensions(values, sparse_gains(self.scores, gradient))

    def gains(self, mask):
        return self.extensions(None, mask.astype(self.scores.scores.dtype)).gradients

    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        return _CachedSum(self, weights)


def _by_level(sparse: SparseScores, x: Float[Array, " size"]) -> tuple[Array, Array]:
    """Computes extension and gradient from products over the levels of each client."""
    assert sparse.cells is not None
    assert sparse.steps is not None
    num_levels = sparse.steps.shape[0]
    absent = jnp.maximum(1 - x, _CERTAIN)[sparse.items]
    per_cell = jax.ops.segment_prod(absent, sparse.cells, sparse.num_clients * num_levels)
    none_present = jax.lax.cumprod(per_cell.reshape(-1, num_levels), axis=1, reverse=True)
    left = sparse.steps[None] * none_present
    values = jnp.sum(sparse.steps[None] - left, axis=1)
    gradient = jnp.cumsum(left, axis=1).ravel()[sparse.cells] / absent
    # The gain of an item is 0, not tiny, if a certain item is at least as good.
    return values, jnp.where(gradient > 1e-20 * jnp.min(sparse.steps), gradient, 0)


def _by_rank(sparse: SparseScores, x: Float[Array, " size"]) -> tuple[Array, Array]:
    """Computes extension and gradient from two prefix passes over each client's entries."""

    def evaluate(entries, is_entry):
        ranking = jnp.arange(entries.shape[0], dtype=jnp.int32)
        scores = jnp.where(is_entry, sparse.scores.at[entries].get(mode="clip"), 0)
        present = jnp.where(is_entry, x[sparse.items.at[entries].get(mode="clip")], 0)
        ranked = multilinear.Ranked(scores, ranking)
        value = multilinear.facility_location_value(ranked, present)
        return value, multilinear.facility_location_gradient(ranked, present)

    values, gradient = jnp.zeros(sparse.num_clients), jnp.zeros_like(sparse.scores)
    for clients, width, (group_values, group_gradients) in sparse.map_groups(evaluate):
        values = values.at[clients].set(group_values)
        entries, is_entry = sparse.blocks_of(clients, width)
        targets = jnp.where(is_entry, entries, sparse.items.shape[0])
        gradient = gradient.at[targets].set(group_gradients, mode="drop")
    return values, gradient


class _Memo(NamedTuple):
    """Best score of every client in the set, and gains as in ``cached_gains.Memo``."""

    best: Float[Array, " clients"]
    gains: Float[Array, " size"]
    computed: Float[Array, " size"]


class _CachedSum(WeightedSum):
    """Weighted sum with cached gains.

    An added item changes gains only at the clients for which it is the best of the set.
    """

    problem: SparseFacilityLocation

    def init(self):
        best = jnp.zeros(self.problem.num_clients)
        gains = self._all_gains(best)
        return _Memo(best, gains, gains)

    def gains(self, memo):
        return memo.gains

    def add(self, memo, item):
        best = self._best_with(memo.best, item)
        # If most clients change, recomputing costs no more and discards rounding errors.
        num_changed = jnp.sum(best > memo.best, dtype=jnp.int32)
        recompute = 3 * num_changed > 2 * self.problem.num_clients

        def subtract():
            gains = memo.gains
            groups = self.problem.scores.groups, self.problem.scores.widths
            for clients, width in zip(*groups, strict=True):
                gains = gains - self._lost_gains(clients, width, memo.best, best)
            return gains

        gains, computed = renewed(
            jax.lax.cond(recompute, lambda: memo.gains, subtract),
            memo.computed,
            recompute,
            lambda other: self._gain(best, other),
            lambda: self._all_gains(best),
        )
        return _Memo(best, gains, computed)

    def _gain(self, best, item):
        clients, places = self._raters(item)
        better = jnp.maximum(self.problem.scores.scores[places] - best[clients], 0)
        return jnp.sum(self.weights.at[clients].get(mode="fill", fill_value=0) * better)

    def _all_gains(self, best):
        sparse = self.problem.scores
        better = jnp.maximum(sparse.scores - best[sparse.owners], 0)
        gains = self.weights[sparse.owners] * better
        return jax.ops.segment_sum(gains, sparse.items, sparse.size)

    def _best_with(self, best, item):
        """Returns the best scores with one more item."""
        clients, places = self._raters(item)
        return best.at[clients].max(self.problem.scores.scores[places], mode="drop")

    def _raters(self, item):
        """Returns the clients and the places of an item's scores; missing clients are invalid."""
        sparse = self.problem.scores
        lanes = sparse.item_offsets[item] + jnp.arange(sparse.max_raters, dtype=jnp.int32)
        places = sparse.by_item.at[lanes].get(mode="clip")
        is_rater = lanes < sparse.item_offsets[item + 1]
        return jnp.where(is_rater, sparse.owners[places], sparse.num_clients), places

    def _lost_gains(self, clients, width, old, new):
        """Returns the decrease of all gains if best scores of some clients rise to ``new``."""
        sparse = self.problem.scores
        ranks = jnp.cumsum(new[clients] > old[clients], dtype=jnp.int32)
        count, block_size = ranks[-1], max(1, _BLOCK // width)

        def subtract_block(number, lost):
            # Binary search finds the changed clients without a list of all of them.
            numbers = number * block_size + jnp.arange(block_size, dtype=jnp.int32)
            changed = clients[jnp.searchsorted(ranks, jnp.minimum(numbers + 1, count))]
            entries, is_entry = sparse.blocks_of(changed, width)
            is_entry = is_entry & (numbers < count)[:, None]
            scores = sparse.scores.at[entries].get(mode="clip")
            old_best, new_best = old[changed][:, None], new[changed][:, None]
            decrease = jnp.clip(scores, old_best, new_best) - old_best
            items = jnp.where(is_entry, sparse.items.at[entries].get(mode="clip"), sparse.size)
            decrease = decrease * self.weights[changed][:, None]
            return lost.at[items].add(decrease, mode="drop")

        blocks = -(-count // block_size)
        return jax.lax.fori_loop(0, blocks, subtract_block, jnp.zeros(sparse.size))
