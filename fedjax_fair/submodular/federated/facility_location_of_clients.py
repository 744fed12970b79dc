"""Facility location: each client is served by the item of the set with its largest score."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular import multilinear, sparse_functions
from fedjax_fair.submodular.checked_arrays import as_finite
from fedjax_fair.submodular.facility_location import facility_location as total_facility_location
from fedjax_fair.submodular.federated.problem import (
    ClientFunction,
    DenseProblem,
    Extensions,
    Problem,
)
from fedjax_fair.submodular.federated.sparse_scores import SparseScores, clip_negative, sparse_gains
from fedjax_fair.submodular.set_function import SetFunction

__all__ = ["FACILITY_LOCATION", "FacilityLocation", "SparseFacilityLocation", "facility_location"]


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
        return sparse_functions.SparseFacilityLocation(self.scores.weighted(weights))


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
