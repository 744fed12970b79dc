"""The gains of all items, kept from step to step of a greedy rather than computed anew.

When an item joins, only points that it serves better than anyone before change anything, and few do
after the first steps: over a whole run 2 to 4 times the number of points, where computing anew
would touch all of them at every step.
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
        served: ``served(points, best) -> [items]``, by how much better than ``best`` it would
            serve each of them.
        lost: ``lost(points, old, new) -> [items]``, by how much less that is once they are served
            as well as ``new`` rather than ``old``.
        block: Number of points.
    """

    served: Callable[..., Float[Array, " items"]]
    lost: Callable[..., Float[Array, " items"]]
    block: int


class Memo(NamedTuple):
    """How well every point is served, and what each item would add."""

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
        floor: How well each point is served by nobody.
        column: ``column(item) -> [points]``, how well it serves each of them.
        value: The function itself, of a mask over items.
        passes: Sums over points for all items.
    """
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
        return Memo(floor, all_gains(floor))

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
        return Memo(best, gains)

    return SetFunction(
        size=size,
        value=value,
        init=init,
        gains=lambda memo: memo.gains,
        gain=lambda memo, item: jnp.sum(jnp.maximum(column(item) - memo.best, 0.0)),
        add=join,
    )
