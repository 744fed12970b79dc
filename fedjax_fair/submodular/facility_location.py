"""Facility location: the sum over points of the similarity to the nearest item of a set."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.numerics import target
from fedjax_fair.submodular.cached_gains import CachedGains
from fedjax_fair.submodular.checked_arrays import as_mask, as_non_negative, as_symmetric
from fedjax_fair.submodular.sparse import as_sparse, is_sparse
from fedjax_fair.submodular.sparse_functions import SparseFacilityLocation
from fedjax_fair.utils.tree import Integer

__all__ = [
    "FacilityLocation",
    "FacilityLocationFromDistances",
    "facility_location",
    "facility_location_from_distances",
]

# Up to this many similarities, and always on an accelerator, recomputing all gains in every step is
# faster than caching them.
_SMALL = 300 * 300

# Points whose rows are read together, few enough to stay in the nearest cache.
_ROWS = 16


class _OfMatrix(CachedGains):
    """Facility location of a matrix, with cached gains where these are faster."""

    @property
    def _num_points(self) -> int:
        return jax.tree.leaves(self)[0].shape[-2]

    @abc.abstractmethod
    def _rows(self, points: Any) -> Float[Array, "... items"]:
        """Returns the similarities of some points to all items."""

    @property
    def _caches(self) -> bool:
        return self._num_points * self.size > _SMALL and target.current().is_cpu

    @property
    def _block(self) -> int:
        return _ROWS

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        best = jnp.max(self._rows(slice(None)), axis=1, where=mask, initial=-jnp.inf)
        return self._sum(jnp.maximum(best - self._floor(), 0.0))

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        if self._caches:
            return memo.gains
        return self._sum(jnp.maximum(self._rows(slice(None)) - memo.best[:, None], 0.0))

    # Weights multiply differences: a similarity that is multiplied and subtracted in one operation
    # is not rounded, and would differ from the rounded one.
    def _weighted(self, differences: Array, point: Any) -> Array:
        return differences

    # Written as sums of rows, since a reduction over the first axis is slow on a CPU.
    def _sum_rows(self, points: Array, of_row: Callable[[Array, int], Array]) -> Array:
        places = range(points.shape[0])
        rows = (self._weighted(of_row(self._rows(points[i]), i), points[i]) for i in places)
        return reduce(add, rows)

    def _served(self, points: Array, best: Array) -> Array:
        return self._sum_rows(points, lambda row, i: jnp.maximum(row - best[i], 0.0))

    def _lost(self, points: Array, old: Array, new: Array) -> Array:
        return self._sum_rows(points, lambda row, i: jnp.clip(row, old[i], new[i]) - old[i])


class FacilityLocation(_OfMatrix):
    """``sum_i max_{j in S} s_ij``: monotone submodular.

    Args:
        similarity: ``[points, items]``, >= 0.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> similarity = [[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
        >>> greedy(FacilityLocation(similarity), 2).items.tolist()
        [0, 1]
    """

    similarity: Float[Array, "points items"]

    def __post_init__(self) -> None:
        self._convert(similarity=as_non_negative("similarity", self.similarity, "points items"))

    def _floor(self) -> Float[Array, " points"]:
        return jnp.zeros(self._num_points)

    def _rows(self, points: Any) -> Float[Array, "... items"]:
        return self.similarity[points]

    def _column(self, item: Integer) -> Float[Array, " points"]:
        return self.similarity[:, item]


def facility_location(
    similarity: Any, weights: ArrayLike | None = None
) -> FacilityLocation | SparseFacilityLocation:
    """Returns ``sum_i w_i max_{j in S} s_ij`` of a dense or sparse matrix.

    Args:
        similarity: ``[points, items]``, >= 0. A SciPy sparse matrix, or ``sparse_similarity`` of
            it, stays sparse.
        weights: Weight of each point, ``[points]``, >= 0; by default 1.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> similarity = [[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
        >>> greedy(facility_location(similarity, [0.1, 1.0, 3.0]), 2).items.tolist()
        [2, 1]
    """
    if is_sparse(similarity):
        lists = as_sparse(similarity)
        if weights is not None:
            lists = lists.weighted(as_non_negative("weights", weights, "points", lists.shape[0]))
            as_non_negative("similarity * weights", lists.values, "entries")
        return SparseFacilityLocation(lists)
    if weights is not None:
        similarity = as_non_negative("similarity", similarity, "points items")
        weights = as_non_negative("weights", weights, "points", similarity.shape[0])
        weighted = similarity * weights[:, None]
        similarity = as_non_negative("similarity * weights", weighted, "points items")
    return FacilityLocation(similarity)


class FacilityLocationFromDistances(_OfMatrix):
    """Result of ``facility_location_from_distances``, which checks its arguments.

    Args:
        distances: ``[n, n]``.
        farthest: Distance of each item to the phantom, ``[n]``.
        weights: Weight of each item, ``[n]``.
    """

    distances: Float[Array, "n n"]
    farthest: Float[Array, " n"]
    weights: Float[Array, " n"] | None = None

    def _floor(self) -> Float[Array, " points"]:
        return -self.farthest

    # Negated on reading, which saves a second matrix.
    def _rows(self, points: Any) -> Float[Array, "... items"]:
        return -self.distances[points]

    # A row equals a column, and is contiguous in memory.
    def _column(self, item: Integer) -> Float[Array, " points"]:
        return -self.distances[item]

    def _weighted(self, differences: Array, point: Any) -> Array:
        return differences if self.weights is None else differences * self.weights[point]

    def _sum(self, differences: Float[Array, "points ..."]) -> Float[Array, "..."]:
        if self.weights is not None:
            differences = differences * jnp.expand_dims(self.weights, range(1, differences.ndim))
        return super()._sum(differences)


def facility_location_from_distances(
    distances: ArrayLike, weights: ArrayLike | None = None, counted: ArrayLike | None = None
) -> FacilityLocationFromDistances:
    r"""Returns the reduction of the distances from all items to a set: monotone submodular.

    :math:`G(S) = \sum_i w_i (a_i - \min_{j \in S \cup \{\text{phantom}\}} D_{ij})`, where the
    phantom is as far from item *i* as the farthest item, :math:`a_i = \max_j D_{ij}`. For distances
    of gradients it is the representation of DivFL and of Castillo et al. (2024, equations 9 and
    10).

    Args:
        distances: ``[n, n]``, symmetric, >= 0.
        weights: Weight of each item, ``[n]``, >= 0; by default 1.
        counted: Mask of the items that count, ``[n]``; by default all. The others do not enter the
            sum, represent no item and do not define the phantom.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> import numpy as np
        >>> line = np.array([0.0, 1.0, 10.0, 11.0])
        >>> result = greedy(facility_location_from_distances(abs(line[:, None] - line)), 2)
        >>> result.items.tolist(), float(result.value)
        ([1, 2], 40.0)
    """
    matrix = as_symmetric("distances", distances)
    if counted is None:
        farthest = jnp.max(matrix, axis=1)
    else:
        mask = as_mask("counted", counted, matrix.shape[:1])
        pairs = mask[:, None] & mask[None]
        farthest = jnp.max(matrix, axis=1, where=pairs, initial=0.0)
        # No nearer than any phantom, so that nothing is gained.
        matrix = jnp.where(pairs, matrix, jnp.max(farthest))
    if weights is not None:
        weights = as_non_negative("weights", weights, "points", matrix.shape[0])
        as_non_negative("distances * weights", farthest * weights, "points")
    return FacilityLocationFromDistances(matrix, farthest, weights)
