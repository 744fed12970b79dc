"""Streaming maximization: one pass over items in any order, with memory for a few sets."""

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

from fedjax_fair.submodular.checked_arrays import as_host, as_items, as_known_epsilon
from fedjax_fair.submodular.greedy_selection import check_function
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.utils import checks

__all__ = ["sieve_batches", "sieve_streaming"]


_MAX_GUESSES = 10**6


class _Stream(NamedTuple):
    """State after some items: a set for each guess of the optimum, along a leading axis."""

    sieves: _Sieve
    largest: Float[Array, ""]
    num_evaluations: Int[Array, ""]


class _Sieve(NamedTuple):
    """The set of one guess of the optimum, a power of ``1 + epsilon``."""

    exponent: Int[Array, "..."]
    memo: PyTree
    items: Int[Array, "... k"]
    gains: Float[Array, "... k"]
    count: Int[Array, "..."]


def sieve_streaming(
    function: SetFunction, k: int, epsilon: float, *, order: ArrayLike | None = None
) -> MaximizationResult:
    r"""Visits every item once, and adds it to each set for which its gain is large enough.

    For every power *v* of :math:`1 + \varepsilon` between the largest gain of an item so far and
    :math:`2k` times it there is a set *S*, which an item joins if its gain is at least :math:`(v /
    2 - f(S)) / (k - |S|)`. For a monotone submodular function the best of them is at least
    :math:`1/2 - \varepsilon` of the optimum.

    Args:
        function: Monotone and submodular.
        k: Maximum number of items.
        epsilon: In (0, 1). Memory is for :math:`\lceil\ln(2k) / \ln(1 + \varepsilon)\rceil + 1`
            sets and memos.
        order: Distinct items in stream order, ``[some]``; by default all by index.

    References:
        Badanidiyuru, Mirzasoleiman, Karbasi, Krause, *Streaming Submodular Maximization: Massive
        Data Summarization on the Fly*, KDD 2014

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> result = sieve_streaming(Modular([2.0, 5.0, 1.0, 4.0]), 2, epsilon=0.1)
        >>> result.items.tolist(), float(result.value)
        ([1, 3], 9.0)
    """
    checks.positive_int("k", k, at_most=check_function(function))
    epsilon = _check_epsilon(epsilon, k)
    items = None if order is None else as_items("order", order, function.size)
    return _sieve_streaming(function, k, epsilon, items)


@partial(jax.jit, static_argnums=(1, 2))
def _sieve_streaming(function, k, epsilon, order) -> MaximizationResult:
    items = jnp.arange(function.size, dtype=jnp.int32) if order is None else order
    return _best(_sift(function, k, epsilon, _begin(function, k, epsilon), items, items))


def sieve_batches(
    make: Callable[[Any], SetFunction],
    batches: Iterable[ArrayLike],
    k: int,
    epsilon: float,
) -> MaximizationResult:
    """Runs `sieve_streaming` on items in batches, of which one is in memory at a time.

    Batches of the same size, and a smaller last one, share a compiled function.

    Args:
        make: ``make(rows) -> SetFunction`` of the items of a batch, whose memo is of the set alone
            or has a ``renew``: ``FeatureBased``, ``Coverage``, ``ProbabilisticCoverage``, or
            ``FacilityLocation`` of fixed points.
        batches: Rows of items, ``[batch, ...]``, in stream order.
        k: Maximum number of items.
        epsilon: As for `sieve_streaming`.

    Returns:
        Positions of the items in the stream. ``num_evaluations`` may overflow from 2**31 gains on.

    Raises:
        ValueError: If an argument is out of range, or a batch is empty or larger than the first.

    Examples:
        >>> from fedjax_fair.submodular import FeatureBased
        >>> batches = ([[4.0, 0.0], [0.0, 1.0]], [[0.0, 9.0]])
        >>> sieve_batches(FeatureBased, batches, 2, epsilon=0.1).items.tolist()
        [0, 2]
    """
    checks.positive_int("k", k)
    epsilon = _check_epsilon(epsilon, k)
    checks.function("make", make, "of the rows of a batch")
    checks.instance("batches", batches, Iterable, "np.split(rows, 4)")
    size, seen, stream = 0, 0, None
    for batch in batches:
        rows = as_host("batches", batch)
        count = len(rows) if rows.ndim else 0
        size = size or count
        if not 0 < count <= size:
            raise ValueError(
                f"batches: expected from 1 to {max(size, 1)} rows, as in the first, got {count}; "
                "pass the largest batch first."
            )
        # Rows beyond the last one repeat it, and are skipped.
        function = make(rows[np.minimum(np.arange(size), count - 1)])
        check_function(function)
        if stream is None:
            stream = _first(function, k, epsilon)
        stream = _next(function, k, epsilon, stream, np.int32(seen), np.int32(count))
        jax.block_until_ready(stream)  # Otherwise several batches would be in memory.
        seen += count
    if stream is None:
        raise ValueError("batches: expected at least one; pass an iterable of arrays.")
    return _last(stream)


def _num_guesses(epsilon: float, k: int) -> int:
    return math.ceil(math.log(2 * k) / math.log1p(epsilon)) + 1


def _check_epsilon(epsilon: float, k: int) -> float:
    epsilon = as_known_epsilon(epsilon)
    if (guesses := _num_guesses(epsilon, k)) > _MAX_GUESSES:
        raise ValueError(
            f"{epsilon=}: expected a larger one, since it needs {guesses} sets in memory; choose "
            f"one with at most {_MAX_GUESSES}."
        )
    return epsilon


def _begin(function: SetFunction, k: int, epsilon: float) -> _Stream:
    """Returns an empty set for each guess in a window of guesses."""
    guesses = _num_guesses(epsilon, k)
    empty = _empty(function, k)
    sieves = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (guesses, *leaf.shape)), empty)
    return _Stream(sieves, jnp.zeros((), empty.gains.dtype), jnp.zeros((), jnp.int32))


def _empty(function: SetFunction, k: int) -> _Sieve:
    memo = function.init()
    gain_dtype = jax.eval_shape(function.gain, memo, jnp.zeros((), jnp.int32)).dtype
    zero = jnp.zeros((), jnp.int32)
    return _Sieve(zero, memo, jnp.full(k, -1, jnp.int32), jnp.zeros(k, gain_dtype), zero)


def _sift(function, k, epsilon, stream, items, names):
    """Visits items of a function, which enter sets by their names; items named -1 are skipped."""
    log_base = math.log1p(epsilon)
    empty = _empty(function, k)
    slots = jnp.arange(stream.sieves.count.shape[0], dtype=jnp.int32)

    def sift(sieve, exponent, item, name, valid):
        """Returns a set after one more item, and whether the gain was evaluated."""
        # A guess that has become too small is replaced by a larger one with an empty set.
        replaced = sieve.exponent != exponent
        sieve = jax.tree.map(lambda new, old: jnp.where(replaced, new, old), empty, sieve)
        room = valid & (sieve.count < k)
        half = jnp.exp(exponent.astype(sieve.gains.dtype) * log_base) / 2
        gain = function.gain(sieve.memo, item)
        left = jnp.maximum(k - sieve.count, 1).astype(sieve.gains.dtype)
        missing = (half - jnp.sum(sieve.gains)) / left
        joins = room & (gain >= missing)
        added = function.add(sieve.memo, item)
        slot = jnp.where(joins, sieve.count, k)
        sieve = _Sieve(
            exponent=exponent,
            memo=jax.tree.map(lambda new, old: jnp.where(joins, new, old), added, sieve.memo),
            items=sieve.items.at[slot].set(name, mode="drop"),
            gains=sieve.gains.at[slot].set(gain, mode="drop"),
            count=sieve.count + joins.astype(jnp.int32),
        )
        return sieve, room

    def step(stream, item_and_name):
        item, name = item_and_name
        valid = name >= 0
        alone = jnp.where(valid, function.gain(empty.memo, item), 0)
        largest = jnp.maximum(stream.largest, alone)
        # Each exponent keeps its slot while it is in the window, which begins at the largest gain.
        first = jnp.ceil(jnp.log(jnp.where(largest > 0, largest, 1)) / log_base).astype(jnp.int32)
        exponents = first + (slots - first) % slots.shape[0]
        sieves, rooms = jax.vmap(sift, (0, 0, None, None, None))(
            stream.sieves, exponents, item, name, valid & (largest > 0)
        )
        evaluations = valid.astype(jnp.int32) + jnp.sum(rooms, dtype=jnp.int32)
        return _Stream(sieves, largest, stream.num_evaluations + evaluations), None

    return jax.lax.scan(step, stream, (items, names))[0]


def _best(stream: _Stream) -> MaximizationResult:
    sieves = stream.sieves
    values = jnp.sum(sieves.gains, axis=1)
    best = jnp.argmax(values)
    return MaximizationResult(
        sieves.items[best], sieves.gains[best], values[best], stream.num_evaluations
    )


_first = jax.jit(_begin, static_argnums=(1, 2))
_last = jax.jit(_best)


@partial(jax.jit, static_argnums=(1, 2), donate_argnums=3)
def _next(function, k, epsilon, stream, seen, count):
    items = jnp.arange(function.size, dtype=jnp.int32)
    sieves = stream.sieves
    memo = jax.vmap(function.renew, axis_size=len(sieves.count))(sieves.memo)
    stream = stream._replace(sieves=sieves._replace(memo=memo))
    return _sift(function, k, epsilon, stream, items, jnp.where(items < count, seen + items, -1))
