"""Disparity: sums and minima of distances within a set. Neither is submodular."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.arrays import as_symmetric
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.tree import Integer

__all__ = ["DisparityMin", "DisparitySum"]


class DisparitySum(SetFunction):
    """The sum of the distances between all pairs of the set, each counted once.

    Monotone and supermodular: gains grow with the set, so that no bound for submodular functions
    holds, and ``lazy_greedy`` is wrong, as are maximizers by thresholds. ``greedy`` reaches at
    least half of the largest value that ``k`` items can have if the distances obey the triangle
    inequality. At its first step all gains are 0, and item 0 is chosen unless ``initial_items`` says
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
        >>> chosen = greedy(DisparitySum(jnp.abs(line[:, None] - line[None])), 3)
        >>> chosen.items.tolist(), chosen.gains.tolist()
        ([0, 3, 1], [0.0, 11.0, 11.0])
    """

    distances: Float[Array, "n n"]

    def __post_init__(self) -> None:
        matrix = as_symmetric("distances", self.distances)
        own = jnp.eye(matrix.shape[0], dtype=bool)
        self._convert(distances=jnp.where(own, 0, matrix))

    @property
    def size(self) -> int:
        return self.distances.shape[-1]

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        chosen = mask.astype(self.distances.dtype)
        return product(chosen, product(self.distances, chosen)) / 2

    def init(self) -> PyTree:
        return jnp.zeros(self.size, self.distances.dtype)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return memo

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return memo[item]

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return memo + self.distances[item]


class DisparityMin(SetFunction):
    """The smallest distance between two items of the set; 0 for fewer than two.

    Neither monotone nor submodular: from the third item on no gain is positive. ``greedy`` is then
    farthest-first traversal, which reaches at least half of the largest value of ``k`` items if the
    distances obey the triangle inequality. It begins with item 0 unless ``initial_items`` says otherwise.
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
        >>> chosen = greedy(DisparityMin(jnp.abs(line[:, None] - line[None])), 3)
        >>> chosen.items.tolist(), chosen.gains.tolist()
        ([0, 3, 2], [0.0, 11.0, -7.0])
    """

    distances: Float[Array, "n n"]

    def __post_init__(self) -> None:
        self._convert(distances=as_symmetric("distances", self.distances))

    @property
    def size(self) -> int:
        return self.distances.shape[-1]

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        pairs = jnp.outer(mask, mask) & ~jnp.eye(self.size, dtype=bool)
        return _finite(jnp.min(self.distances, where=pairs, initial=jnp.inf))

    # The memo is the value, infinite below two items, and the distance of each item to the set.
    def init(self) -> PyTree:
        dtype = self.distances.dtype
        return jnp.array(jnp.inf, dtype), jnp.full(self.size, jnp.inf, dtype)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return _decrease(*memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        smallest, nearest = memo
        return _decrease(smallest, nearest[item])

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        smallest, nearest = memo
        return jnp.minimum(smallest, nearest[item]), jnp.minimum(nearest, self.distances[item])


def _decrease(smallest: Float[Array, ""], nearest: Float[Array, "..."]) -> Float[Array, "..."]:
    return _finite(jnp.minimum(smallest, nearest)) - _finite(smallest)


def _finite(distance: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.isinf(distance), 0, distance)
