"""Greedy on a few random candidates at every step."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.submodular.base import MaximizationResult, SetFunction
from fedjax_fair.submodular.constraints import Constraints, as_constraints
from fedjax_fair.submodular.greedy import by_gain_and_by_ratio, score
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.selection import Selection, as_start, begin, best_of, grow

__all__ = ["stochastic_greedy"]


def stochastic_greedy(
    key: Key[Array, ""],
    function: SetFunction,
    k: int | None = None,
    candidates: int | None = None,
    *,
    epsilon: float | None = None,
    candidate_mask: ArrayLike | None = None,
    initial_items: ArrayLike | None = None,
    matroid: Matroid | None = None,
    costs: ArrayLike | None = None,
    budget: float | Float[Array, ""] | None = None,
    min_gain: float | Float[Array, ""] | None = None,
) -> MaximizationResult:
    """Adds the best of a few random candidates, ``k`` times.

    At every step new candidates are drawn uniformly without replacement from the items that are
    left, or all of these where they are fewer. With ``ceil(size / k * log(1 / epsilon))``
    candidates the expected value for a monotone submodular function is at least ``1 - 1/e -
    epsilon`` of the largest. With as many candidates as items it is ``greedy``.

    Under a matroid or a budget candidates are drawn from the items that can join the set, and it
    ends where none of them gains enough. Beyond a number of items no bound is known.

    Args:
        key: Random key.
        function: What to maximize.
        k: Items to choose; at most so many, or None, where there are other constraints, as for
            ``greedy``.
        candidates: Items whose gains are evaluated at every step.
        epsilon: Determines the number of candidates instead, in (0, 1).
        candidate_mask: As for ``greedy``.
        initial_items: As for ``greedy``, as is all that follows.
        matroid: Which sets are independent.
        costs: Cost of each item.
        budget: The largest sum of costs.
        min_gain: The gain that is not enough.

    Raises:
        ValueError: If there are fewer items than ``k`` or ``candidates``, not just one of
            ``candidates`` and ``epsilon`` is given, or as ``greedy``.

    References:
        Mirzasoleiman, Badanidiyuru, Karbasi, Vondrak, Krause, *Lazier Than Lazy Greedy*, AAAI 2015

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Modular(jnp.arange(100.0))
        >>> chosen = stochastic_greedy(jax.random.key(0), function, 10, epsilon=0.1)
        >>> int(chosen.num_evaluations)  # 24 candidates a step
        240
    """
    size = function.size
    if (candidates is None) == (epsilon is None):
        raise ValueError(f"{candidates=}, {epsilon=}: expected just one of them.")
    allowed, chosen = as_start(size, candidate_mask, initial_items)
    steps, constraints = as_constraints(size, k, initial_items, matroid, costs, budget, min_gain)
    if epsilon is not None:
        checks.unit_interval("epsilon", epsilon)
        checks.positive("epsilon", epsilon)
        candidates = min(size, math.ceil(size / steps * math.log(1 / epsilon)))
    number: Any = candidates
    checks.positive_int("candidates", number, at_most=size)
    return _stochastic_greedy(key, function, steps, int(number), allowed, chosen, constraints)


@partial(jax.jit, static_argnums=(2, 3))
def _stochastic_greedy(
    key: Key[Array, ""],
    function: SetFunction,
    k: int,
    number: int,
    candidate_mask: Bool[Array, " size"] | None,
    initial_items: Int[Array, " initial_items"] | None,
    constraints: Constraints | None,
) -> MaximizationResult:
    state, before = begin(function, candidate_mask, initial_items)
    if constraints is not None:
        drawing = partial(_grow_from_candidates, key, number)
        return by_gain_and_by_ratio(drawing, function, k, state, constraints, before)
    lanes = jnp.arange(number, dtype=jnp.int32)

    def step(carry, place):
        state, left = carry
        count = left.count()
        places = left.first() + permutation_at(jax.random.fold_in(key, place), lanes % count, count)
        drawn = left.items[places]
        gains = jax.vmap(partial(function.gain, state.memo))(drawn)
        lane = best_of(drawn, gains)
        chosen = (drawn[lane], gains[lane], jnp.minimum(count, lanes.shape[0]))
        return (state.take(function, drawn[lane]), left.without(places[lane])), chosen

    _, (items, gains, num_evaluations) = jax.lax.scan(
        step, (state, _Left.of(state)), jnp.arange(k, dtype=jnp.int32)
    )
    return MaximizationResult(items, gains, before + jnp.sum(gains), jnp.sum(num_evaluations))


def _grow_from_candidates(
    key: Key[Array, ""],
    number: int,
    function: SetFunction,
    k: int,
    state: Selection,
    constraints: Constraints,
    costs: Float[Array, " size"] | None,
) -> tuple[Array, Array, Array]:
    """Items, gains and num_evaluations under constraints, which decide anew at every step what may be drawn."""
    lanes = jnp.arange(number, dtype=jnp.int32)

    def choose(carry):
        state, place = carry
        ranks = jnp.cumsum(state.eligible(constraints), dtype=jnp.int32)
        count = ranks[-1]
        some = jnp.maximum(count, 1)
        own_key = jax.random.fold_in(key, place)
        drawn = jnp.searchsorted(ranks, permutation_at(own_key, lanes % some, some) + 1)
        drawn = jnp.minimum(drawn, function.size - 1).astype(jnp.int32)  # Where there is none.
        gains = jax.vmap(partial(function.gain, state.memo))(drawn)
        improves = constraints.improves(gains) & (count > 0)
        scores = score(gains, None if costs is None else costs[drawn])
        lane = best_of(drawn, jnp.where(improves, scores, -jnp.inf))
        num_evaluations = jnp.minimum(count, number)
        return (state, place + 1), drawn[lane], gains[lane], improves.any(), num_evaluations

    def take(carry, item):
        state, place = carry
        return state.take(function, item), place

    return grow((state, jnp.zeros((), jnp.int32)), k, choose, take)


class _Left(NamedTuple):
    """The items that are left, in an order in which one is removed in constant time.

    Attributes:
        items: All items in two segments, candidates and others; those left are first in each.
        counts: Items left in each segment.
        second: Where the second segment begins.
    """

    items: Int[Array, " size"]
    counts: Int[Array, " 2"]
    second: Int[Array, ""]

    @classmethod
    def of(cls, state: Selection) -> _Left:
        kind = jnp.where(state.free, jnp.where(state.candidate_mask, 0, 1), 2)
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
