"""Euclidean distances between many long vectors, accurate also where they are nearly equal.

Gradients of clients at a common model agree in most of their length. The usual way, from inner
products, subtracts numbers of that length from each other and is left with rounding errors. Here
the common part is taken out first, and the few pairs that are still close are computed directly.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.numerics.products import product

__all__ = ["nearest", "pairwise_distances"]

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
    gram = _centered_gram(vectors, finite)
    squares = jnp.diagonal(gram)
    finite &= jnp.isfinite(squares)
    lengths = squares[:, None] + squares[None, :]
    squared = jnp.maximum(lengths - 2 * gram, 0.0)
    squared = (squared + squared.T) / 2
    apart = ~jnp.eye(vectors.shape[0], dtype=bool)
    both = jnp.outer(finite, finite)
    near = (squared < _NEAR * lengths) & apart & both
    squared = _directly(vectors, jnp.where(apart, squared, 0.0), near)
    return jnp.where(both, jnp.sqrt(squared), jnp.nan)


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


def _centered_gram(
    vectors: Float[Array, "n width"], finite: Bool[Array, " n"]
) -> Float[Array, "n n"]:
    """Inner products of the rows less their mean; those of rows that are not finite are zero."""
    count, width = vectors.shape
    shares = finite.astype(vectors.dtype)
    shares = shares / jnp.maximum(jnp.sum(shares), 1)

    def of_columns(start, size):
        part = jax.lax.dynamic_slice_in_dim(vectors, start, size, axis=1)
        part = jnp.where(finite[:, None], part, 0.0)
        part = jnp.where(finite[:, None], part - product(shares, part)[None], 0.0)
        return product(part, part.T)

    whole, rest = divmod(width, _CHUNK)
    gram = of_columns(whole * _CHUNK, rest) if rest else jnp.zeros((count, count), vectors.dtype)
    if not whole:
        return gram
    return jax.lax.fori_loop(0, whole, lambda i, sums: sums + of_columns(i * _CHUNK, _CHUNK), gram)


def _directly(
    vectors: Float[Array, "n width"], squared: Float[Array, "n n"], near: Bool[Array, "n n"]
) -> Float[Array, "n n"]:
    """Replaces the squared distances of near pairs by sums of squared differences, row by row."""

    def body(search):
        squared, near = search
        row = jnp.argmax(near.any(axis=1))
        exact = jnp.sum((vectors - vectors[row][None]) ** 2, axis=1)
        new = jnp.where(near[row], exact, squared[row])
        squared = squared.at[row].set(new).at[:, row].set(new)
        return squared, near.at[row].set(False).at[:, row].set(False)

    squared, _ = jax.lax.while_loop(lambda search: search[1].any(), body, (squared, near))
    return squared
