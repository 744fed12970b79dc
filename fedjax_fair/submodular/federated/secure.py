"""Secure aggregation of clients' messages, and the bits of a message.

Only ``secure_aggregate`` receives individual messages; a real protocol could replace it.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.secure_sum import SecureAggregation, secure_sum
from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree

__all__ = ["Aggregation", "Messages", "Protocol", "secure_aggregate"]

Aggregation = Literal["plain", "secure"] | SecureAggregation

_MASKS = 2**32 - 1  # Folded into keys that algorithms also fold client ids and steps into.


class Messages(NamedTuple):
    """Weighted vectors over the items, one per client, as sums of parts.

    A part has a row of amounts per client for the same items, or one list of all entries.

    Attributes:
        items: Items of each part, ``[items]`` or ``[entries]``.
        amounts: Amounts of each part, ``[clients, items]`` or ``[entries]``.
        owners: Client of each row or entry.
    """

    items: tuple[Int[Array, " entries"], ...]
    amounts: tuple[Float[Array, "..."], ...]
    owners: tuple[Int[Array, "..."], ...]


class Protocol(Tree):
    """Masking of messages (`fedjax_fair.numerics.secure_sum`).

    Attributes:
        key: Random key of one sum.
        num_clients: Clients of the problem; a client without a message masks zeros.
        max_abs_value: Largest absolute value of a weighted element.
    """

    key: Key[Array, ""]
    num_clients: int
    max_abs_value: float


def make_protocol(secure: SecureAggregation | None, key: Any, num_clients: int) -> Protocol | None:
    """Returns the protocol of one sum; None for plain aggregation."""
    if secure is None:
        return None
    return Protocol(jax.random.fold_in(key, _MASKS), num_clients, secure.max_abs_value)


def secure_aggregate(
    messages: Messages, size: int, protocol: Protocol | None = None
) -> Float[Array, " size"]:
    """Sums all messages.

    Args:
        messages: Messages of the clients.
        size: Number of items in the ground set.
        protocol: Masking protocol. None sums directly: faster, and equal up to rounding.

    Returns:
        The sum; NaN if an element of a client exceeds ``protocol.max_abs_value``.

    Examples:
        >>> entries, owners = jnp.array([0.5, 0.25, 0.25]), jnp.array([0, 0, 1])
        >>> messages = Messages((jnp.array([0, 2, 2]),), (entries,), (owners,))
        >>> secure_aggregate(messages, size=3).tolist()
        [0.5, 0.0, 0.5]
        >>> protocol = Protocol(jax.random.key(0), num_clients=2, max_abs_value=1.0)
        >>> secure_aggregate(messages, size=3, protocol=protocol).tolist()
        [0.5, 0.0, 0.5]
    """
    checks.positive_int("size", size)
    if protocol is not None:
        return _masked_sum(messages, size, protocol)
    total = jnp.zeros(size)
    for items, amounts in zip(messages.items, messages.amounts, strict=True):
        if amounts.ndim == 2:  # As a product, because a sum over the first axis is slow on a CPU.
            amounts = product(jnp.ones(amounts.shape[0]), amounts)
        total = total + jax.ops.segment_sum(amounts, items, size)
    return total


def nan_if_out_of_range(value: Array, *sums: Array) -> Array:
    """Returns a value that was computed from sums, or NaN if a sum is not finite."""
    return jnp.where(all_finite(sums), value, jnp.nan)


def _masked_sum(messages: Messages, size: int, protocol: Protocol) -> Float[Array, " size"]:
    def vector_of(client):
        vector = jnp.zeros(size)
        for items, amounts, owners in zip(*messages, strict=True):
            if amounts.ndim == 2:
                amounts = jnp.sum(jnp.where((owners == client)[:, None], amounts, 0), axis=0)
            else:
                amounts = jnp.where(owners == client, amounts, 0)
            vector = vector + jax.ops.segment_sum(amounts, items, size)
        return vector

    clients = jnp.arange(protocol.num_clients, dtype=jnp.int32)
    vectors = jax.lax.map(vector_of, clients)
    return secure_sum(protocol.key, vectors, max_abs_value=protocol.max_abs_value)


def base_bits(rank: int, size: int) -> int:
    """Counts the bits of a base, one item id per element.

    Examples:
        >>> base_bits(rank=20, size=1682)
        220
    """
    return rank * math.ceil(math.log2(size))


def vector_bits(size: int) -> int:
    """Counts the bits of a gradient or a fractional point, one 32-bit float per item.

    Examples:
        >>> vector_bits(1682)
        53824
    """
    return 32 * size
