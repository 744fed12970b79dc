"""Sums of messages, the only thing that the server sees, and how many bits they take.

Clients encode a message and weight it; ``secure_aggregate`` adds all messages, either plainly or by
a simulated protocol. It is the only function on the server's side that is given single messages: a
server that works with it works with a real protocol in its place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.secure_sum import SecureAggregation, secure_sum
from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.tree import Tree

__all__ = [
    "FLOAT_BITS",
    "Messages",
    "Protocol",
    "base_bits",
    "nan_if_out_of_range",
    "protocol",
    "secure_aggregate",
    "vector_bits",
]

FLOAT_BITS = 32
_MASKS = 2**32 - 1  # Folded into keys that are used for other things by client.


class Messages(NamedTuple):
    """Weighted vectors over the ground set, one a client, as lists of items and amounts.

    They may come in parts, which are added. A part either has one row of amounts a client for the
    same items, or is one flat list of the items of all clients.

    Attributes:
        items: Of each part the items, ``[items]`` or ``[entries]``.
        amounts: Of each part the amounts, ``[clients, items]`` or ``[entries]``.
        owners: Of each part the client of each row or entry.
    """

    items: tuple[Int[Array, " entries"], ...]
    amounts: tuple[Float[Array, "..."], ...]
    owners: tuple[Int[Array, "..."], ...]


class Protocol(Tree):
    """How messages are masked (`fedjax_fair.numerics.secure_sum`).

    Attributes:
        key: Of one sum.
        num_clients: Clients that take part, all of a problem; one that sends nothing masks zeros.
        max_abs_value: The largest absolute value of a weighted number.
    """

    key: Key[Array, ""]
    num_clients: int
    max_abs_value: float


def protocol(secure: SecureAggregation | None, key: Any, num_clients: int) -> Protocol | None:
    """Returns the protocol of a sum; None for a plain one, whose key is not used."""
    if secure is None:
        return None
    return Protocol(jax.random.fold_in(key, _MASKS), num_clients, secure.max_abs_value)


def secure_aggregate(
    messages: Messages, size: int, protocol: Protocol | None = None
) -> Float[Array, " size"]:
    """Adds all messages.

    Args:
        messages: What the clients encoded.
        size: Items in the ground set.
        protocol: How they are masked; None for a plain sum, which is the same up to the step of the
            encoding and takes less time.

    Returns:
        The sum; not a number if a number of a client is beyond max_abs_value of the protocol.

    Examples:
        >>> entries, owners = jnp.array([0.5, 0.25, 0.25]), jnp.array([0, 0, 1])
        >>> messages = Messages((jnp.array([0, 2, 2]),), (entries,), (owners,))
        >>> secure_aggregate(messages, size=3).tolist()
        [0.5, 0.0, 0.5]
        >>> hidden = Protocol(jax.random.key(0), num_clients=2, max_abs_value=1.0)
        >>> secure_aggregate(messages, size=3, protocol=hidden).tolist()
        [0.5, 0.0, 0.5]
    """
    checks.positive_int("size", size)
    if protocol is not None:
        return _masked_sum(messages, size, protocol)
    total = jnp.zeros(size)
    for items, amounts in zip(messages.items, messages.amounts, strict=True):
        if amounts.ndim == 2:  # As a product: a reduction over the first axis is slow on a CPU.
            amounts = product(jnp.ones(amounts.shape[0]), amounts)
        total = total + jax.ops.segment_sum(amounts, items, size)
    return total


def nan_if_out_of_range(
    value: Float[Array, "..."], *sums: Float[Array, "..."]
) -> Float[Array, "..."]:
    """A value that follows from sums; not a number where one of them is none."""
    known = all_finite(sums)
    return jnp.where(known, value, jnp.nan)


def _masked_sum(messages: Messages, size: int, protocol: Protocol) -> Float[Array, " size"]:
    def of_client(client):
        vector = jnp.zeros(size)
        for items, amounts, owners in zip(*messages, strict=True):
            if amounts.ndim == 2:
                own = jnp.sum(jnp.where((owners == client)[:, None], amounts, 0), axis=0)
            else:
                own = jnp.where(owners == client, amounts, 0)
            vector = vector + jax.ops.segment_sum(own, items, size)
        return vector

    clients = jnp.arange(protocol.num_clients, dtype=jnp.int32)
    return secure_sum(
        protocol.key, jax.lax.map(of_client, clients), max_abs_value=protocol.max_abs_value
    )


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
