"""Facility location with the gains of all items cached from step to step of greedy.

When an item is added, only the points whose best similarity it raises change any gain, and after
the first steps these are few: over a whole run 2 to 4 times the number of points, where recomputing
would go through all of them at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.submodular.base import SetFunction

__all__ = ["Memo", "Passes", "caching_gains"]


class Passes(NamedTuple):
    """Sums over a block of points, for every item.

    Attributes:
        served: ``served(points, best) -> [items]``, ``sum_i max(s_ij - best_i, 0)``.
        lost: ``lost(points, old, new) -> [items]``, ``sum_i clip(s_ij, old_i, new_i) - old_i``: by
            how much these sums decrease when ``best`` rises from ``old`` to ``new``.
        block: Number of points.
    """

    served: Callable[..., Float[Array, " items"]]
    lost: Callable[..., Float[Array, " items"]]
    block: int


class Memo(NamedTuple):
    """The best similarity of every point to the set, and the gain of every item."""

    best: Float[Array, " points"]
    gains: Float[Array, " items"]


def caching_gains(
    size: int,
    floor: Float[Array, " points"],
    column: Callable[[Int[Array, ""]], Float[Array, " points"]],
    value: Callable[[Bool[Array, " items"]], Float[Array, ""]],
    passes: Passes,
) -> SetFunction:
    """Facility location, ``sum_i max(floor_i, max_{j in S} s_ij) - floor_i``.

    Args:
        size: Number of items.
        floor: The similarity of each point to the empty set.
        column: ``column(item) -> [points]``, the similarity of each point to the item.
        value: The function itself, of a mask over items.
        passes: Sums over points for all items.
    """
    num_points, block = floor.shape[0], passes.block
    lanes = jnp.arange(block, dtype=jnp.int32)

    def all_gains(best):
        def body(i, gains):
            places = i * block + lanes
            points = jnp.minimum(places, num_points - 1)
            # Places beyond the end gain nothing.
            return gains + passes.served(
                points, jnp.where(places < num_points, best[points], jnp.inf)
            )

        return jax.lax.fori_loop(0, -(-num_points // block), body, jnp.zeros(size))

    def init():
        return Memo(floor, all_gains(floor))

    def add(memo, item):
        offered = column(item)
        best = jnp.maximum(memo.best, offered)
        ranks = jnp.cumsum(offered > memo.best, dtype=jnp.int32)
        count = ranks[-1]

        def subtract():
            def body(i, gains):
                places = i * block + lanes
                # The points that change, by binary search rather than from a list of all of them.
                points = jnp.searchsorted(ranks, jnp.minimum(places + 1, count))
                old = memo.best[points]
                new = jnp.where(places < count, best[points], old)
                return gains - passes.lost(points, old, new)

            return jax.lax.fori_loop(0, -(-count // block), body, memo.gains)

        # Where most points change, recomputing is no more work, and it discards the rounding errors
        # of former subtractions: without it some of a hundred items differ from those of double
        # precision.
        gains = jax.lax.cond(3 * count > 2 * num_points, lambda: all_gains(best), subtract)
        return Memo(best, gains)

    return SetFunction(
        size=size,
        value=value,
        init=init,
        gains=lambda memo: memo.gains,
        gain=lambda memo, item: jnp.sum(jnp.maximum(column(item) - memo.best, 0.0)),
        add=add,
    )
