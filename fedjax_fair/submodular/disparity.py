"""Disparity functions: the sum and the minimum of distances in a set. Neither is submodular."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.checked_arrays import as_symmetric
from fedjax_fair.submodular.set_function import ArraySetFunction
from fedjax_fair.utils.tree import Integer

__all__ = ["DisparityMin", "DisparitySum"]


class _Disparity(ArraySetFunction):
    distances: Float[Array, "n n"]

    def __post_init__(self) -> None:
        self._convert(distances=as_symmetric("distances", self.distances))


class DisparitySum(_Disparity):
    """The sum of the distances of all pairs in the set.

    Monotone and supermodular: gains grow with the set, so ``lazy_greedy`` and threshold maximizers
    are wrong. ``greedy`` reaches at least half of the optimum over ``k`` items if the distances
    obey the triangle inequality; it begins with item 0.

    Args:
        distances: ``[n, n]``, symmetric, >= 0. The diagonal is ignored.

    References:
        Borodin, Lee, Ye, *Max-Sum Diversification, Monotone Submodular Functions and Dynamic
        Updates*, PODS 2012

    Examples:
        >>> import numpy as np
        >>> from fedjax_fair.submodular import greedy
        >>> line = np.array([0.0, 1.0, 10.0, 11.0])
        >>> result = greedy(DisparitySum(abs(line[:, None] - line)), 3)
        >>> result.items.tolist(), result.gains.tolist()
        ([0, 3, 1], [0.0, 11.0, 11.0])
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        diagonal = jnp.eye(self.size, dtype=bool)
        self._convert(distances=jnp.where(diagonal, 0, self.distances))

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        chosen = mask.astype(self.distances.dtype)
        return product(chosen, product(self.distances, chosen)) / 2

    def init(self) -> PyTree:
        return jnp.zeros(self.size, self.distances.dtype)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return memo

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return memo + self.distances[item]


class DisparityMin(_Disparity):
    """The smallest distance of a pair in the set; 0 for fewer than two items.

    Neither monotone nor submodular: from the third item on no gain is positive, so ``lazy_greedy``
    and ``min_gain`` are not applicable. ``greedy`` is farthest-first traversal from item 0, which
    reaches at least half of the optimum over ``k`` items if the distances obey the triangle
    inequality.

    Args:
        distances: ``[n, n]``, symmetric, >= 0. The diagonal is ignored.

    References:
        Ravi, Rosenkrantz, Tayi, *Heuristic and Special Case Algorithms for Dispersion Problems*,
        Operations Research 1994

    Examples:
        >>> import numpy as np
        >>> from fedjax_fair.submodular import greedy
        >>> line = np.array([0.0, 1.0, 4.0, 11.0])
        >>> result = greedy(DisparityMin(abs(line[:, None] - line)), 3)
        >>> result.items.tolist(), result.gains.tolist()
        ([0, 3, 2], [0.0, 11.0, -7.0])
    """

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        pairs = jnp.outer(mask, mask) & ~jnp.eye(self.size, dtype=bool)
        return _finite(jnp.min(self.distances, where=pairs, initial=jnp.inf))

    # The memo is the value, infinite below two items, and the distance of each item to the set.
    def init(self) -> PyTree:
        dtype = self.distances.dtype
        return jnp.array(jnp.inf, dtype), jnp.full(self.size, jnp.inf, dtype)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        smallest, nearest = memo
        return _finite(jnp.minimum(smallest, nearest)) - _finite(smallest)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        smallest, nearest = memo
        return jnp.minimum(smallest, nearest[item]), jnp.minimum(nearest, self.distances[item])


def _finite(distance: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.isinf(distance), 0, distance)
