"""Going through a batch of images a part at a time, so that a cache holds what is made of it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

__all__ = ["CACHE", "number", "over", "over_and_sum"]

CACHE = 5 * 2**19
"""Bytes that a part may take, so that a CPU still has them when it multiplies them."""


def number(batch: int, bytes_of_one: int, room: int = 0) -> int:
    """In how many parts to go through a batch: the fewest whose bytes fit, equally large.

    Args:
        batch: Images.
        bytes_of_one: Bytes made of an image. Where one does not fit, it is a part of its own.
        room: Bytes to fit into, where that is more than ``CACHE``.
    """
    wanted = min(batch, -(-batch * bytes_of_one // max(CACHE, room)))
    return next(parts for parts in range(max(1, wanted), batch + 1) if batch % parts == 0)


def over(number: int, function: Callable[[Array], Array], batch: Array) -> Array:
    """Maps a function of images over the parts of a batch."""
    if number == 1:
        return function(batch)
    made = lax.map(function, _parts(number, batch))
    return made.reshape(-1, *made.shape[2:])


def over_and_sum(
    number: int,
    function: Callable[[Array, Array], tuple[Array, PyTree]],
    zero: PyTree,
    *batches: Array,
) -> tuple[Array, PyTree]:
    """The same, where a second result is summed over the parts, starting at ``zero``."""
    if number == 1:
        return function(*batches)
    parts = [_parts(number, batch) for batch in batches]

    def piece(total, part):
        made, summed = function(*part)
        return jax.tree.map(jnp.add, total, summed), made

    total, made = lax.scan(piece, zero, tuple(parts))
    return made.reshape(-1, *made.shape[2:]), total


def _parts(number: int, batch: Array) -> Array:
    return batch.reshape(number, -1, *batch.shape[1:])
