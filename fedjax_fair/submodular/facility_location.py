"""Facility location: a set is worth what its members offer to those they serve best.

The gains of all items are kept rather than computed anew. When an item joins, only points that it
serves better than anyone before change anything, and few do after the first steps: over a whole run
2 to 4 times the number of points, where computing anew would touch all of them at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair.submodular.base import SetFunction, as_finite, as_non_negative, as_symmetric

__all__ = [
    "facility_location",
    "facility_location_from_distances",
    "facility_location_from_features",
]

# Where the similarities of a step are so few, or the device so fast at reading all of them, that
# keeping track costs more than it saves.
_SMALL = 300 * 300
_KEEPS_GAINS = {"cpu": True}

# Points whose rows are gone through together: for a matrix few enough to stay in the nearest cache,
# for features enough to make a matrix product of.
_ROWS = 16
_POINTS = 128


def facility_location(similarity: ArrayLike) -> SetFunction:
    r"""``sum_i max_{j in S} s_ij``: monotone submodular.

    Args:
        similarity: Of every point to every item, ``[points, items]``, >= 0.

    Raises:
        ValueError: If a similarity is negative or not finite.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> similarity = jnp.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        >>> greedy(facility_location(similarity), 2).items.tolist()
        [0, 1]
    """
    matrix = as_non_negative("similarity", similarity, "points items")
    return _of_matrix(
        matrix.shape[1],
        jnp.zeros(matrix.shape[0]),
        rows=lambda points: matrix[points],
        column=lambda item: matrix[:, item],
    )


def facility_location_from_distances(distances: ArrayLike) -> SetFunction:
    r"""How much closer a set is to all items than nobody would be: monotone submodular.

    :math:`G(S) = \sum_i (a_i - \min_{j \in S \cup \{\text{phantom}\}} D_{ij})`, where the phantom
    member is as far from item *i* as the farthest item, :math:`a_i = \max_j D_{ij}`. For gradient
    distances it is the representation of DivFL and of Castillo et al. (2024, equations 9 and 10).

    Args:
        distances: ``[n, n]``, symmetric, >= 0.

    Raises:
        ValueError: If the matrix is not square, symmetric and non-negative.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> line = jnp.array([0.0, 1.0, 10.0, 11.0])
        >>> distances = jnp.abs(line[:, None] - line[None])
        >>> chosen = greedy(facility_location_from_distances(distances), 2)
        >>> chosen.items.tolist(), float(chosen.value)
        ([1, 2], 40.0)
    """
    matrix = as_symmetric("distances", distances)

    def similarity(points):  # Negated where it is read, rather than once for all.
        return -matrix[points]

    # A row is the same as a column, and lies together in memory.
    floor = -jnp.max(matrix, axis=1)
    return _of_matrix(matrix.shape[0], floor, rows=similarity, column=similarity)


def facility_location_from_features(features: ArrayLike) -> SetFunction:
    """As from the Euclidean distances of rows, but without a matrix of all of them.

    Distances are computed for 128 points at a time and forgotten, from products of centred
    features: accurate to about 3e-4 of the length of a centred row, so that closer neighbours count
    as that far apart. Memory is a few blocks of ``128 * n`` floats, 340 MB for 100,000 items (their
    distances would take 40 GB). Time is that of a few passes over all distances.

    Args:
        features: One row an item, ``[n, width]``.

    Raises:
        ValueError: If a number is not finite.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> line = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> greedy(facility_location_from_features(line), 2).items.tolist()
        [1, 2]
    """
    rows = as_finite("features", features, "n width")
    size = rows.shape[0]
    rows = rows - (jnp.full(size, 1 / size, rows.dtype) @ rows)[None]
    squares = jnp.sum(rows**2, axis=1)

    def similarity(points: Int[Array, " points"]) -> Float[Array, "n points"]:
        near = squares[:, None] + squares[points][None] - 2 * rows @ rows[points].T
        own = jnp.arange(size)[:, None] == points[None]
        return -jnp.sqrt(jnp.maximum(jnp.where(own, 0.0, near), 0.0))

    def served(points, best):
        return jnp.sum(jnp.maximum(similarity(points) - best[None], 0.0), axis=1)

    def lost(points, old, new):
        return jnp.sum(jnp.clip(similarity(points), old[None], new[None]) - old[None], axis=1)

    def farthest(start):
        return jnp.min(similarity((start + jnp.arange(_POINTS)) % size), axis=0)

    starts = jnp.arange(0, size, _POINTS)
    floor = jax.lax.map(farthest, starts).reshape(-1)[:size]

    def column(item):
        return similarity(item[None])[:, 0]

    def value(mask):
        def nearest(start):
            points = (start + jnp.arange(_POINTS)) % size
            return jnp.max(similarity(points), axis=0, where=mask[:, None], initial=-jnp.inf)

        best = jax.lax.map(nearest, starts).reshape(-1)[:size]
        return jnp.sum(jnp.maximum(best - floor, 0.0))

    return _keeping_gains(size, floor, column, value, _Passes(served, lost, _POINTS))


def _of_matrix(
    size: int,
    floor: Float[Array, " points"],
    rows: Callable[..., Float[Array, "... items"]],
    column: Callable[[Int[Array, ""]], Float[Array, " points"]],
) -> SetFunction:
    """``sum_i max(floor_i, max_{j in S} s_ij) - floor_i``."""
    everybody = slice(None)

    def value(mask):
        best = jnp.max(rows(everybody), axis=1, where=mask, initial=-jnp.inf)
        return jnp.sum(jnp.maximum(best - floor, 0.0))

    # Written as a sum of rows, since a reduction over the first axis is slow on a CPU.
    def served(points, best):
        block = range(points.shape[0])
        return reduce(add, (jnp.maximum(rows(points[i]) - best[i], 0.0) for i in block))

    def lost(points, old, new):
        block = range(points.shape[0])
        return reduce(add, (jnp.clip(rows(points[i]), old[i], new[i]) - old[i] for i in block))

    few = floor.shape[0] * size <= _SMALL
    if not few and _KEEPS_GAINS.get(jax.default_backend(), False):
        return _keeping_gains(size, floor, column, value, _Passes(served, lost, _ROWS))
    return SetFunction(
        size=size,
        value=value,
        init=lambda: floor,
        gains=lambda best: jnp.sum(jnp.maximum(rows(everybody) - best[:, None], 0.0), axis=0),
        gain=lambda best, item: jnp.sum(jnp.maximum(column(item) - best, 0.0)),
        add=lambda best, item: jnp.maximum(best, column(item)),
    )


class _Passes(NamedTuple):
    """Sums over a block of points, for every item.

    Attributes:
        served: ``served(points, best) -> [items]``, by how much better than ``best`` it would
            serve each of them.
        lost: ``lost(points, old, new) -> [items]``, by how much less that is once they are served
            as well as ``new`` rather than ``old``.
        block: Number of points.
    """

    served: Callable[..., Float[Array, " items"]]
    lost: Callable[..., Float[Array, " items"]]
    block: int


class _Memo(NamedTuple):
    """How well every point is served, and what each item would add."""

    best: Float[Array, " points"]
    gains: Float[Array, " items"]


def _keeping_gains(
    size: int,
    floor: Float[Array, " points"],
    column: Callable[[Int[Array, ""]], Float[Array, " points"]],
    value: Callable[[Bool[Array, " items"]], Float[Array, ""]],
    passes: _Passes,
) -> SetFunction:
    num_points, block = floor.shape[0], passes.block
    lanes = jnp.arange(block, dtype=jnp.int32)

    def all_gains(best):
        def body(i, gains):
            places = i * block + lanes
            points = jnp.minimum(places, num_points - 1)
            # Nobody can serve those beyond the end any better.
            return gains + passes.served(
                points, jnp.where(places < num_points, best[points], jnp.inf)
            )

        return jax.lax.fori_loop(0, -(-num_points // block), body, jnp.zeros(size))

    def init():
        return _Memo(floor, all_gains(floor))

    def join(memo, item):
        offered = column(item)
        best = jnp.maximum(memo.best, offered)
        ranks = jnp.cumsum(offered > memo.best)
        count = ranks[-1]

        def subtract():
            def body(i, gains):
                places = i * block + lanes
                # The points that change, found one by one rather than listed.
                points = jnp.searchsorted(ranks, jnp.minimum(places + 1, count))
                old = memo.best[points]
                new = jnp.where(places < count, best[points], old)
                return gains - passes.lost(points, old, new)

            return jax.lax.fori_loop(0, -(-count // block), body, memo.gains)

        # Where most points change it is no more work to start anew, which also keeps rounding from
        # adding up: without it some of a hundred items differ from those of double precision.
        gains = jax.lax.cond(3 * count > 2 * num_points, lambda: all_gains(best), subtract)
        return _Memo(best, gains)

    return SetFunction(
        size=size,
        value=value,
        init=init,
        gains=lambda memo: memo.gains,
        gain=lambda memo, item: jnp.sum(jnp.maximum(column(item) - memo.best, 0.0)),
        add=join,
    )
