"""Random permutations whose entries are computed independently, without storing them.

Each round of the *swap-or-not* shuffle pairs ``x`` with ``K - x`` mod ``n`` for a random ``K`` and
swaps the pair with probability one half, by a hash of the pair.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, UInt32

from fedjax_fair.numerics import target

__all__ = ["permutation_at"]

# Minibatches and cohorts without replacement would otherwise sort as many random numbers as there
# are examples or clients.
#
# A round moves an entry to a uniform position with probability one half, so the influence of its
# initial position decreases as 2^-rounds. Chi-squared tests over all permutations of small sets,
# and over pairs of a large one, detect no deviation from 12 rounds on.
_ROUNDS = 24
_UNROLLED_ON_CPU = 4
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio, the increment of a Weyl sequence


def permutation_at(
    key: Key[Array, ""], positions: Int[Array, "..."], size: Int[Array, ""] | int
) -> Int[Array, "..."]:
    """Returns entries of a random permutation of ``0 .. size - 1``.

    Time and memory depend on the number of positions, not on ``size``.

    Args:
        key: Random key of the permutation.
        positions: Positions, each in ``[0, size)``.
        size: Length of the permutation, at least 1; may be traced.

    Returns:
        Entries, distinct for distinct positions, shaped like ``positions``.

    References:
        Hoang, Morris, Rogaway, *An Enciphering Scheme Based on a Card Shuffle*, 2012,
        https://arxiv.org/abs/1208.1176

    Examples:
        >>> entries = permutation_at(jax.random.key(0), jnp.arange(5), 5)
        >>> sorted(entries.tolist())
        [0, 1, 2, 3, 4]
    """
    length = jnp.asarray(size).astype(jnp.uint32)
    # Two random words, extended by a counter: 48 random words would cost more than all the rest.
    start, salt_start = jax.random.bits(key, (2,), jnp.uint32)
    counter = jnp.arange(_ROUNDS, dtype=jnp.uint32) * jnp.uint32(_GOLDEN)
    mirrors, salts = _hash(start + counter) % length, _hash(salt_start + counter)

    def swap_or_not(entry, of_round):
        mirror, salt = of_round
        # (mirror - entry) mod length, without leaving the unsigned range
        partner = jnp.where(entry <= mirror, mirror - entry, mirror + (length - entry))
        coin = _hash(jnp.maximum(entry, partner) ^ salt) >> 31
        return jnp.where(coin == 1, partner, entry), None

    # An accelerator makes one kernel of all rounds. On a CPU a loop is as fast or faster, and
    # unrolled it would be a quarter of the compiled code of a small network's round.
    unroll = _UNROLLED_ON_CPU if target.current().is_cpu else _ROUNDS
    entry, _ = jax.lax.scan(
        swap_or_not, positions.astype(jnp.uint32), (mirrors, salts), unroll=unroll
    )
    return entry.astype(positions.dtype)


def _hash(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Mixes 32 bits so that every input bit moves the highest output bit.

    The constants are from MurmurHash3's finalizer (Appleby, 2011).
    """
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
