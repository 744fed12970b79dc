"""Facility location of Euclidean distances between feature rows, without a distance matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.numerics import target
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.cached_gains import CachedGains, Memo
from fedjax_fair.submodular.checked_arrays import as_finite, as_items, as_mask, as_non_negative
from fedjax_fair.utils.tree import Integer

__all__ = ["FacilityLocationFromFeatures", "facility_location_from_features"]

# Points whose distances are computed together, by a matrix product. An accelerator needs more.
_POINTS = 128


class FacilityLocationFromFeatures(CachedGains):
    """Result of ``facility_location_from_features``, which checks its arguments.

    Args:
        rows: Centered features, ``[points, width]``.
        squares: Their squared lengths, ``[points]``.
        items: Row of each item, ``[items]``; the first of equal ones.
        counted: Mask of the points that count, ``[points]``; of equal ones only the first.
        weights: Weight of each point and those equal to it, ``[points]``.
        floor: Similarity of each point to the phantom, ``[points]``.
        first_gains: Gain of each item at the empty set, ``[items]``.
        valid_items: Mask of the items that represent points, ``[items]``; None for all.
    """

    rows: Float[Array, "points width"]
    squares: Float[Array, " points"]
    items: Int[Array, " items"]
    counted: Bool[Array, " points"]
    weights: Float[Array, " points"]
    floor: Float[Array, " points"]
    first_gains: Float[Array, " items"]
    valid_items: Bool[Array, " items"] | None = None

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
    def _item_squares(self) -> Float[Array, " items"]:
        squares = self.squares[self.items]
        if self.valid_items is None:
            return squares
        # Farther from every point than any other item, so that they gain nothing. Not infinite,
        # which a weight of 0 would turn into NaN.
        return jnp.where(self.valid_items, squares, jnp.finfo(squares.dtype).max / 4)

    @property
    def _own_points(self) -> Int[Array, " items"]:
        """The point of each item, to which its distance is 0; out of bounds if invalid."""
        if self.valid_items is None:
            return self.items
        return jnp.where(self.valid_items, self.items, self.rows.shape[-2])

    @property
    def _starts(self) -> Int[Array, " blocks"]:
        return jnp.arange(0, self.rows.shape[-2], self._block, dtype=jnp.int32)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        def block_value(start):
            near, floor = self._with_floor(start)
            best = jnp.max(near, axis=0, where=mask[:, None], initial=-jnp.inf)
            return jnp.sum(jnp.maximum(best - floor, 0.0))

        return jnp.sum(jax.lax.map(block_value, self._starts))

    def init(self) -> PyTree:
        return Memo(self.floor, self.first_gains, self.first_gains)

    def _floor(self) -> Float[Array, " points"]:
        return self.floor

    def _column(self, item: Integer) -> Float[Array, " points"]:
        row = self.items[item]
        near = self.squares + self._item_squares[item] - 2 * product(self.rows, self.rows[row])
        near = near.at[self._own_points[item]].set(0.0, mode="drop")
        return -jnp.sqrt(jnp.maximum(near, 0.0)) * self.weights

    def _equal_items(self, item: Integer) -> Bool[Array, " items"]:
        equal = self.items == self.items[item]
        return equal if self.valid_items is None else equal & self.valid_items[item]

    def _served(self, points: Array, best: Array) -> Array:
        return jnp.sum(jnp.maximum(self._similarity(points) - best[None], 0.0), axis=1)

    def _lost(self, points: Array, old: Array, new: Array) -> Array:
        near = self._similarity(points)
        return jnp.sum(jnp.clip(near, old[None], new[None]) - old[None], axis=1)

    def _similarity(self, points: Int[Array, " block"]) -> Float[Array, "items block"]:
        near = self._item_squares[:, None] + self.squares[points][None]
        near = near - 2 * product(self.rows[self.items], self.rows[points].T)
        itself = self._own_points[:, None] == points[None]
        near = jnp.maximum(jnp.where(itself, 0.0, near), 0.0)
        return -jnp.sqrt(near) * self.weights[points][None]

    def _with_floor(self, start: Array) -> tuple[Array, Array]:
        """Returns similarities, ``[items, block]``, and to the phantom, ``[block]``."""
        count = self.rows.shape[-2]
        places = start + jnp.arange(self._block, dtype=jnp.int32)
        points = jnp.minimum(places, count - 1)
        near = self._similarity(points)
        # Similarities are at most 0, so that with a floor of 0 a point gains nothing.
        counts = self.counted[points] & (places < count)
        mask = None if self.valid_items is None else self.valid_items[:, None]
        farthest = jnp.min(near, axis=0, where=mask, initial=0.0)
        return near, jnp.where(counts, farthest, 0.0)


def facility_location_from_features(
    features: ArrayLike,
    items: ArrayLike | None = None,
    counted: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    valid_items: ArrayLike | None = None,
) -> FacilityLocationFromFeatures:
    """Returns ``facility_location_from_distances`` of the rows, without a matrix of distances.

    Euclidean distances are computed in blocks of 128 points, to about 3e-4 of the length of a
    centered row; closer neighbors count as that far apart. Memory is a few blocks of ``128 *
    items`` floats, 340 MB for 100,000 items.

    Args:
        features: One row for each point, ``[points, width]``.
        items: Distinct rows that may be selected, ``[items]``: item ``j`` of the function is row
            ``items[j]``. By default all.
        counted: Mask of the points that count, ``[points]``; by default all.
        weights: Weight of each point, ``[points]``, >= 0; by default 1.
        valid_items: Mask of the items that represent points, ``[items]``; by default all. The
            others gain nothing and do not define the phantom.

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> import numpy as np
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> greedy(facility_location_from_features(line), 2).items.tolist()
        [1, 2]
        >>> greedy(facility_location_from_features(line, items=[0, 3]), 1).items.tolist()
        [0]
    """
    rows = as_finite("features", features, "points width")
    if rows.dtype.itemsize < 4:
        rows = rows.astype(jnp.float32)
    count = rows.shape[0]
    chosen = (
        jnp.arange(count, dtype=jnp.int32) if items is None else as_items("items", items, count)
    )
    if not chosen.size:
        raise ValueError(
            f"items: expected at least one row, got shape {chosen.shape}; pass None for all rows."
        )
    mask = jnp.ones(count, bool) if counted is None else as_mask("counted", counted, (count,))
    if weights is not None:
        weights = as_non_negative("weights", weights, "points", count)
    weights = jnp.ones(count, rows.dtype) if weights is None else weights
    if valid_items is not None:
        valid_items = as_mask("valid_items", valid_items, chosen.shape)
    function = _of_features(rows, chosen, mask, weights, valid_items)
    as_non_negative("squared lengths of features", function.squares, "points")
    return function


@jax.jit
def _of_features(features, items, counted, weights, valid_items) -> FacilityLocationFromFeatures:
    count, size = features.shape[0], items.shape[0]
    rows = features - product(jnp.full(count, 1 / count, features.dtype), features)[None]
    squares = jnp.sum(rows**2, axis=1)
    # Equal rows are one point, to which all items of these rows are equally near: distances by
    # products would differ in rounding.
    first = _first_equal(rows, squares)
    weights = jax.ops.segment_sum(jnp.where(counted, weights, 0.0), first, count)
    counted = jnp.zeros(count, bool).at[first].max(counted)
    zeros = jnp.zeros(size, rows.dtype)
    function = FacilityLocationFromFeatures(
        rows,
        squares,
        first[items],
        counted,
        weights,
        floor=jnp.zeros(count, rows.dtype),
        first_gains=zeros,
        valid_items=valid_items,
    )

    def step(gains, start):
        near, floor = function._with_floor(start)
        return gains + jnp.sum(jnp.maximum(near - floor[None], 0.0), axis=1), floor

    gains, floors = jax.lax.scan(step, zeros, function._starts)
    return function.replace(floor=floors.reshape(-1)[:count], first_gains=gains)


def _first_equal(
    rows: Float[Array, "points width"], squares: Float[Array, " points"]
) -> Int[Array, " points"]:
    """Returns the first row that equals each row."""
    places = jnp.arange(rows.shape[0], dtype=jnp.int32)
    # Equal rows are neighbors in this order, since other rows hardly ever have both sums.
    mix = jnp.sin(jnp.arange(1, rows.shape[1] + 1, dtype=jnp.float32)).astype(rows.dtype)
    mixed = jnp.sum(rows * mix[None], axis=1)
    order = jnp.lexsort((mixed, squares)).astype(jnp.int32)
    sums = jnp.stack([squares, mixed])[:, order]
    begins = jnp.append(True, (sums[:, 1:] != sums[:, :-1]).any(axis=0))
    run = jax.lax.cummax(jnp.where(begins, places, 0))
    first = jnp.zeros_like(places).at[order].set(order[run])
    return jnp.where((rows == rows[first]).all(axis=1), first, places)
