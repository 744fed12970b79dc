"""One pass over items in any order, with memory for a few sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import as_items
from fedjax_fair.submodular.base import MaximizationResult, SetFunction

__all__ = ["sieve_batches", "sieve_streaming"]


class _Stream(NamedTuple):
    """What is kept of the items so far.

    Attributes:
        sieves: A set for each guess; arrays of ``_Sieve`` with an axis more.
        largest: The largest gain that an item had alone.
        num_evaluations: Number of gains evaluated.
    """

    sieves: _Sieve
    largest: Float[Array, ""]
    num_evaluations: Int[Array, ""]


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
) -> MaximizationResult:
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
        >>> from fedjax_fair.submodular import Modular
        >>> chosen = sieve_streaming(Modular(jnp.array([2.0, 5.0, 1.0, 4.0])), 2, epsilon=0.1)
        >>> chosen.items.tolist(), float(chosen.value)
        ([1, 3], 9.0)
    """
    checks.positive_int("k", k, at_most=function.size)
    _check_epsilon(epsilon)
    items = None if order is None else as_items("order", order, function.size)
    return _sieve_streaming(function, k, epsilon, items)


@partial(jax.jit, static_argnums=(1, 2))
def _sieve_streaming(
    function: SetFunction, k: int, epsilon: float, order: Int[Array, " some"] | None
) -> MaximizationResult:
    items = jnp.arange(function.size, dtype=jnp.int32) if order is None else order
    return _best(_sift(function, k, epsilon, _begin(function, k, epsilon), items, items))


def sieve_batches(
    make: Callable[[Any], SetFunction],
    batches: Iterable[ArrayLike],
    k: int,
    epsilon: float,
) -> MaximizationResult:
    """``sieve_streaming`` of items that come in batches, of which only one is held at a time.

    Memory is for the batch, and for as many memos and sets as there are guesses, however many items
    come. Batches of the same size share a program; a smaller last one does too.

    Args:
        make: ``make(rows) -> SetFunction`` of the items of a batch. Their gains depend on the set
            through a memo that does not know items, as with ``FeatureBased``, ``Coverage``,
            ``ProbabilisticCoverage``, and ``FacilityLocation`` of similarities to fixed points.
        batches: Rows of items, ``[batch, ...]``, in the order in which they come.
        k: Items to choose, at most.
        epsilon: As for ``sieve_streaming``.

    Returns:
        The items, ``[k]``, by their place in the stream: -1, with gain 0, in places that stay
        empty. ``num_evaluations`` may overflow from 2**31 gains on.

    Raises:
        ValueError: If a number is out of range, there is no batch, or a batch is empty or larger
            than the first.

    Examples:
        >>> from fedjax_fair.submodular import FeatureBased
        >>> batches = ([[4.0, 0.0], [0.0, 1.0]], [[0.0, 9.0]])
        >>> sieve_batches(FeatureBased, batches, 2, epsilon=0.1).items.tolist()
        [0, 2]
    """
    checks.positive_int("k", k)
    _check_epsilon(epsilon)
    size, seen, stream = 0, 0, None
    for batch in batches:
        rows = np.asarray(batch)
        count = len(rows) if rows.ndim else 0
        if not size:
            size = count
        if not 0 < count <= size:
            raise ValueError(
                f"batches: expected from 1 to {max(size, 1)} rows, as in the first, got {count}."
            )
        # Rows beyond the last one repeat it, and are not looked at.
        function = make(rows[np.minimum(np.arange(size), count - 1)])
        if stream is None:
            stream = _first(function, k, epsilon)
        stream = _next(function, k, epsilon, stream, np.int32(seen), np.int32(count))
        jax.block_until_ready(stream)  # Or else batches would wait for their turn in memory.
        seen += count
    if stream is None:
        raise ValueError("batches: expected at least one.")
    return _last(stream)


@partial(jax.jit, static_argnums=(1, 2))
def _first(function: SetFunction, k: int, epsilon: float) -> _Stream:
    return _begin(function, k, epsilon)


@partial(jax.jit, static_argnums=(1, 2), donate_argnums=3)
def _next(
    function: SetFunction, k: int, epsilon: float, stream: _Stream, seen: Array, count: Array
) -> _Stream:
    items = jnp.arange(function.size, dtype=jnp.int32)
    return _sift(function, k, epsilon, stream, items, jnp.where(items < count, seen + items, -1))


@jax.jit
def _last(stream: _Stream) -> MaximizationResult:
    return _best(stream)


def _check_epsilon(epsilon: float) -> None:
    checks.positive("epsilon", epsilon)
    checks.unit_interval("epsilon", epsilon)


def _begin(function: SetFunction, k: int, epsilon: float) -> _Stream:
    """No items, in as many sets as there may be guesses at a time."""
    guesses = math.ceil(math.log(2 * k) / math.log1p(epsilon)) + 1
    empty = _empty(function, k)
    sieves = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (guesses, *leaf.shape)), empty)
    return _Stream(sieves, jnp.zeros((), empty.gains.dtype), jnp.zeros((), jnp.int32))


def _empty(function: SetFunction, k: int) -> _Sieve:
    memo = function.init()
    gain_dtype = jax.eval_shape(function.gain, memo, jnp.zeros((), jnp.int32)).dtype
    return _Sieve(
        exponent=jnp.zeros((), jnp.int32),
        memo=memo,
        items=jnp.full(k, -1, jnp.int32),
        gains=jnp.zeros(k, gain_dtype),
        count=jnp.zeros((), jnp.int32),
    )


def _sift(
    function: SetFunction,
    k: int,
    epsilon: float,
    stream: _Stream,
    items: Int[Array, " some"],
    names: Int[Array, " some"],
) -> _Stream:
    """After some more items of a function, which sets know by names; those named -1 are none."""
    log_base = math.log1p(epsilon)
    empty = _empty(function, k)
    slots = jnp.arange(stream.sieves.count.shape[0], dtype=jnp.int32)

    def sift(sieve, exponent, item, name, open_):
        """One set after one more item."""
        # Of a guess that is too small by now, the set makes room for that of a larger one.
        fresh = sieve.exponent != exponent
        sieve = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), empty, sieve)
        room = open_ & (sieve.count < k)
        half = jnp.exp(exponent.astype(sieve.gains.dtype) * log_base) / 2
        gain = function.gain(sieve.memo, item)
        left = jnp.maximum(k - sieve.count, 1).astype(sieve.gains.dtype)
        missing = (half - jnp.sum(sieve.gains)) / left
        joins = room & (gain >= missing)
        added = function.add(sieve.memo, item)
        kept = _Sieve(
            exponent=exponent,
            memo=jax.tree.map(lambda new, old: jnp.where(joins, new, old), added, sieve.memo),
            items=sieve.items.at[jnp.where(joins, sieve.count, k)].set(name, mode="drop"),
            gains=sieve.gains.at[jnp.where(joins, sieve.count, k)].set(gain, mode="drop"),
            count=sieve.count + joins.astype(jnp.int32),
        )
        return kept, room

    def step(stream, each):
        item, name = each
        there = name >= 0
        alone = jnp.where(there, function.gain(empty.memo, item), 0)
        largest = jnp.maximum(stream.largest, alone)
        # Every power stays in its slot while it is in the window, which begins at the largest gain.
        first = jnp.ceil(jnp.log(jnp.where(largest > 0, largest, 1)) / log_base).astype(jnp.int32)
        exponents = first + (slots - first) % slots.shape[0]
        sieves, rooms = jax.vmap(sift, (0, 0, None, None, None))(
            stream.sieves, exponents, item, name, there & (largest > 0)
        )
        num_evaluations = (
            stream.num_evaluations + there.astype(jnp.int32) + jnp.sum(rooms, dtype=jnp.int32)
        )
        return _Stream(sieves, largest, num_evaluations), None

    return jax.lax.scan(step, stream, (items, names))[0]


def _best(stream: _Stream) -> MaximizationResult:
    values = jnp.sum(stream.sieves.gains, axis=1)
    best = jnp.argmax(values)
    return MaximizationResult(
        stream.sieves.items[best], stream.sieves.gains[best], values[best], stream.num_evaluations
    )
