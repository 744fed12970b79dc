"""One pass over items in any order, with memory for a few sets."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import as_items
from fedjax_fair.submodular.base import Maximized, SetFunction

__all__ = ["sieve_streaming"]


class _Sieve(NamedTuple):
    """The set of one guess of the best value.

    Attributes:
        exponent: The guess, as a power of ``1 + epsilon``.
        memo: The function's memo of the set.
        items: Its items, ``[k]``, -1 in empty places.
        gains: Their gains.
        count: Number of items.
    """

    exponent: Int[Array, "..."]
    memo: PyTree
    items: Int[Array, "... k"]
    gains: Float[Array, "... k"]
    count: Int[Array, "..."]


def sieve_streaming(
    function: SetFunction, k: int, epsilon: float, *, order: ArrayLike | None = None
) -> Maximized:
    r"""Sees every item once, and keeps it in the sets for which it gains enough.

    For every power *v* of :math:`1 + \varepsilon` between the largest gain of an item so far and
    :math:`2k` times it there is a set *S*, which an item joins if it gains at least
    :math:`(v / 2 - f(S)) / (k - |S|)`. The best of them is at least :math:`1/2 - \varepsilon` of
    the largest value that ``k`` items can have, for a monotone submodular function.

    Args:
        function: Monotone and submodular.
        k: Items to choose, at most.
        epsilon: In (0, 1). Memory is for :math:`\lceil\ln(2k) / \ln(1 + \varepsilon)\rceil + 1`
            memos and sets, however many items there are.
        order: The items in the order in which they come, ``[some]``; by default all of them by
            their index.

    Returns:
        The items, ``[k]``, as they came: -1, with gain 0, in places that stay empty.

    Raises:
        ValueError: If a number is out of range, or the order not one of different items.

    References:
        Badanidiyuru, Mirzasoleiman, Karbasi, Krause, *Streaming Submodular Maximization: Massive
        Data Summarization on the Fly*, KDD 2014

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> chosen = sieve_streaming(modular(jnp.array([2.0, 5.0, 1.0, 4.0])), 2, epsilon=0.1)
        >>> chosen.items.tolist(), float(chosen.value)
        ([1, 3], 9.0)
    """
    checks.positive_int("k", k, at_most=function.size)
    checks.positive("epsilon", epsilon)
    checks.unit_interval("epsilon", epsilon)
    stream = jnp.arange(function.size, dtype=jnp.int32)
    if order is not None:
        stream = as_items("order", order, function.size)
    log_base = math.log1p(epsilon)
    slots = jnp.arange(math.ceil(math.log(2 * k) / log_base) + 1, dtype=jnp.int32)
    memo = function.init()
    gain_dtype = jax.eval_shape(function.gain, memo, stream[0]).dtype
    empty = _Sieve(
        exponent=jnp.zeros((), jnp.int32),
        memo=memo,
        items=jnp.full(k, -1, jnp.int32),
        gains=jnp.zeros(k, gain_dtype),
        count=jnp.zeros((), jnp.int32),
    )

    def sift(sieve, exponent, item, open_):
        """One set after one more item."""
        # Of a guess that is too small by now, the set makes room for that of a larger one.
        fresh = sieve.exponent != exponent
        sieve = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), empty, sieve)
        room = open_ & (sieve.count < k)
        half = jnp.exp(exponent.astype(gain_dtype) * log_base) / 2
        gain = function.gain(sieve.memo, item)
        left = jnp.maximum(k - sieve.count, 1).astype(gain_dtype)
        missing = (half - jnp.sum(sieve.gains)) / left
        joins = room & (gain >= missing)
        added = function.add(sieve.memo, item)
        kept = _Sieve(
            exponent=exponent,
            memo=jax.tree.map(lambda new, old: jnp.where(joins, new, old), added, sieve.memo),
            items=sieve.items.at[jnp.where(joins, sieve.count, k)].set(item, mode="drop"),
            gains=sieve.gains.at[jnp.where(joins, sieve.count, k)].set(gain, mode="drop"),
            count=sieve.count + joins.astype(jnp.int32),
        )
        return kept, room

    def step(carry, item):
        sieves, largest, calls = carry
        largest = jnp.maximum(largest, function.gain(memo, item))
        # Every power stays in its slot while it is in the window, which begins at the largest gain.
        first = jnp.ceil(jnp.log(jnp.where(largest > 0, largest, 1)) / log_base).astype(jnp.int32)
        exponents = first + (slots - first) % slots.shape[0]
        sieves, rooms = jax.vmap(sift, (0, 0, None, None))(sieves, exponents, item, largest > 0)
        return (sieves, largest, calls + 1 + jnp.sum(rooms, dtype=jnp.int32)), None

    sieves = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, slots.shape + leaf.shape), empty)
    zero = jnp.zeros((), gain_dtype)
    (sieves, _, calls), _ = jax.lax.scan(step, (sieves, zero, jnp.zeros((), jnp.int32)), stream)
    values = jnp.sum(sieves.gains, axis=1)
    best = jnp.argmax(values)
    return Maximized(sieves.items[best], sieves.gains[best], values[best], calls)
