"""Maps over chunks of a batch of images, so that intermediate arrays fit into the cache."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

__all__ = ["CACHE", "count", "map_and_sum", "map_over", "vjp"]

CACHE = 5 * 2**19
"""Maximum number of bytes of the intermediate arrays of a chunk."""


def count(batch: int, bytes_of_one: int, room: int = 0) -> int:
    """Returns the smallest divisor of the batch that makes chunks fit into the cache.

    Args:
        batch: Number of images.
        bytes_of_one: Bytes of the intermediate arrays of an image. Images that do not fit are
            separate chunks.
        room: Bytes of the cache, if more than ``CACHE``.

    Examples:
        >>> count(batch=8, bytes_of_one=CACHE // 3)
        4
    """
    wanted = min(batch, -(-batch * bytes_of_one // max(CACHE, room)))
    return next(chunks for chunks in range(max(1, wanted), batch + 1) if batch % chunks == 0)


def map_over(num_chunks: int, function: Callable[[Array], Array], batch: Array) -> Array:
    """Maps a function of images over the chunks of a batch."""
    if num_chunks == 1:
        return function(batch)
    results = lax.map(function, _split(num_chunks, batch))
    return results.reshape(-1, *results.shape[2:])


def map_and_sum(
    num_chunks: int,
    function: Callable[[Array, Array], tuple[Array, PyTree]],
    zero: PyTree,
    *batches: Array,
) -> tuple[Array, PyTree]:
    """Maps over chunks, and sums a second result of the function, starting at ``zero``."""
    if num_chunks == 1:
        return function(*batches)

    def step(total, chunk):
        result, part = function(*chunk)
        return jax.tree.map(jnp.add, total, part), result

    total, results = lax.scan(step, zero, tuple(_split(num_chunks, batch) for batch in batches))
    return results.reshape(-1, *results.shape[2:]), total


def vjp(
    num_chunks: int,
    function: Callable[..., Array],
    x: Array,
    parameters: tuple[Array, ...],
    cotangent: Array,
) -> tuple[Array, tuple[Array, ...]]:
    """Returns the gradients of ``function(x, *parameters)`` by images, and by parameters."""

    def of_chunk(x, cotangent):
        by_x, *by_parameters = jax.vjp(function, x, *parameters)[1](cotangent)
        return by_x, tuple(by_parameters)

    zero = jax.tree.map(jnp.zeros_like, parameters)
    return map_and_sum(num_chunks, of_chunk, zero, x, cotangent)


def _split(num_chunks: int, batch: Array) -> Array:
    return batch.reshape(num_chunks, -1, *batch.shape[1:])
