"""Facility location: the sum over points of the similarity to the nearest item of a set."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
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
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.cached_gains import Memo, Passes, caching_gains
from fedjax_fair.submodular.sparse import SparseSimilarity, as_sparse, is_sparse
from fedjax_fair.submodular.sparse_functions import location_of_lists

__all__ = [
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


def facility_location(
    similarity: ArrayLike | SparseSimilarity | Any, weights: ArrayLike | None = None
) -> SetFunction:
    r"""``sum_i w_i max_{j in S} s_ij``: monotone submodular.

    Args:
        similarity: Of every point to every item, ``[points, items]``, >= 0. One of SciPy's sparse
            matrices, or ``sparse_similarity`` of it, stays sparse: absent entries are 0.
        weights: Weight of each point, ``[points]``, >= 0; by default 1.

    Raises:
        ValueError: If a number is negative or not finite, or shapes do not fit.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> similarity = jnp.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        >>> greedy(facility_location(similarity), 2).items.tolist()
        [0, 1]
    """
    if is_sparse(similarity):
        lists = as_sparse(similarity)
        worth = None if weights is None else _weights(weights, lists.shape[0])
        return location_of_lists(lists, worth)
    matrix = as_non_negative("similarity", similarity, "points items")
    if weights is not None:
        matrix = matrix * _weights(weights, matrix.shape[0])[:, None]
    return _of_matrix(
        matrix.shape[1],
        jnp.zeros(matrix.shape[0]),
        rows=lambda points: matrix[points],
        column=lambda item: matrix[:, item],
    )


def facility_location_from_distances(
    distances: ArrayLike, weights: ArrayLike | None = None
) -> SetFunction:
    r"""The reduction of the distances from all items to a set: monotone submodular.

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
    floor = -jnp.max(matrix, axis=1)

    def similarity(points):  # Negated on reading, which saves a second matrix.
        return -matrix[points]

    if weights is None:  # A row equals a column, and is contiguous in memory.
        return _of_matrix(matrix.shape[0], floor, rows=similarity, column=similarity)
    worth = _weights(weights, matrix.shape[0])
    return _of_matrix(
        matrix.shape[0],
        floor * worth,
        rows=lambda points: similarity(points) * worth[points][..., None],
        column=lambda item: similarity(item) * worth,
    )


def facility_location_from_features(
    features: ArrayLike,
    items: ArrayLike | None = None,
    counted: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> SetFunction:
    """As ``facility_location_from_distances`` of the rows, without a matrix of all distances.

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
    worth = jnp.ones(count, rows.dtype) if weights is None else _weights(weights, count)
    size = chosen.shape[0]
    rows = rows - product(jnp.full(count, 1 / count, rows.dtype), rows)[None]
    squares = jnp.sum(rows**2, axis=1)
    offered, offered_squares = rows[chosen], squares[chosen]
    block, similarities = _POINTS, target.current().similarities
    if similarities is not None:
        block = min(count, max(_POINTS, similarities // size))

    def similarity(points: Int[Array, " points"]) -> Float[Array, "items points"]:
        near = offered_squares[:, None] + squares[points][None]
        near = near - 2 * product(offered, rows[points].T)
        own = chosen[:, None] == points[None]
        return -jnp.sqrt(jnp.maximum(jnp.where(own, 0.0, near), 0.0)) * worth[points][None]

    def column(item):
        near = squares + squares[chosen[item]] - 2 * product(rows, offered[item])
        near = near.at[chosen[item]].set(0.0)
        return -jnp.sqrt(jnp.maximum(near, 0.0)) * worth

    def served(points, best):
        return jnp.sum(jnp.maximum(similarity(points) - best[None], 0.0), axis=1)

    def lost(points, old, new):
        return jnp.sum(jnp.clip(similarity(points), old[None], new[None]) - old[None], axis=1)

    def with_floor(start):
        """Similarities of the next points, and of each the lowest, that of the phantom."""
        places = start + jnp.arange(block, dtype=jnp.int32)
        points = jnp.minimum(places, count - 1)
        near = similarity(points)
        # Similarities are at most 0, so that with a floor of 0 a point gains nothing.
        return near, jnp.where(counts[points] & (places < count), jnp.min(near, axis=0), 0.0)

    starts = jnp.arange(0, count, block, dtype=jnp.int32)

    def value(mask):
        def gained(start):
            near, floor = with_floor(start)
            best = jnp.max(near, axis=0, where=mask[:, None], initial=-jnp.inf)
            return jnp.sum(jnp.maximum(best - floor, 0.0))

        return jnp.sum(jax.lax.map(gained, starts))

    def begin(gains, start):
        near, floor = with_floor(start)
        return gains + jnp.sum(jnp.maximum(near - floor[None], 0.0), axis=1), floor

    gains, floors = jax.lax.scan(begin, jnp.zeros(size, rows.dtype), starts)
    floor = floors.reshape(-1)[:count]
    function = caching_gains(size, floor, column, value, Passes(served, lost, block))
    return function._replace(init=lambda: Memo(floor, gains))


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
    worth = as_non_negative("weights", weights, "points")
    if worth.shape[0] != count:
        raise ValueError(f"weights: expected {count} points, got {worth.shape[0]}.")
    return worth


def _of_matrix(
    size: int,
    floor: Float[Array, " points"],
    rows: Callable[..., Float[Array, "... items"]],
    column: Callable[[Int[Array, ""]], Float[Array, " points"]],
) -> SetFunction:
    """``sum_i max(floor_i, max_{j in S} s_ij) - floor_i``."""
    all_points = slice(None)

    def value(mask):
        best = jnp.max(rows(all_points), axis=1, where=mask, initial=-jnp.inf)
        return jnp.sum(jnp.maximum(best - floor, 0.0))

    # Written as a sum of rows, since a reduction over the first axis is slow on a CPU.
    def served(points, best):
        block = range(points.shape[0])
        return reduce(add, (jnp.maximum(rows(points[i]) - best[i], 0.0) for i in block))

    def lost(points, old, new):
        block = range(points.shape[0])
        return reduce(add, (jnp.clip(rows(points[i]), old[i], new[i]) - old[i] for i in block))

    few = floor.shape[0] * size <= _SMALL
    if not few and target.current().is_cpu:
        return caching_gains(size, floor, column, value, Passes(served, lost, _ROWS))
    return SetFunction(
        size=size,
        value=value,
        init=lambda: floor,
        gains=lambda best: jnp.sum(jnp.maximum(rows(all_points) - best[:, None], 0.0), axis=0),
        gain=lambda best, item: jnp.sum(jnp.maximum(column(item) - best, 0.0)),
        add=lambda best, item: jnp.maximum(best, column(item)),
    )
