"""Draws in proportion to size, without replacement.

*Successive sampling* draws one item after another, each in proportion to its size among those left.
The largest of ``log(size)`` plus Gumbel noise have that law, in descending order, but need noise of
all items. For many items inverse-CDF sampling is used: the item whose interval of the cumulative sizes holds a uniform place is
one of them in proportion to its size. Independent places give the same law if owners that were
drawn before are left out. So many are drawn at once, and only if too few of them differ more, from
the cumulative sizes without the items that are drawn already.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

__all__ = ["sample_successively"]

_MANY = 16  # Items for each that is drawn. With fewer, noise for all is the shorter program.


def sample_successively(
    key: Key[Array, ""], cumulative_sizes: Int[Array, " items"], count: int
) -> Int[Array, " count"]:
    """Draws distinct items one by one, each in proportion to its size among those left.

    Among many items time depends on ``count``, and on ``items`` only by its logarithm. Where sizes
    are alike one pass draws all; a pass always draws at least one.

    Args:
        key: Random key.
        cumulative_sizes: The cumulative sum of all sizes, which are >= 0.
        count: Items to draw, at most all.

    Returns:
        Distinct ids in the order in which they were drawn. Where fewer than ``count`` have a size,
        the smallest ids of others follow.

    References:
        Rosén, *Asymptotic Theory for Successive Sampling with Varying Probabilities Without
        Replacement*, 1972

    Examples:
        >>> cumulative_sizes = jnp.cumsum(jnp.array([5, 0, 1]))
        >>> sorted(sample_successively(jax.random.key(0), cumulative_sizes, 2).tolist())
        [0, 2]
    """
    if cumulative_sizes.shape[0] < _MANY * count:
        return _by_noise(key, cumulative_sizes, count)
    return _by_places(key, cumulative_sizes, count)


def _by_noise(
    key: Key[Array, ""], cumulative_sizes: Int[Array, " items"], count: int
) -> Int[Array, " count"]:
    noise = jax.random.gumbel(key, cumulative_sizes.shape)
    sizes = jnp.diff(cumulative_sizes, prepend=0).astype(noise.dtype)
    return jax.lax.top_k(jnp.log(sizes) + noise, count)[1].astype(jnp.int32)


def _by_places(
    key: Key[Array, ""], cumulative_sizes: Int[Array, " items"], count: int
) -> Int[Array, " count"]:
    num_items = cumulative_sizes.shape[0]
    slots = jnp.arange(count, dtype=jnp.int32)

    def interval(items):
        """Where items begin and how large they are; of empty slots, the total size and 0."""
        begins = jnp.where(items > 0, cumulative_sizes[jnp.maximum(items, 1) - 1], 0)
        begins = jnp.where(items < num_items, begins, cumulative_sizes[-1])
        return begins, cumulative_sizes[jnp.minimum(items, num_items - 1)] - begins

    def sizes_left(sampled):
        return cumulative_sizes[-1] - jnp.sum(interval(sampled)[1])

    def sample_more(carry):
        number, found, sampled = carry
        begins, sizes = interval(jnp.sort(sampled))
        before = jnp.concatenate([jnp.zeros(1, sizes.dtype), jnp.cumsum(sizes)])
        left = cumulative_sizes[-1] - before[-1]
        place = jax.random.randint(
            jax.random.fold_in(key, number), (2 * count,), 0, left, cumulative_sizes.dtype
        )
        # Drawn items have no length among those left: skip all that begin up to the place.
        skipped = jnp.searchsorted(begins - before[:-1], place, side="right")
        owners = jnp.searchsorted(cumulative_sizes, place + before[skipped], side="right").astype(
            jnp.int32
        )
        order = jnp.argsort(owners, stable=True)
        new = jnp.ones(owners.shape, bool).at[order[1:]].set(jnp.diff(owners[order]) > 0)
        slot = jnp.where(new, found + jnp.cumsum(new, dtype=jnp.int32) - 1, count)
        found = jnp.minimum(found + jnp.sum(new, dtype=jnp.int32), count)
        return number + 1, found, sampled.at[slot].set(owners, mode="drop")

    def unfinished(carry):
        _, found, sampled = carry
        return (found < count) & (sizes_left(sampled) > 0)

    start = jnp.int32(0), jnp.int32(0), jnp.full(count, num_items, jnp.int32)
    _, found, sampled = jax.lax.while_loop(unfinished, sample_more, start)
    # Those that were not drawn have no size: of the first `count` ids as many as slots are empty.
    free = jnp.sort(jnp.where(jnp.isin(slots, sampled), num_items, slots))
    return jnp.where(slots < found, sampled, free[jnp.maximum(slots - found, 0)])
