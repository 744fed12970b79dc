"""Facility location: the sum over points of the similarity to the nearest item of a set."""

from __future__ import annotations

import abc
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.numerics import target
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.arrays import (
    as_finite,
    as_items,
    as_mask,
    as_non_negative,
    as_symmetric,
)
from fedjax_fair.submodular.cached_gains import CachedGains, Memo
from fedjax_fair.submodular.sparse import SparseSimilarity, as_sparse, is_sparse
from fedjax_fair.submodular.sparse_functions import SparseFacilityLocation
from fedjax_fair.tree import Integer

__all__ = [
    "FacilityLocation",
    "FacilityLocationFromDistances",
    "FacilityLocationFromFeatures",
    "facility_location",
    "facility_location_from_distances",
    "facility_location_from_features",
]

# Up to so many similarities, and on an accelerator always, recomputing all gains at every step is
# faster than caching them.
_SMALL = 300 * 300

# Points whose rows are read together: for a matrix few enough to stay in the nearest cache, for
# features enough to make a matrix product of. An accelerator is only filled by more.
_ROWS = 16
_POINTS = 128


class _OfMatrix(CachedGains):
    """Facility location of a matrix, with cached gains where these are faster."""

    @property
    @abc.abstractmethod
    def _num_points(self) -> int:
        raise NotImplementedError

    @abc.abstractmethod
    def _rows(self, points: Any) -> Float[Array, "... items"]:
        """Returns the similarities of some points to all items."""
        raise NotImplementedError

    @property
    def _caches(self) -> bool:
        return self._num_points * self.size > _SMALL and target.current().is_cpu

    @property
    def _block(self) -> int:
        return _ROWS

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        best = jnp.max(self._rows(slice(None)), axis=1, where=mask, initial=-jnp.inf)
        return jnp.sum(jnp.maximum(best - self._floor(), 0.0))

    # Without a cache the memo is the best similarity of every point alone.
    def init(self) -> PyTree:
        return super().init() if self._caches else self._floor()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        if self._caches:
            return super().gains(memo)
        return jnp.sum(jnp.maximum(self._rows(slice(None)) - memo[:, None], 0.0), axis=0)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        if self._caches:
            return super().gain(memo, item)
        return jnp.sum(jnp.maximum(self._column(item) - memo, 0.0))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        if self._caches:
            return super().add(memo, item)
        return jnp.maximum(memo, self._column(item))

    # Written as a sum of rows, since a reduction over the first axis is slow on a CPU.
    def _served(
        self, points: Int[Array, " block"], best: Float[Array, " block"]
    ) -> Float[Array, " items"]:
        block = range(points.shape[0])
        return reduce(add, (jnp.maximum(self._rows(points[i]) - best[i], 0.0) for i in block))

    def _lost(
        self, points: Int[Array, " block"], old: Float[Array, " block"], new: Float[Array, " block"]
    ) -> Float[Array, " items"]:
        block = range(points.shape[0])
        return reduce(
            add, (jnp.clip(self._rows(points[i]), old[i], new[i]) - old[i] for i in block)
        )


class FacilityLocation(_OfMatrix):
    r"""``sum_i max_{j in S} s_ij``: monotone submodular.

    Args:
        similarity: Of every point to every item, ``[points, items]``, >= 0.

    Raises:
        ValueError: If a number is negative or not finite, or there is no item.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> similarity = [[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
        >>> greedy(FacilityLocation(similarity), 2).items.tolist()
        [0, 1]
    """

    similarity: Float[Array, "points items"]

    def __post_init__(self) -> None:
        self._convert(similarity=as_non_negative("similarity", self.similarity, "points items"))

    @property
    def size(self) -> int:
        return self.similarity.shape[-1]

    @property
    def _num_points(self) -> int:
        return self.similarity.shape[-2]

    def _floor(self) -> Float[Array, " points"]:
        return jnp.zeros(self._num_points)

    def _rows(self, points: Any) -> Float[Array, "... items"]:
        return self.similarity[points]

    def _column(self, item: Integer) -> Float[Array, " points"]:
        return self.similarity[:, item]


def facility_location(
    similarity: ArrayLike | SparseSimilarity | Any, weights: ArrayLike | None = None
) -> FacilityLocation | SparseFacilityLocation:
    r"""Returns ``sum_i w_i max_{j in S} s_ij``, of a matrix that may be sparse.

    Args:
        similarity: Of every point to every item, ``[points, items]``, >= 0. One of SciPy's sparse
            matrices, or ``sparse_similarity`` of it, stays sparse: absent entries are 0.
        weights: Weight of each point, ``[points]``, >= 0; by default 1.

    Raises:
        ValueError: If a number is negative or not finite, or shapes do not fit.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> similarity = jnp.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        >>> greedy(facility_location(similarity, [0.1, 1.0, 3.0]), 2).items.tolist()
        [2, 1]
    """
    if is_sparse(similarity):
        lists = as_sparse(similarity)
        if weights is None:
            return SparseFacilityLocation(lists)
        return SparseFacilityLocation(lists.weighted(_weights(weights, lists.shape[0])))
    if weights is None:
        dense: Any = similarity
        return FacilityLocation(dense)
    matrix = as_non_negative("similarity", similarity, "points items")
    return FacilityLocation(matrix * _weights(weights, matrix.shape[0])[:, None])


class FacilityLocationFromDistances(_OfMatrix):
    """Made by ``facility_location_from_distances``, which checks what it is given.

    Args:
        distances: ``[n, n]``, symmetric, >= 0.
        farthest: The distance of each item to the phantom, ``[n]``.
        weights: Weight of each item as one to be represented, ``[n]``, >= 0; by default 1.
    """

    distances: Float[Array, "n n"]
    farthest: Float[Array, " n"]
    weights: Float[Array, " n"] | None = None

    @property
    def size(self) -> int:
        return self.distances.shape[-1]

    @property
    def _num_points(self) -> int:
        return self.size

    def _floor(self) -> Float[Array, " points"]:
        return -self.farthest if self.weights is None else -self.farthest * self.weights

    # Negated on reading, which saves a second matrix.
    def _rows(self, points: Any) -> Float[Array, "... items"]:
        similarity = -self.distances[points]
        return similarity if self.weights is None else similarity * self.weights[points][..., None]

    # A row equals a column, and is contiguous in memory.
    def _column(self, item: Integer) -> Float[Array, " points"]:
        similarity = -self.distances[item]
        return similarity if self.weights is None else similarity * self.weights


def facility_location_from_distances(
    distances: ArrayLike, weights: ArrayLike | None = None
) -> FacilityLocationFromDistances:
    r"""Returns the reduction of the distances from all items to a set: monotone submodular.

    :math:`G(S) = \sum_i w_i (a_i - \min_{j \in S \cup \{\text{phantom}\}} D_{ij})`, where the
    phantom item is as far from item *i* as the farthest item, :math:`a_i = \max_j D_{ij}`. For
    gradient distances it is the representation of DivFL and of Castillo et al. (2024, equations 9
    and 10).

    Args:
        distances: ``[n, n]``, symmetric, >= 0.
        weights: Weight of each item as one to be represented, ``[n]``, >= 0; by default 1.

    Raises:
        ValueError: If the matrix is not square, symmetric and non-negative, or the weights do not
            fit it.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> line = jnp.array([0.0, 1.0, 10.0, 11.0])
        >>> distances = jnp.abs(line[:, None] - line[None])
        >>> chosen = greedy(facility_location_from_distances(distances), 2)
        >>> chosen.items.tolist(), float(chosen.value)
        ([1, 2], 40.0)
    """
    matrix = as_symmetric("distances", distances)
    checked = None if weights is None else _weights(weights, matrix.shape[0])
    return FacilityLocationFromDistances(matrix, jnp.max(matrix, axis=1), checked)


class FacilityLocationFromFeatures(CachedGains):
    """Made by ``facility_location_from_features``, which checks what it is given.

    Args:
        rows: Centered features of every point, ``[points, width]``.
        squares: Their squared lengths, ``[points]``.
        items: The row of each item, ``[items]``.
        counted: Mask of the points that count, ``[points]``.
        weights: Weight of each point, ``[points]``.
        floor: The similarity of each point to the phantom, ``[points]``.
        first_gains: The gain of each item beside the empty set, ``[items]``.
    """

    rows: Float[Array, "points width"]
    squares: Float[Array, " points"]
    items: Int[Array, " items"]
    counted: Bool[Array, " points"]
    weights: Float[Array, " points"]
    floor: Float[Array, " points"]
    first_gains: Float[Array, " items"]

    @property
    def size(self) -> int:
        return self.items.shape[-1]

    @property
    def _block(self) -> int:
        similarities = target.current().similarities
        if similarities is None:
            return _POINTS
        return min(self.rows.shape[-2], max(_POINTS, similarities // self.size))

    @property
    def _starts(self) -> Int[Array, " blocks"]:
        return jnp.arange(0, self.rows.shape[-2], self._block, dtype=jnp.int32)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        def gained(start):
            near, floor = self._with_floor(start)
            best = jnp.max(near, axis=0, where=mask[:, None], initial=-jnp.inf)
            return jnp.sum(jnp.maximum(best - floor, 0.0))

        return jnp.sum(jax.lax.map(gained, self._starts))

    def init(self) -> PyTree:
        return Memo(self.floor, self.first_gains)

    def _floor(self) -> Float[Array, " points"]:
        return self.floor

    def _column(self, item: Integer) -> Float[Array, " points"]:
        row = self.items[item]
        near = self.squares + self.squares[row] - 2 * product(self.rows, self.rows[row])
        near = near.at[row].set(0.0)
        return -jnp.sqrt(jnp.maximum(near, 0.0)) * self.weights

    def _served(
        self, points: Int[Array, " block"], best: Float[Array, " block"]
    ) -> Float[Array, " items"]:
        return jnp.sum(jnp.maximum(self._similarity(points) - best[None], 0.0), axis=1)

    def _lost(
        self, points: Int[Array, " block"], old: Float[Array, " block"], new: Float[Array, " block"]
    ) -> Float[Array, " items"]:
        near = self._similarity(points)
        return jnp.sum(jnp.clip(near, old[None], new[None]) - old[None], axis=1)

    def _similarity(self, points: Int[Array, " block"]) -> Float[Array, "items block"]:
        near = self.squares[self.items][:, None] + self.squares[points][None]
        near = near - 2 * product(self.rows[self.items], self.rows[points].T)
        own = self.items[:, None] == points[None]
        near = jnp.maximum(jnp.where(own, 0.0, near), 0.0)
        return -jnp.sqrt(near) * self.weights[points][None]

    def _with_floor(
        self, start: Int[Array, ""]
    ) -> tuple[Float[Array, "items block"], Float[Array, " block"]]:
        """Similarities of the next points, and of each the lowest, that of the phantom."""
        count = self.rows.shape[-2]
        places = start + jnp.arange(self._block, dtype=jnp.int32)
        points = jnp.minimum(places, count - 1)
        near = self._similarity(points)
        # Similarities are at most 0, so that with a floor of 0 a point gains nothing.
        counts = self.counted[points] & (places < count)
        return near, jnp.where(counts, jnp.min(near, axis=0), 0.0)


def facility_location_from_features(
    features: ArrayLike,
    items: ArrayLike | None = None,
    counted: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> FacilityLocationFromFeatures:
    """Returns ``facility_location_from_distances`` of the rows, without a matrix of them.

    Euclidean distances are computed for 128 points at a time, from products of centered features:
    accurate to about 3e-4 of the length of a centered row, so that closer neighbors count as that
    far apart. Memory is a few blocks of ``128 * items`` floats, 340 MB for 100,000 items (all their
    distances would take 40 GB). Time is that of a few passes over the distances between points and
    items.

    Args:
        features: One row a point, ``[points, width]``.
        items: The rows that may be chosen, all different, ``[items]``: item ``j`` of the function
            is row ``items[j]``. By default all of them. The phantom is as far from a point as the
            farthest item.
        counted: Mask of the points that count, ``[points]``; by default all of them.
        weights: Weight of each point, ``[points]``, >= 0; by default 1.

    Raises:
        ValueError: If a number is not finite, a weight is negative, an item is no row, or shapes do
            not fit.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> line = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> greedy(facility_location_from_features(line), 2).items.tolist()
        [1, 2]
        >>> greedy(facility_location_from_features(line, items=[0, 3]), 1).items.tolist()
        [0]
    """
    rows = as_finite("features", features, "points width")
    count = rows.shape[0]
    chosen, counts = _items(items, count), _mask(counted, count)
    checked = jnp.ones(count, rows.dtype) if weights is None else _weights(weights, count)
    return _of_features(rows, chosen, counts, checked)


@jax.jit
def _of_features(
    features: Float[Array, "points width"],
    items: Int[Array, " items"],
    counted: Bool[Array, " points"],
    weights: Float[Array, " points"],
) -> FacilityLocationFromFeatures:
    count, size = features.shape[0], items.shape[0]
    rows = features - product(jnp.full(count, 1 / count, features.dtype), features)[None]
    squares = jnp.sum(rows**2, axis=1)
    nothing = jnp.zeros(size, rows.dtype)
    function = FacilityLocationFromFeatures(
        rows, squares, items, counted, weights, jnp.zeros(count, rows.dtype), nothing
    )

    def begin(gains, start):
        near, floor = function._with_floor(start)
        return gains + jnp.sum(jnp.maximum(near - floor[None], 0.0), axis=1), floor

    gains, floors = jax.lax.scan(begin, nothing, function._starts)
    return function.replace(floor=floors.reshape(-1)[:count], first_gains=gains)


def _items(items: ArrayLike | None, count: int) -> Int[Array, " items"]:
    if items is None:
        return jnp.arange(count, dtype=jnp.int32)
    chosen = as_items("items", items, count)
    if not chosen.size:
        raise ValueError(f"items: expected at least one row, got shape {chosen.shape}.")
    return chosen


def _mask(counted: ArrayLike | None, count: int) -> Bool[Array, " points"]:
    mask = jnp.ones(count, bool) if counted is None else as_mask("counted", counted)
    if mask.shape != (count,):
        raise ValueError(f"counted: expected shape ({count},), got {mask.shape}.")
    return mask


def _weights(weights: ArrayLike, count: int) -> Float[Array, " points"]:
    checked = as_non_negative("weights", weights, "points")
    if checked.shape[0] != count:
        raise ValueError(f"weights: expected {count} points, got {checked.shape[0]}.")
    return checked
