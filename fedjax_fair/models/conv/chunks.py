"""Going through a batch of images a chunk at a time, so that a cache holds what is made of it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

__all__ = ["CACHE", "count", "map_and_sum", "map_over", "vjp"]

CACHE = 5 * 2**19
"""Bytes that a chunk may take, so that a CPU still has them when it multiplies them."""


def count(batch: int, bytes_of_one: int, room: int = 0) -> int:
    """Chunks to cut a batch into: the fewest whose bytes fit, equally large.

    Args:
        batch: Images.
        bytes_of_one: Bytes made of an image. Where one does not fit, it is a chunk of its own.
        room: Bytes to fit into, where that is more than ``CACHE``.

    Returns:
        The number of chunks, which divides ``batch``.

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
    made = lax.map(function, _cut(num_chunks, batch))
    return made.reshape(-1, *made.shape[2:])


def map_and_sum(
    num_chunks: int,
    function: Callable[[Array, Array], tuple[Array, PyTree]],
    zero: PyTree,
    *batches: Array,
) -> tuple[Array, PyTree]:
    """The same, where a second result is summed over the chunks, starting at ``zero``."""
    if num_chunks == 1:
        return function(*batches)

    def step(total, chunk):
        made, summed = function(*chunk)
        return jax.tree.map(jnp.add, total, summed), made

    total, made = lax.scan(step, zero, tuple(_cut(num_chunks, batch) for batch in batches))
    return made.reshape(-1, *made.shape[2:]), total


def vjp(
    num_chunks: int,
    function: Callable[..., Array],
    x: Array,
    parameters: tuple[Array, ...],
    cotangent: Array,
) -> tuple[Array, tuple[Array, ...]]:
    """Gradients of ``function(x, *parameters)`` by images, and by parameters."""

    def of_chunk(x, cotangent):
        by_x, *by_parameters = jax.vjp(function, x, *parameters)[1](cotangent)
        return by_x, tuple(by_parameters)

    zero = jax.tree.map(jnp.zeros_like, parameters)
    return map_and_sum(num_chunks, of_chunk, zero, x, cotangent)


def _cut(num_chunks: int, batch: Array) -> Array:
    return batch.reshape(num_chunks, -1, *batch.shape[1:])
