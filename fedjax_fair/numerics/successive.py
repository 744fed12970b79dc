"""Sampling in proportion to size, without replacement.

The largest values of ``log(size)`` plus Gumbel noise have this distribution, but need noise for all
items. With many items, uniform positions in the cumulative sizes are drawn (inverse CDF), and
repeated items are skipped.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

__all__ = ["sample_successively"]

_MANY = 16  # Items per sample. With fewer, noise for all items compiles to less code.


def sample_successively(
    key: Key[Array, ""], cumulative_sizes: Int[Array, " items"], count: int
) -> Int[Array, " count"]:
    """Draws distinct items sequentially, each in proportion to its size among the remaining ones.

    With many items, time depends on ``count``, and on ``items`` only by its logarithm.

    Args:
        key: Random key.
        cumulative_sizes: The cumulative sum of all sizes, which are >= 0.
        count: Items to draw, at most all.

    Returns:
        Ids in the order of the draws, then the smallest ids of items of size zero.

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
    return _by_positions(key, cumulative_sizes, count)


def _by_noise(
    key: Key[Array, ""], cumulative_sizes: Int[Array, " items"], count: int
) -> Int[Array, " count"]:
    noise = jax.random.gumbel(key, cumulative_sizes.shape)
    sizes = jnp.diff(cumulative_sizes, prepend=0).astype(noise.dtype)
    return jax.lax.top_k(jnp.log(sizes) + noise, count)[1].astype(jnp.int32)


def _by_positions(
    key: Key[Array, ""], cumulative_sizes: Int[Array, " items"], count: int
) -> Int[Array, " count"]:
    num_items = cumulative_sizes.shape[0]
    slots = jnp.arange(count, dtype=jnp.int32)

    def interval(items):
        """Starts and sizes of items in the cumulative sizes; the end and 0 for empty slots."""
        starts = jnp.where(items > 0, cumulative_sizes[jnp.maximum(items, 1) - 1], 0)
        starts = jnp.where(items < num_items, starts, cumulative_sizes[-1])
        return starts, cumulative_sizes[jnp.minimum(items, num_items - 1)] - starts

    def sample_more(carry):
        num_passes, num_sampled, sampled = carry
        starts, sizes = interval(jnp.sort(sampled))
        before = jnp.concatenate([jnp.zeros(1, sizes.dtype), jnp.cumsum(sizes)])
        remaining = cumulative_sizes[-1] - before[-1]
        key_pass = jax.random.fold_in(key, num_passes)
        dtype = cumulative_sizes.dtype
        position = jax.random.randint(key_pass, (2 * count,), 0, remaining, dtype)
        # Positions count remaining items only: add the sizes of sampled items that start before.
        skipped = jnp.searchsorted(starts - before[:-1], position, side="right")
        position += before[skipped]
        items = jnp.searchsorted(cumulative_sizes, position, side="right").astype(jnp.int32)
        order = jnp.argsort(items, stable=True)
        is_new = jnp.ones(items.shape, bool).at[order[1:]].set(jnp.diff(items[order]) > 0)
        slot = jnp.where(is_new, num_sampled + jnp.cumsum(is_new, dtype=jnp.int32) - 1, count)
        num_sampled = jnp.minimum(num_sampled + jnp.sum(is_new, dtype=jnp.int32), count)
        return num_passes + 1, num_sampled, sampled.at[slot].set(items, mode="drop")

    def is_unfinished(carry):
        _, num_sampled, sampled = carry
        remaining = cumulative_sizes[-1] - jnp.sum(interval(sampled)[1])
        return (num_sampled < count) & (remaining > 0)

    start = jnp.int32(0), jnp.int32(0), jnp.full(count, num_items, jnp.int32)
    _, num_sampled, sampled = jax.lax.while_loop(is_unfinished, sample_more, start)
    # All other items have size zero: fill empty slots with the smallest of the first `count` ids.
    free = jnp.sort(jnp.where(jnp.isin(slots, sampled), num_items, slots))
    return jnp.where(slots < num_sampled, sampled, free[jnp.maximum(slots - num_sampled, 0)])
