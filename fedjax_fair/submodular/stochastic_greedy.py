"""Greedy on a few random candidates at every step."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.submodular.checked_arrays import as_known_epsilon, check_key
from fedjax_fair.submodular.greedy import by_gain_and_by_ratio, score
from fedjax_fair.submodular.greedy_selection import Selection, begin, best_of, check_arguments, grow
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.utils import checks

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

    Every step samples candidates uniformly from the remaining items, without replacement. With
    ``ceil(size / k * log(1 / epsilon))`` candidates the expected value for a monotone submodular
    function is at least ``1 - 1/e - epsilon`` of the optimum.

    Under other constraints candidates are feasible items, and the selection ends when none of them
    gains enough; no bound is known.

    Args:
        key: Random key.
        function: What to maximize.
        k: See `greedy`.
        candidates: Candidates in each step.
        epsilon: Sets ``candidates`` instead, in (0, 1).
        candidate_mask: See `greedy`.
        initial_items: See `greedy`.
        matroid: See `greedy`.
        costs: See `greedy`.
        budget: See `greedy`.
        min_gain: See `greedy`.

    Raises:
        ValueError: If there are fewer items than ``candidates``, both or neither of ``candidates``
            and ``epsilon`` are given, or as `greedy`.

    References:
        Mirzasoleiman, Badanidiyuru, Karbasi, Vondrak, Krause, *Lazier Than Lazy Greedy*, AAAI 2015

    Examples:
        >>> import numpy as np
        >>> from fedjax_fair.submodular import Modular
        >>> function = Modular(np.arange(100.0))
        >>> result = stochastic_greedy(jax.random.key(0), function, 10, epsilon=0.1)
        >>> int(result.num_evaluations)  # 24 candidates in each step
        240
    """
    check_key(key)
    if (candidates is None) == (epsilon is None):
        raise ValueError(
            f"{candidates=}, {epsilon=}: expected exactly one of them; set the other one to None."
        )
    steps, *arguments = check_arguments(
        function, k, candidate_mask, initial_items, matroid, costs, budget, min_gain
    )
    if epsilon is not None:
        epsilon, size = as_known_epsilon(epsilon), function.size
        candidates = min(size, math.ceil(size / steps * math.log(1 / epsilon)))
    count: Any = candidates
    checks.positive_int("candidates", count, at_most=function.size)
    return _stochastic_greedy(key, function, steps, int(count), *arguments)


@partial(jax.jit, static_argnums=(2, 3))
def _stochastic_greedy(
    key, function, k, candidates, candidate_mask, initial_items, constraints
) -> MaximizationResult:
    state, before = begin(function, candidate_mask, initial_items)
    if constraints is not None:
        grow_set = partial(_grow_from_candidates, key, candidates)
        return by_gain_and_by_ratio(grow_set, function, k, state, constraints, before)
    lanes = jnp.arange(candidates, dtype=jnp.int32)

    def step(carry, place):
        state, left = carry
        count = left.count()
        places = left.first() + permutation_at(jax.random.fold_in(key, place), lanes % count, count)
        sampled = left.items[places]
        gains = jax.vmap(partial(function.gain, state.memo))(sampled)
        lane = best_of(sampled, gains)
        chosen = (sampled[lane], gains[lane], jnp.minimum(count, candidates))
        return (state.take(function, sampled[lane]), left.without(places[lane])), chosen

    _, (items, gains, num_evaluations) = jax.lax.scan(
        step, (state, _Remaining.of(state)), jnp.arange(k, dtype=jnp.int32)
    )
    return MaximizationResult(items, gains, before + jnp.sum(gains), jnp.sum(num_evaluations))


def _grow_from_candidates(
    key, candidates, function, k, state, constraints, costs
) -> MaximizationResult:
    """Samples candidates from the items that the constraints allow."""
    lanes = jnp.arange(candidates, dtype=jnp.int32)

    def choose(carry):
        state, place = carry
        ranks = jnp.cumsum(state.eligible(constraints), dtype=jnp.int32)
        count = ranks[-1]
        some = jnp.maximum(count, 1)
        step_key = jax.random.fold_in(key, place)
        sampled = jnp.searchsorted(ranks, permutation_at(step_key, lanes % some, some) + 1)
        sampled = jnp.minimum(sampled, function.size - 1).astype(jnp.int32)  # If none is eligible.
        gains = jax.vmap(partial(function.gain, state.memo))(sampled)
        improves = constraints.improves(gains) & (count > 0)
        scores = score(gains, None if costs is None else costs[sampled])
        lane = best_of(sampled, jnp.where(improves, scores, -jnp.inf))
        evaluations = jnp.minimum(count, candidates)
        return (state, place + 1), sampled[lane], gains[lane], improves.any(), evaluations

    def take(carry, item):
        state, place = carry
        return state.take(function, item), place

    return grow((state, jnp.zeros((), jnp.int32)), k, choose, take)


class _Remaining(NamedTuple):
    """The remaining items, in an order that allows removal in constant time.

    Attributes:
        items: All items in two segments, candidates and others; each begins with those remaining.
        counts: Number of remaining items in each segment.
        second: Where the second segment begins.
    """

    items: Int[Array, " size"]
    counts: Int[Array, " 2"]
    second: Int[Array, ""]

    @classmethod
    def of(cls, state: Selection) -> _Remaining:
        kind = jnp.where(state.free, jnp.where(state.candidate_mask, 0, 1), 2)
        counts = jnp.stack([jnp.sum(kind == 0), jnp.sum(kind == 1)]).astype(jnp.int32)
        return cls(jnp.argsort(kind, stable=True).astype(jnp.int32), counts, counts[0])

    def first(self) -> Int[Array, ""]:
        return jnp.where(self.counts[0] > 0, 0, self.second)

    def count(self) -> Int[Array, ""]:
        return jnp.where(self.counts[0] > 0, self.counts[0], self.counts[1])

    def without(self, place: Int[Array, ""]) -> _Remaining:
        last = self.first() + self.count() - 1
        segment = jnp.where(self.counts[0] > 0, 0, 1)
        items = self.items.at[place].set(self.items[last])
        return _Remaining(items, self.counts.at[segment].add(-1), self.second)
