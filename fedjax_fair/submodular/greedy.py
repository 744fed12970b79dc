"""Greedy maximizers under a cardinality constraint, a matroid or a budget.

With ``k`` alone they return exactly ``k`` distinct items, even if gains are negative; ties go to
the smallest index. Under other constraints slots may stay unused. All can be jitted and mapped.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular.greedy_selection import (
    Constraints,
    begin,
    best_item,
    check_arguments,
    grow,
)
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction

__all__ = ["by_gain_and_by_ratio", "greedy", "grow_greedily", "lazy_greedy", "score"]


def greedy(
    function: SetFunction,
    k: int | None = None,
    *,
    candidate_mask: ArrayLike | None = None,
    initial_items: ArrayLike | None = None,
    matroid: Matroid | None = None,
    costs: ArrayLike | None = None,
    budget: float | Float[Array, ""] | None = None,
    min_gain: float | Float[Array, ""] | None = None,
) -> MaximizationResult:
    """Adds the item with the largest gain, ``k`` times.

    For a monotone submodular function the value is at least ``1 - 1/e`` of the optimum over ``k``
    items (Nemhauser, Wolsey, Fisher, 1978), or ``1/2`` over a matroid (Fisher, Nemhauser, Wolsey,
    1978). With a budget the result is the better of two sets, the second selected by gain per cost,
    with at least ``(1 - 1/e) / 2`` of the optimum (Leskovec et al., 2007).

    Args:
        function: What to maximize.
        k: Number of items, a maximum under other constraints; by default the rank of the matroid or
            all items.
        candidate_mask: Items to select before all others, ``[size]``.
        initial_items: Items that the set already contains. They count in the value and the cost.
        matroid: Only independent sets are feasible.
        costs: Cost of each item, ``[size]``, >= 0.
        budget: Largest total cost, >= 0, up to a relative error of 1e-6.
        min_gain: Items with a gain up to this are not selected.

    Returns:
        ``num_evaluations`` sums the eligible items of all steps.

    Raises:
        ValueError: If there are fewer than ``k`` items, shapes differ, ``costs`` or ``budget`` is
            given alone, or ``initial_items`` is infeasible.

    Examples:
        >>> from fedjax_fair.submodular import Modular, matroids
        >>> function = Modular([2.0, -1.0, 3.0])
        >>> result = greedy(function, 2)
        >>> result.items.tolist(), float(result.value)
        ([2, 0], 5.0)
        >>> kinds = matroids.Partition([0, 1, 0], [1, 1])
        >>> greedy(function, matroid=kinds, min_gain=0).items.tolist()
        [2, -1]
        >>> greedy(function, costs=[1, 1, 2], budget=2).items.tolist()
        [2, -1, -1]
    """
    steps, *arguments = check_arguments(
        function, k, candidate_mask, initial_items, matroid, costs, budget, min_gain
    )
    return _greedy(function, steps, *arguments)


@partial(jax.jit, static_argnums=1)
def _greedy(function, k, candidate_mask, initial_items, constraints) -> MaximizationResult:
    state, before = begin(function, candidate_mask, initial_items)
    if constraints is not None:
        return by_gain_and_by_ratio(grow_greedily, function, k, state, constraints, before)

    def choose(state):
        eligible = state.eligible()
        gains = function.gains(state.memo)
        best = best_item(gains, eligible)
        return best, gains[best], jnp.sum(eligible)

    def step(carry, _):
        state, last = carry
        state = state.take(function, last)
        chosen = choose(state)
        return (state, chosen[0]), chosen

    # The last item is not added to the memo, which costs as much as choosing it.
    first = choose(state)
    _, others = jax.lax.scan(step, (state, first[0]), length=k - 1)
    items, gains, num_evaluations = jax.tree.map(
        lambda one, rest: jnp.concatenate([one[None], rest]), first, others
    )
    return MaximizationResult(items, gains, before + jnp.sum(gains), jnp.sum(num_evaluations))


def lazy_greedy(
    function: SetFunction,
    k: int | None = None,
    *,
    candidate_mask: ArrayLike | None = None,
    initial_items: ArrayLike | None = None,
    matroid: Matroid | None = None,
    costs: ArrayLike | None = None,
    budget: float | Float[Array, ""] | None = None,
    min_gain: float | Float[Array, ""] | None = None,
) -> MaximizationResult:
    """Selects the items of `greedy`, recomputing only gains that may be the largest.

    Gains of a submodular function never grow, so an old gain is an upper bound. Faster than
    `greedy` if one gain is expensive and all gains together are not much cheaper. Arguments and
    errors are as for `greedy`; the function has to be submodular.

    References:
        Minoux, *Accelerated Greedy Algorithms for Maximizing Submodular Set Functions*, 1978

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> result = lazy_greedy(Modular([2.0, -1.0, 3.0]), 2)
        >>> result.items.tolist(), int(result.num_evaluations)
        ([2, 0], 4)
    """
    steps, *initial, constraints = check_arguments(
        function, k, candidate_mask, initial_items, matroid, costs, budget, min_gain
    )
    return _lazy_greedy(function, steps, *initial, constraints or Constraints())


@partial(jax.jit, static_argnums=1)
def _lazy_greedy(function, k, candidate_mask, initial_items, constraints) -> MaximizationResult:
    state, before = begin(function, candidate_mask, initial_items)
    return by_gain_and_by_ratio(_grow_lazily, function, k, state, constraints, before)


def by_gain_and_by_ratio(grow_set, function, k, state, constraints, before) -> MaximizationResult:
    """Returns the set grown by gain or, if costs are given and it is better, by gain per cost."""

    def grown(costs):
        result = grow_set(function, k, state, constraints, costs)
        return result._replace(value=before + result.value)

    by_gain = grown(None)
    if constraints.costs is None:
        return by_gain
    by_ratio = grown(constraints.costs)
    better = by_ratio.value > by_gain.value
    result = jax.tree.map(lambda a, b: jnp.where(better, a, b), by_ratio, by_gain)
    return result._replace(num_evaluations=by_gain.num_evaluations + by_ratio.num_evaluations)


def grow_greedily(function, k, state, constraints, costs) -> MaximizationResult:
    """Adds items by gain or, with ``costs``, by gain per cost."""

    def choose(state):
        eligible = state.eligible(constraints)
        gains = function.gains(state.memo)
        improves = eligible & constraints.improves(gains)
        best = best_item(score(gains, costs), improves)
        return state, best, gains[best], improves.any(), jnp.sum(eligible)

    return grow(state, k, choose, lambda state, item: state.take(function, item))


def _grow_lazily(function, k, state, constraints, costs) -> MaximizationResult:
    def choose(carry):
        state, bounds, first = carry
        eligible = state.eligible(constraints)

        def candidate(bounds):
            improves = eligible & constraints.improves(bounds)
            return best_item(score(bounds, costs), improves), improves.any()

        def tighten(search):
            bounds, exact, best, _ = search
            bounds = bounds.at[best].set(function.gain(state.memo, best))
            return bounds, exact.at[best].set(True), *candidate(bounds)

        # In the first step every bound is a gain.
        search = bounds, jnp.full(function.size, first), *candidate(bounds)
        bounds, exact, best, exists = jax.lax.while_loop(
            lambda search: search[3] & ~search[1][search[2]], tighten, search
        )
        carry = state, bounds, jnp.array(False)
        return carry, best, bounds[best], exists, jnp.sum(exact & eligible)

    def take(carry, item):
        state, bounds, first = carry
        return state.take(function, item), bounds, first

    return grow((state, function.gains(state.memo), jnp.array(True)), k, choose, take)


def score(
    gains: Float[Array, " some"], costs: Float[Array, " some"] | None
) -> Float[Array, " some"]:
    """Returns gains, or gains per cost."""
    # Items without a cost come first, in the order of their gains.
    return gains if costs is None else gains / jnp.maximum(costs, 1e-20)
