"""Maximizers that add one item after another.

All of them return exactly ``k`` different items, also where gains are negative or equal; ties go to
the smallest index. They can be jitted, mapped and scanned; outside of ``jax.jit`` every call
compiles again.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.submodular.base import Maximized, SetFunction

__all__ = ["greedy", "lazy_greedy", "stochastic_greedy"]


def greedy(
    function: SetFunction,
    k: int,
    *,
    available: ArrayLike | None = None,
    start: ArrayLike | None = None,
) -> Maximized:
    """Adds the item with the largest gain, ``k`` times.

    For a monotone submodular function the value is at least ``1 - 1/e`` of the largest that ``k``
    items can have (Nemhauser, Wolsey, Fisher, 1978).

    Args:
        function: What to maximize.
        k: Items to choose.
        available: Mask of the items that may be chosen, ``[size]``; the others are chosen, best
            first, only when no available one is left.
        start: Items that the set contains already. They are not among the ``items`` that are
            returned, but count in its ``value``.

    Returns:
        The items chosen; ``calls`` sums the eligible items of every step.

    Raises:
        ValueError: If there are fewer than ``k`` items, or shapes do not fit.

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> chosen = greedy(modular(jnp.array([2.0, -1.0, 3.0])), 2)
        >>> chosen.items.tolist(), float(chosen.value)
        ([2, 0], 5.0)
    """
    state, before = _begin(function, k, available, start)

    def choose(state):
        eligible = state.eligible()
        gains = function.gains(state.memo)
        best = _best(gains, eligible)
        return best, gains[best], jnp.sum(eligible)

    def step(carry, _):
        state, last = carry
        state = state.take(function, last)
        chosen = choose(state)
        return (state, chosen[0]), chosen

    # The last item is never added to the memo, which is as much work as choosing it.
    first = choose(state)
    _, others = jax.lax.scan(step, (state, first[0]), length=k - 1)
    items, gains, calls = jax.tree.map(
        lambda one, rest: jnp.concatenate([one[None], rest]), first, others
    )
    return Maximized(items, gains, before + jnp.sum(gains), jnp.sum(calls))


def stochastic_greedy(
    key: Key[Array, ""],
    function: SetFunction,
    k: int,
    candidates: int | None = None,
    *,
    epsilon: float | None = None,
    available: ArrayLike | None = None,
    start: ArrayLike | None = None,
) -> Maximized:
    """Adds the best of a few random candidates, ``k`` times.

    At every step new candidates are drawn uniformly without replacement from the items that are
    left, or all of these where they are fewer. With ``ceil(size / k * log(1 / epsilon))``
    candidates the expected value for a monotone submodular function is at least ``1 - 1/e -
    epsilon`` of the largest. With as many candidates as items it is ``greedy``.

    Args:
        key: Random key.
        function: What to maximize.
        k: Items to choose.
        candidates: Items whose gains are evaluated at every step.
        epsilon: Determines the number of candidates instead, in (0, 1).
        available: As for ``greedy``.
        start: As for ``greedy``.

    Raises:
        ValueError: If there are fewer items than ``k`` or ``candidates``, or not just one of
            ``candidates`` and ``epsilon`` is given.

    References:
        Mirzasoleiman, Badanidiyuru, Karbasi, Vondrak, Krause, *Lazier Than Lazy Greedy*, AAAI 2015

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> function = modular(jnp.arange(100.0))
        >>> chosen = stochastic_greedy(jax.random.key(0), function, 10, epsilon=0.1)
        >>> int(chosen.calls)  # 24 candidates a step
        240
    """
    size = function.size
    if (candidates is None) == (epsilon is None):
        raise ValueError(f"{candidates=}, {epsilon=}: expected just one of them.")
    checks.positive_int("k", k, at_most=size)
    if epsilon is not None:
        checks.unit_interval("epsilon", epsilon)
        checks.positive("epsilon", epsilon)
        candidates = min(size, math.ceil(size / k * math.log(1 / epsilon)))
    number: Any = candidates
    checks.positive_int("candidates", number, at_most=size)
    state, before = _begin(function, k, available, start)
    lanes = jnp.arange(number, dtype=jnp.int32)

    def step(carry, place):
        state, left = carry
        count = left.count()
        places = left.first() + permutation_at(jax.random.fold_in(key, place), lanes % count, count)
        drawn = left.items[places]
        gains = jax.vmap(partial(function.gain, state.memo))(drawn)
        lane = _best_of(drawn, gains)
        taken = (drawn[lane], gains[lane], jnp.minimum(count, lanes.shape[0]))
        return (state.take(function, drawn[lane]), left.without(places[lane])), taken

    _, (items, gains, calls) = jax.lax.scan(
        step, (state, _Left.of(state)), jnp.arange(k, dtype=jnp.int32)
    )
    return Maximized(items, gains, before + jnp.sum(gains), jnp.sum(calls))


def lazy_greedy(
    function: SetFunction,
    k: int,
    *,
    available: ArrayLike | None = None,
    start: ArrayLike | None = None,
) -> Maximized:
    """Chooses as ``greedy`` does, but recomputes only the gains of items that may be the best.

    Gains of a submodular function never grow, so that an old gain is an upper bound. It is faster
    than ``greedy`` where a single gain is expensive and all of them together are not much cheaper.

    Args:
        function: What to maximize; submodular.
        k: Items to choose.
        available: As for ``greedy``.
        start: As for ``greedy``.

    Raises:
        ValueError: If there are fewer than ``k`` items, or shapes do not fit.

    References:
        Minoux, *Accelerated Greedy Algorithms for Maximizing Submodular Set Functions*, 1978

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> chosen = lazy_greedy(modular(jnp.array([2.0, -1.0, 3.0])), 2)
        >>> chosen.items.tolist(), int(chosen.calls)
        ([2, 0], 4)
    """
    state, before = _begin(function, k, available, start)
    bounds = function.gains(state.memo)

    def step(carry, number):
        state, bounds = carry
        eligible = state.eligible()

        def tighten(search):
            bounds, exact, best = search
            bounds = bounds.at[best].set(function.gain(state.memo, best))
            return bounds, exact.at[best].set(True), _best(bounds, eligible)

        # At the first step every bound is a gain.
        exact = jnp.full(function.size, number == 0)
        search = bounds, exact, _best(bounds, eligible)
        bounds, exact, best = jax.lax.while_loop(lambda s: ~s[1][s[2]], tighten, search)
        calls = jnp.sum(exact & eligible)
        return (state.take(function, best), bounds), (best, bounds[best], calls)

    steps = jnp.arange(k, dtype=jnp.int32)
    _, (items, gains, calls) = jax.lax.scan(step, (state, bounds), steps)
    return Maximized(items, gains, before + jnp.sum(gains), jnp.sum(calls))


class _State(NamedTuple):
    """A set that grows.

    Attributes:
        memo: The function's memo of it.
        free: Items outside of it.
        available: Items to choose before all others.
    """

    memo: PyTree
    free: Bool[Array, " size"]
    available: Bool[Array, " size"]

    def eligible(self) -> Bool[Array, " size"]:
        """The items that may be chosen next."""
        first = self.free & self.available
        return jnp.where(first.any(), first, self.free)

    def take(self, function: SetFunction, item: Int[Array, ""]) -> _State:
        return _State(function.add(self.memo, item), self.free.at[item].set(False), self.available)


class _Left(NamedTuple):
    """The items that are left, in an order in which one is removed in constant time.

    Attributes:
        items: All items in two segments, available ones and others; those left are first in each.
        counts: Items left in each segment.
        second: Where the second segment begins.
    """

    items: Int[Array, " size"]
    counts: Int[Array, " 2"]
    second: Int[Array, ""]

    @classmethod
    def of(cls, state: _State) -> _Left:
        kind = jnp.where(state.free, jnp.where(state.available, 0, 1), 2)
        counts = jnp.stack([jnp.sum(kind == 0), jnp.sum(kind == 1)]).astype(jnp.int32)
        return cls(jnp.argsort(kind, stable=True).astype(jnp.int32), counts, counts[0])

    def first(self) -> Int[Array, ""]:
        return jnp.where(self.counts[0] > 0, 0, self.second)

    def count(self) -> Int[Array, ""]:
        return jnp.where(self.counts[0] > 0, self.counts[0], self.counts[1])

    def without(self, place: Int[Array, ""]) -> _Left:
        last = self.first() + self.count() - 1
        segment = jnp.where(self.counts[0] > 0, 0, 1)
        return _Left(
            self.items.at[place].set(self.items[last]),
            self.counts.at[segment].add(-1),
            self.second,
        )


def _begin(
    function: SetFunction,
    k: int,
    available: ArrayLike | None,
    start: ArrayLike | None,
) -> tuple[_State, Float[Array, ""]]:
    """The initial set and its value."""
    size = function.size
    allowed = jnp.ones(size, bool) if available is None else jnp.asarray(available, bool)
    if allowed.shape != (size,):
        raise ValueError(f"available: expected shape ({size},), got {allowed.shape}.")
    state = _State(function.init(), jnp.ones(size, bool), allowed)
    if start is None:
        checks.positive_int("k", k, at_most=size)
        return state, jnp.zeros(())
    checks.items("start", start, size)
    chosen = jnp.asarray(start, dtype=jnp.int32)
    if chosen.ndim != 1:
        raise ValueError(f"start: expected a vector of items, got shape {chosen.shape}.")
    checks.positive_int("k", k, at_most=size - chosen.shape[0])
    state, _ = jax.lax.scan(lambda state, item: (state.take(function, item), None), state, chosen)
    return state, function.value(~state.free)


def _best(gains: Float[Array, " size"], eligible: Bool[Array, " size"]) -> Int[Array, ""]:
    """The eligible item with the largest gain, also where gains are infinite or NaN."""
    return jnp.argmax(jnp.where(eligible, _comparable(gains), -jnp.inf)).astype(jnp.int32)


def _best_of(items: Int[Array, " some"], gains: Float[Array, " some"]) -> Int[Array, ""]:
    """The place of the item with the largest gain; of equal ones, that with the smallest index."""
    gains = _comparable(gains)
    largest = gains == jnp.max(gains)
    return jnp.argmin(jnp.where(largest, items, jnp.iinfo(items.dtype).max))


def _comparable(gains: Float[Array, " some"]) -> Float[Array, " some"]:
    """The gains with NaN and minus infinity as the lowest finite number."""
    lowest = jnp.finfo(gains.dtype).min
    return jnp.maximum(jnp.where(jnp.isnan(gains), lowest, gains), lowest)
