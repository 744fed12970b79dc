"""Facility location that caches the gains of all items between steps of greedy.

Adding an item changes gains only through the points whose best similarity it raises: in total 2 to
4 times the number of points, while recomputing visits all points in every step.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedjax_fair.submodular.base import ArraySetFunction
from fedjax_fair.utils.tree import Integer


class Memo(NamedTuple):
    """Best similarity of every point, and the gain of every item if it is cached."""

    best: Float[Array, " points"]
    gains: Float[Array, " items"] | tuple[()]


class CachedGains(ArraySetFunction):
    """Facility location, ``sum_i max(floor_i, max_{j in S} s_ij) - floor_i``.

    A subclass defines similarities, and sums over a block of points for every item.
    """

    @property
    def _caches(self) -> bool:
        return True

    @property
    @abc.abstractmethod
    def _block(self) -> int:
        """Number of points of a block."""

    @abc.abstractmethod
    def _floor(self) -> Float[Array, " points"]:
        """Returns the similarity of each point to the empty set."""

    @abc.abstractmethod
    def _column(self, item: Integer) -> Float[Array, " points"]:
        """Returns the similarity of each point to an item."""

    @abc.abstractmethod
    def _served(self, points: Array, best: Array) -> Array:
        """Returns ``sum_i max(s_ij - best_i, 0)``, ``[items]``, over ``points``, ``[block]``."""

    @abc.abstractmethod
    def _lost(self, points: Array, old: Array, new: Array) -> Array:
        """Returns ``sum_i clip(s_ij, old_i, new_i) - old_i``, the decrease of ``_served``."""

    def init(self) -> PyTree:
        floor = self._floor()
        return Memo(floor, self._all_gains(floor) if self._caches else ())

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return memo.gains

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.sum(jnp.maximum(self._column(item) - memo.best, 0.0))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        num_points, block = memo.best.shape[0], self._block
        offered = self._column(item)
        best = jnp.maximum(memo.best, offered)
        if not self._caches:
            return Memo(best, ())
        lanes = jnp.arange(block, dtype=jnp.int32)
        ranks = jnp.cumsum(offered > memo.best, dtype=jnp.int32)
        count = ranks[-1]

        def subtract():
            def body(i, gains):
                places = i * block + lanes
                # Binary search finds the points that change without a list of all of them.
                points = jnp.searchsorted(ranks, jnp.minimum(places + 1, count))
                old = memo.best[points]
                new = jnp.where(places < count, best[points], old)
                return gains - self._lost(points, old, new)

            return jax.lax.fori_loop(0, -(-count // block), body, memo.gains)

        # If most points change, recomputing costs no more and discards the rounding errors of
        # former subtractions, with which some of a hundred items would differ from those of double
        # precision.
        gains = jax.lax.cond(3 * count > 2 * num_points, lambda: self._all_gains(best), subtract)
        return Memo(best, gains)

    def _all_gains(self, best: Float[Array, " points"]) -> Float[Array, " size"]:
        num_points, block = best.shape[0], self._block
        lanes = jnp.arange(block, dtype=jnp.int32)

        def body(i, gains):
            places = i * block + lanes
            points = jnp.minimum(places, num_points - 1)
            # Places beyond the end gain nothing.
            block_best = jnp.where(places < num_points, best[points], jnp.inf)
            return gains + self._served(points, block_best)

        return jax.lax.fori_loop(0, -(-num_points // block), body, jnp.zeros(self.size))
