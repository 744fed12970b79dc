"""Disparity: sums and minima of distances within a set. Neither is submodular."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.arrays import as_symmetric
from fedjax_fair.submodular.base import SetFunction

__all__ = ["disparity_min", "disparity_sum"]


def disparity_sum(distances: ArrayLike) -> SetFunction:
    """The sum of the distances between all pairs of the set, each counted once.

    Monotone and supermodular: gains grow with the set, so that no bound for submodular functions
    holds, and ``lazy_greedy`` is wrong, as are maximizers by thresholds. ``greedy`` reaches at
    least half of the largest value that ``k`` items can have if the distances obey the triangle
    inequality. At its first step all gains are 0, and item 0 is chosen unless ``start`` says
    otherwise.

    Args:
        distances: ``[n, n]``, symmetric, >= 0. The diagonal does not count.

    Raises:
        ValueError: If the matrix is not square, symmetric and non-negative.

    References:
        Borodin, Lee, Ye, *Max-Sum Diversification, Monotone Submodular Functions and Dynamic
        Updates*, PODS 2012

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> line = jnp.array([0.0, 1.0, 10.0, 11.0])
        >>> chosen = greedy(disparity_sum(jnp.abs(line[:, None] - line[None])), 3)
        >>> chosen.items.tolist(), chosen.gains.tolist()
        ([0, 3, 1], [0.0, 11.0, 11.0])
    """
    matrix = as_symmetric("distances", distances)
    matrix = jnp.where(jnp.eye(matrix.shape[0], dtype=bool), 0, matrix)

    def value(mask):
        chosen = mask.astype(matrix.dtype)
        return product(chosen, product(matrix, chosen)) / 2

    return SetFunction(
        size=matrix.shape[0],
        value=value,
        init=lambda: jnp.zeros(matrix.shape[0], matrix.dtype),
        gains=lambda sums: sums,
        gain=lambda sums, item: sums[item],
        add=lambda sums, item: sums + matrix[item],
    )


def disparity_min(distances: ArrayLike) -> SetFunction:
    """The smallest distance between two items of the set; 0 for fewer than two.

    Neither monotone nor submodular: from the third item on no gain is positive. ``greedy`` is then
    farthest-first traversal, which reaches at least half of the largest value of ``k`` items if the
    distances obey the triangle inequality. It begins with item 0 unless ``start`` says otherwise.
    ``lazy_greedy``, and anything that stops where nothing is gained, have no meaning for it.

    Args:
        distances: ``[n, n]``, symmetric, >= 0. The diagonal does not count.

    Raises:
        ValueError: If the matrix is not square, symmetric and non-negative.

    References:
        Ravi, Rosenkrantz, Tayi, *Heuristic and Special Case Algorithms for Dispersion Problems*,
        Operations Research 1994

    Examples:
        >>> from fedjax_fair.submodular import greedy
        >>> line = jnp.array([0.0, 1.0, 4.0, 11.0])
        >>> chosen = greedy(disparity_min(jnp.abs(line[:, None] - line[None])), 3)
        >>> chosen.items.tolist(), chosen.gains.tolist()
        ([0, 3, 2], [0.0, 11.0, -7.0])
    """
    matrix = as_symmetric("distances", distances)
    nothing = jnp.full(matrix.shape[0], jnp.inf, matrix.dtype)
    apart = ~jnp.eye(matrix.shape[0], dtype=bool)

    # The memo is the value, infinite below two items, and the distance of each item to the set.
    def gains(memo):
        smallest, nearest = memo
        return _finite(jnp.minimum(smallest, nearest)) - _finite(smallest)

    def add(memo, item):
        smallest, nearest = memo
        return jnp.minimum(smallest, nearest[item]), jnp.minimum(nearest, matrix[item])

    return SetFunction(
        size=matrix.shape[0],
        value=lambda mask: _finite(
            jnp.min(matrix, where=jnp.outer(mask, mask) & apart, initial=jnp.inf)
        ),
        init=lambda: (jnp.array(jnp.inf, matrix.dtype), nothing),
        gains=gains,
        gain=lambda memo, item: gains((memo[0], memo[1][item])),
        add=add,
    )


def _finite(distance: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.isinf(distance), 0, distance)
