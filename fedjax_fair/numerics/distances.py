"""Euclidean distances between many long vectors, accurate also where they are nearly equal.

Gradients of clients at a common model agree in most of their length. The usual way, from inner
products, subtracts numbers of that length from each other and is left with rounding errors. Here
the common part is taken out first, and the few pairs that are still close are computed directly.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.numerics.products import product

__all__ = ["nearest", "pairwise_distances", "renewed_distances"]

# Features per matrix product; beyond it, on a CPU, taking out the mean and multiplying do not stay
# in the cache together.
_CHUNK = 8192
# Rounding leaves errors of about 1e-7 of the squared lengths in squared distances. From this share
# of them on a distance is accurate to 3e-6; at a thirtieth of it, only to 1e-4.
_NEAR = 3e-2
# Rows that are compared with all chosen ones together.
_ROWS = 4096


def pairwise_distances(vectors: Float[Array, "n width"]) -> Float[Array, "n n"]:
    """Euclidean distances of all pairs of rows, to a relative accuracy of 1e-5.

    Takes about as long as the product of the matrix with its transpose, unless many rows nearly
    coincide: each row that has such a neighbor costs another pass over all rows.

    Args:
        vectors: One vector a row. One that is not finite, or whose square is not, has NaN
            distances, from itself as well; those between other rows are not affected.

    Returns:
        A symmetric matrix, with zeros on the diagonal.

    Examples:
        >>> line = jnp.array([[0.0], [1.0], [10.0]])
        >>> pairwise_distances(line)[0].tolist()
        [0.0, 1.0, 10.0]
    """
    # A product, since a sum is finite where all its terms are, and a test of each costs more.
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
    """All distances again, after a few of the rows have changed.

    Reads all rows once or twice and multiplies them by the few alone, instead of by each other.

    Args:
        distances: What `pairwise_distances`, or this function, said of the rows before.
        vectors: The rows now. Those that are not finite are treated as there.
        rows: Which have changed, all different. Numbers beyond the last row count for nothing.

    Returns:
        A matrix as from `pairwise_distances`, and as accurate.

    Examples:
        >>> line = jnp.array([[0.0], [1.0], [10.0]])
        >>> before = pairwise_distances(line)
        >>> renewed_distances(before, line.at[1].set(4.0), jnp.array([1])).tolist()
        [[0.0, 4.0, 10.0], [4.0, 0.0, 6.0], [10.0, 6.0, 0.0]]
    """
    places = jnp.minimum(rows, vectors.shape[0] - 1)
    shares = jnp.full(rows.shape[0], 1 / rows.shape[0], vectors.dtype)

    def centered_products(part):
        some = part[places]
        some = jnp.where(jnp.isfinite(some), some, 0.0)
        part -= product(shares, some)[None]
        return product(part[places], part.T), jnp.sum(part**2, axis=1)

    products, squares = _sum_over_columns(vectors, centered_products)
    new = _from_products(vectors, places, products, squares, jnp.isfinite(squares))
    # A product may be rounded otherwise where its two rows have changed places.
    among = new[:, places]
    new = new.at[:, rows].set((among + among.T) / 2, mode="drop")
    distances = distances.at[rows].set(new, mode="drop")
    return distances.at[:, rows].set(new.T, mode="drop")


def nearest(
    vectors: Float[Array, "n width"], chosen: Int[Array, " chosen"]
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """The nearest of a few chosen rows to every row, in Euclidean distance.

    Rows that are chosen are nearest to themselves. All others are compared by products of centered
    rows, 4,096 at a time, so that rounding may decide between two that are equally near; the
    distance to the one found is computed directly.

    Args:
        vectors: One finite vector a row.
        chosen: Different rows.

    Returns:
        The place in ``chosen`` of the nearest one, and the distance from it.

    Examples:
        >>> line = jnp.array([[0.0], [1.0], [10.0]])
        >>> places, distances = nearest(line, jnp.array([2, 0]))
        >>> places.tolist(), distances.tolist()
        ([1, 1, 0], [0.0, 1.0, 0.0])
    """
    count = chosen.shape[0]
    members = vectors[chosen]
    center = product(jnp.full(count, 1 / count, vectors.dtype), members)
    members = members - center[None]
    squares = jnp.sum(members**2, axis=1)

    def place(row: Float[Array, " width"]) -> Int[Array, ""]:
        products = product(members, row - center)
        return jnp.argmin(squares - 2 * products).astype(jnp.int32)

    places = jax.lax.map(place, vectors, batch_size=_ROWS)
    places = places.at[chosen].set(jnp.arange(count, dtype=jnp.int32))
    return places, jnp.sqrt(jnp.sum((vectors - vectors[chosen[places]]) ** 2, axis=1))


def _sum_over_columns(vectors: Float[Array, "n width"], function: Callable) -> PyTree:
    """Sums what a function makes of all columns, some of them at a time."""
    whole, rest = divmod(vectors.shape[1], _CHUNK)

    def of_columns(start, size):
        return function(jax.lax.dynamic_slice_in_dim(vectors, start, size, axis=1))

    def add(i, sums):
        return jax.tree.map(jnp.add, sums, of_columns(i * _CHUNK, _CHUNK))

    sums = of_columns(whole * _CHUNK, rest) if rest else of_columns(0, _CHUNK)
    return jax.lax.fori_loop(0 if rest else 1, whole, add, sums) if whole else sums


def _from_products(
    vectors: Float[Array, "n width"],
    rows: Int[Array, " rows"],
    products: Float[Array, "rows n"],
    squares: Float[Array, " n"],
    finite: Bool[Array, " n"],
) -> Float[Array, "rows n"]:
    """Distances of some rows from all, given inner products and squared lengths of all."""
    lengths = squares[rows][:, None] + squares[None, :]
    squared = jnp.maximum(lengths - 2 * products, 0.0)
    apart = rows[:, None] != jnp.arange(squares.shape[0], dtype=rows.dtype)[None, :]
    both = jnp.outer(finite[rows], finite)
    near = (squared < _NEAR * lengths) & apart & both
    squared = _directly(vectors, rows, jnp.where(apart, squared, 0.0), near)
    return jnp.where(both, jnp.sqrt(squared), jnp.nan)


def _directly(
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
        # What is known from one of two rows need not be computed from the other.
        squared = squared.at[place].set(new).at[:, row].set(new[rows])
        return squared, near.at[place].set(False).at[:, row].set(False)

    squared, _ = jax.lax.while_loop(lambda search: search[1].any(), body, (squared, near))
    return squared
