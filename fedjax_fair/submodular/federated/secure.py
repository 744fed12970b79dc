"""Sums of messages, the only thing that the server sees, and how many bits they take.

Clients encode a message and weight it; ``secure_aggregate`` adds all messages. It stands for a
secure aggregation protocol, so it is the only function on the server's side that is given single
messages: a server that works with it works with a real protocol in its place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair import checks

__all__ = ["FLOAT_BITS", "Messages", "base_bits", "secure_aggregate", "vector_bits"]

FLOAT_BITS = 32


class Messages(NamedTuple):
    """Weighted vectors over the ground set, one a client, as lists of items and amounts.

    They may come in parts, which are added. A part either has one row of amounts a client for the
    same items, or is one flat list of the items of all clients.

    Attributes:
        items: Of each part the items, ``[items]`` or ``[entries]``.
        amounts: Of each part the amounts, ``[clients, items]`` or ``[entries]``.
    """

    items: tuple[Int[Array, " entries"], ...]
    amounts: tuple[Float[Array, "..."], ...]


def secure_aggregate(messages: Messages, size: int) -> Float[Array, " size"]:
    """Adds all messages; a plain sum, which a protocol can replace.

    Args:
        messages: What the clients encoded.
        size: Items in the ground set.

    Examples:
        >>> messages = Messages((jnp.array([0, 2, 2]),), (jnp.array([0.5, 0.25, 0.25]),))
        >>> secure_aggregate(messages, size=3).tolist()
        [0.5, 0.0, 0.5]
    """
    checks.positive_int("size", size)
    total = jnp.zeros(size)
    for items, amounts in zip(messages.items, messages.amounts, strict=True):
        if amounts.ndim == 2:  # As a product: a reduction over the first axis is slow on a CPU.
            amounts = jnp.ones(amounts.shape[0]) @ amounts
        total = total + jax.ops.segment_sum(amounts, items, size)
    return total


def base_bits(rank: int, size: int) -> int:
    """Bits of a base: an item number for each member.

    Examples:
        >>> base_bits(rank=20, size=1682)
        220
    """
    return rank * math.ceil(math.log2(size))


def vector_bits(size: int) -> int:
    """Bits of a gradient or a fractional point: a float for each item.

    Examples:
        >>> vector_bits(1682)
        53824
    """
    return FLOAT_BITS * size
