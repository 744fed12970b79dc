"""Draws in proportion to size, without replacement.

*Successive sampling* draws one item after another, each in proportion to its size among those left.
The largest of ``log(size)`` plus Gumbel noise have that law, in descending order, but need noise of
all items. Many items are laid out on a line, one after the other: the owner of a uniform place is
one of them in proportion to its size. Independent places give the same law if owners that were
drawn before are left out. So many are drawn at once, and only if too few of them differ more, from
the line without the items that are drawn already.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

__all__ = ["draw_successively"]

_MANY = 16  # Items for each that is drawn. With fewer, noise for all is the shorter program.


def draw_successively(
    key: Key[Array, ""], ends: Int[Array, " items"], count: int
) -> Int[Array, " count"]:
    """Draws distinct items one by one, each in proportion to its size among those left.

    Among many items time depends on ``count``, and on ``items`` only by its logarithm. Where sizes
    are alike one pass draws all; a pass always draws at least one.

    Args:
        key: Random key.
        ends: Where each item ends on the line: the cumulative sum of all sizes, which are >= 0.
        count: Items to draw, at most all.

    Returns:
        Distinct ids in the order in which they were drawn. Where fewer than ``count`` have a size,
        the smallest ids of others follow.

    References:
        Rosén, *Asymptotic Theory for Successive Sampling with Varying Probabilities Without
        Replacement*, 1972

    Examples:
        >>> ends = jnp.cumsum(jnp.array([5, 0, 1]))
        >>> sorted(draw_successively(jax.random.key(0), ends, 2).tolist())
        [0, 2]
    """
    if ends.shape[0] < _MANY * count:
        return _by_noise(key, ends, count)
    return _by_places(key, ends, count)


def _by_noise(key: Key[Array, ""], ends: Int[Array, " items"], count: int) -> Int[Array, " count"]:
    noise = jax.random.gumbel(key, ends.shape)
    sizes = jnp.diff(ends, prepend=0).astype(noise.dtype)
    return jax.lax.top_k(jnp.log(sizes) + noise, count)[1].astype(jnp.int32)


def _by_places(key: Key[Array, ""], ends: Int[Array, " items"], count: int) -> Int[Array, " count"]:
    num_items = ends.shape[0]
    slots = jnp.arange(count, dtype=jnp.int32)

    def interval(items):
        """Where items begin and how large they are; of empty slots, the end of the line and 0."""
        begins = jnp.where(items > 0, ends[jnp.maximum(items, 1) - 1], 0)
        begins = jnp.where(items < num_items, begins, ends[-1])
        return begins, ends[jnp.minimum(items, num_items - 1)] - begins

    def sizes_left(drawn):
        return ends[-1] - jnp.sum(interval(drawn)[1])

    def draw_more(carry):
        number, found, drawn = carry
        begins, sizes = interval(jnp.sort(drawn))
        before = jnp.concatenate([jnp.zeros(1, sizes.dtype), jnp.cumsum(sizes)])
        left = ends[-1] - before[-1]
        place = jax.random.randint(
            jax.random.fold_in(key, number), (2 * count,), 0, left, ends.dtype
        )
        # Drawn items have no length on the line of those left: skip all that begin up to the place.
        skipped = jnp.searchsorted(begins - before[:-1], place, side="right")
        owners = jnp.searchsorted(ends, place + before[skipped], side="right").astype(jnp.int32)
        order = jnp.argsort(owners, stable=True)
        new = jnp.ones(owners.shape, bool).at[order[1:]].set(jnp.diff(owners[order]) > 0)
        slot = jnp.where(new, found + jnp.cumsum(new, dtype=jnp.int32) - 1, count)
        found = jnp.minimum(found + jnp.sum(new, dtype=jnp.int32), count)
        return number + 1, found, drawn.at[slot].set(owners, mode="drop")

    def unfinished(carry):
        _, found, drawn = carry
        return (found < count) & (sizes_left(drawn) > 0)

    start = jnp.int32(0), jnp.int32(0), jnp.full(count, num_items, jnp.int32)
    _, found, drawn = jax.lax.while_loop(unfinished, draw_more, start)
    # Those that were not drawn have no size: of the first `count` ids as many as slots are empty.
    free = jnp.sort(jnp.where(jnp.isin(slots, drawn), num_items, slots))
    return jnp.where(slots < found, drawn, free[jnp.maximum(slots - found, 0)])
