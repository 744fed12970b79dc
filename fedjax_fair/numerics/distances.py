"""Euclidean distances between many long vectors, accurate also if they are nearly equal.

Differences of inner products would be mostly rounding error, so vectors are centered first, and the
few pairs that are still close are computed directly.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.numerics.products import product

__all__ = ["nearest", "pairwise_distances", "renewed_distances"]

# Features per matrix product, so that centering and multiplying share the cache of a CPU.
_CHUNK = 8192
# Rounding errors of squared distances are about 1e-7 of the squared lengths. Above this fraction of
# them a distance is accurate to 3e-6; at a thirtieth of it, only to 1e-4.
_NEAR = 3e-2
# Rows per batch of comparisons with all chosen rows.
_ROWS = 4096


def pairwise_distances(vectors: Float[Array, "n width"]) -> Float[Array, "n n"]:
    """Computes Euclidean distances of all pairs of rows, to a relative accuracy of 1e-5.

    Takes about as long as the product with the transpose, and a pass for each row with a near one.

    Args:
        vectors: One vector per row. One that is not finite, or whose square is not, has NaN
            distances, also from itself; others are not affected.

    Returns:
        A symmetric matrix, with zeros on the diagonal.

    Examples:
        >>> line = jnp.array([[0.0], [1.0], [10.0]])
        >>> jax.jit(pairwise_distances)(line).tolist()[0]
        [0.0, 1.0, 10.0]
    """
    # The sum of a row is finite if all its elements are; testing each element takes longer.
    finite = jnp.isfinite(product(vectors, jnp.ones(vectors.shape[1], vectors.dtype)))
    shares = finite.astype(vectors.dtype)
    shares = shares / jnp.maximum(jnp.sum(shares), 1)

    def centered_gram(part):
        part = jnp.where(finite[:, None], part, 0.0)
        part -= product(shares, part)[None]
        return product(part, part.T)

    gram = _sum_over_columns(vectors, centered_gram)
    squares = jnp.diagonal(gram)
    finite &= jnp.isfinite(squares)
    all_rows = jnp.arange(vectors.shape[0], dtype=jnp.int32)
    return _from_products(vectors, all_rows, (gram + gram.T) / 2, squares, finite)


def renewed_distances(
    distances: Float[Array, "n n"], vectors: Float[Array, "n width"], rows: Int[Array, " rows"]
) -> Float[Array, "n n"]:
    """Updates all distances after a few rows have changed.

    Args:
        distances: The distances of the previous rows.
        vectors: The current rows, as in `pairwise_distances`.
        rows: Indices of the changed rows, all different. Indices beyond the last row are ignored.

    Returns:
        A matrix as from `pairwise_distances`, with the same accuracy.

    Examples:
        >>> line = jnp.array([[0.0], [4.0], [10.0]])  # The second was 1.
        >>> before = jnp.array([[0.0, 1.0, 10.0], [1.0, 0.0, 9.0], [10.0, 9.0, 0.0]])
        >>> jax.jit(renewed_distances)(before, line, jnp.array([1])).tolist()
        [[0.0, 4.0, 10.0], [4.0, 0.0, 6.0], [10.0, 6.0, 0.0]]
    """
    places = jnp.minimum(rows, vectors.shape[0] - 1)
    shares = jnp.full(rows.shape[0], 1 / rows.shape[0], vectors.dtype)

    def centered_products(part):
        changed = part[places]
        changed = jnp.where(jnp.isfinite(changed), changed, 0.0)
        part -= product(shares, changed)[None]
        return product(part[places], part.T), jnp.sum(part**2, axis=1)

    products, squares = _sum_over_columns(vectors, centered_products)
    new = _from_products(vectors, places, products, squares, jnp.isfinite(squares))
    # A product may be rounded differently if its rows are exchanged.
    between_changed = new[:, places]
    symmetric = (between_changed + between_changed.T) / 2
    new = new.at[:, rows].set(symmetric, mode="drop")
    distances = distances.at[rows].set(new, mode="drop")
    return distances.at[:, rows].set(new.T, mode="drop")


def nearest(
    vectors: Float[Array, "n width"], chosen: Int[Array, " chosen"], mask: Bool[Array, " chosen"]
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """Finds the nearest of a few chosen rows to every row, in Euclidean distance.

    Rounding may decide between equally near rows.

    Args:
        vectors: One finite vector per row.
        chosen: Indices of different rows, which are nearest to themselves.
        mask: Mask of the chosen rows that can be nearest to other rows.

    Returns:
        The position in ``chosen`` of the nearest row, and the distance from it.

    Examples:
        >>> line = jnp.array([[0.0], [1.0], [10.0]])
        >>> places, distances = jax.jit(nearest)(line, jnp.array([2, 0]), jnp.ones(2, bool))
        >>> places.tolist(), distances.tolist()
        ([1, 1, 0], [0.0, 1.0, 0.0])
    """
    count = chosen.shape[0]
    members = vectors[chosen]
    center = product(jnp.full(count, 1 / count, vectors.dtype), members)
    members = members - center[None]
    squares = jnp.where(mask, jnp.sum(members**2, axis=1), jnp.inf)

    def place(row: Float[Array, " width"]) -> Int[Array, ""]:
        return jnp.argmin(squares - 2 * product(members, row - center)).astype(jnp.int32)

    places = jax.lax.map(place, vectors, batch_size=_ROWS)
    places = places.at[chosen].set(jnp.arange(count, dtype=jnp.int32))
    return places, jnp.sqrt(jnp.sum((vectors - vectors[chosen[places]]) ** 2, axis=1))


def _sum_over_columns(vectors: Float[Array, "n width"], function: Callable) -> PyTree:
    """Sums the results of a function of chunks of columns."""
    num_chunks, rest = divmod(vectors.shape[1], _CHUNK)

    def of_columns(start, size):
        return function(jax.lax.dynamic_slice_in_dim(vectors, start, size, axis=1))

    def add(i, sums):
        return jax.tree.map(jnp.add, sums, of_columns(i * _CHUNK, _CHUNK))

    sums = of_columns(num_chunks * _CHUNK, rest) if rest else of_columns(0, _CHUNK)
    return jax.lax.fori_loop(0 if rest else 1, num_chunks, add, sums) if num_chunks else sums


def _from_products(
    vectors: Float[Array, "n width"],
    rows: Int[Array, " rows"],
    products: Float[Array, "rows n"],
    squares: Float[Array, " n"],
    finite: Bool[Array, " n"],
) -> Float[Array, "rows n"]:
    """Computes distances of some rows from all, given inner products and squared lengths."""
    lengths = squares[rows][:, None] + squares[None, :]
    squared = jnp.maximum(lengths - 2 * products, 0.0)
    is_other = rows[:, None] != jnp.arange(squares.shape[0], dtype=rows.dtype)[None, :]
    both_finite = jnp.outer(finite[rows], finite)
    near = (squared < _NEAR * lengths) & is_other & both_finite
    squared = _recomputed(vectors, rows, jnp.where(is_other, squared, 0.0), near)
    return jnp.where(both_finite, jnp.sqrt(squared), jnp.nan)


def _recomputed(
    vectors: Float[Array, "n width"],
    rows: Int[Array, " rows"],
    squared: Float[Array, "rows n"],
    near: Bool[Array, "rows n"],
) -> Float[Array, "rows n"]:
    """Replaces the squared distances of near pairs by sums of squared differences, row by row."""

    def body(search):
        squared, near = search
        place = jnp.argmax(near.any(axis=1))
        row = rows[place]
        exact = jnp.sum((vectors - vectors[row][None]) ** 2, axis=1)
        new = jnp.where(near[place], exact, squared[place])
        # The distance of a pair is computed once, and entered for both of its rows.
        squared = squared.at[place].set(new).at[:, row].set(new[rows])
        return squared, near.at[place].set(False).at[:, row].set(False)

    squared, _ = jax.lax.while_loop(lambda search: search[1].any(), body, (squared, near))
    return squared
