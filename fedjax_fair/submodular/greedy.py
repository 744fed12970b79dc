"""Greedy maximizers, under a number of items, a matroid or a budget.

With ``k`` alone they return exactly ``k`` different items, also where gains are negative or equal;
ties go to the smallest index. With a matroid, a budget or a least gain there may be
fewer: shapes are fixed, and places that stay empty hold item -1 and gain 0. They can be jitted,
mapped and scanned. Outside of ``jax.jit`` a function of another shape or class compiles again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair.submodular.base import MaximizationResult, SetFunction
from fedjax_fair.submodular.constraints import Constraints, as_constraints
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.selection import Selection, as_start, begin, best_item, grow

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

    For a monotone submodular function the value is at least ``1 - 1/e`` of the largest that ``k``
    items can have (Nemhauser, Wolsey, Fisher, 1978), and at least ``1/2`` of that of the best
    independent set of a matroid (Fisher, Nemhauser, Wolsey, 1978). With a budget it is the better
    of two sets, the second chosen by gain per cost: at least ``(1 - 1/e) / 2`` of the best that the
    budget pays for (Leskovec et al., 2007).

    Args:
        function: What to maximize.
        k: Items to choose; at most so many where there are other constraints. By default the rank of the
            matroid, or else all items.
        candidate_mask: Mask of the items that may be chosen, ``[size]``; the others are chosen, best
            first, only when no candidate is left.
        initial_items: Items that the set contains already. They are not among the ``items`` that are
            returned, but count in its ``value``, and in its cost.
        matroid: Chooses independent sets only.
        costs: Cost of each item, ``[size]``, >= 0; may be traced.
        budget: The largest sum of costs, >= 0, up to a millionth; may be traced.
        min_gain: Items that gain no more than this are not chosen: with 0 no item is that lowers the
            value or leaves it as it is. May be traced.

    Returns:
        The items chosen, of fixed shape ``[k]``: -1, with gain 0, in places that stay empty.
        ``num_evaluations`` sums the eligible items of every step.

    Raises:
        ValueError: If there are fewer than ``k`` items, shapes do not fit, there are costs without
            a budget, or ``initial_items`` is not allowed.

    Examples:
        >>> from fedjax_fair.submodular import Modular, matroids
        >>> function = Modular(jnp.array([2.0, -1.0, 3.0]))
        >>> chosen = greedy(function, 2)
        >>> chosen.items.tolist(), float(chosen.value)
        ([2, 0], 5.0)
        >>> greedy(function, matroid=matroids.Partition([0, 1, 0], [1, 1]), min_gain=0).items.tolist()
        [2, -1]
        >>> greedy(function, costs=[1, 1, 2], budget=2).items.tolist()
        [2, -1, -1]
    """
    allowed, chosen = as_start(function.size, candidate_mask, initial_items)
    steps, constraints = as_constraints(
        function.size, k, initial_items, matroid, costs, budget, min_gain
    )
    return _greedy(function, steps, allowed, chosen, constraints)


@partial(jax.jit, static_argnums=1)
def _greedy(
    function: SetFunction,
    k: int,
    candidate_mask: Bool[Array, " size"] | None,
    initial_items: Int[Array, " initial_items"] | None,
    constraints: Constraints | None,
) -> MaximizationResult:
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

    # The last item is never added to the memo, which is as much work as choosing it.
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
    """Chooses as ``greedy`` does, but recomputes only the gains of items that may be the best.

    Gains of a submodular function never grow, so that an old gain is an upper bound. It is faster
    than ``greedy`` where a single gain is expensive and all of them together are not much cheaper.

    Args:
        function: What to maximize; submodular.
        k: As for ``greedy``, as is all that follows.
        candidate_mask: Items to choose before all others.
        initial_items: Items that the set contains already.
        matroid: Which sets are independent.
        costs: Cost of each item.
        budget: The largest sum of costs.
        min_gain: The gain that is not enough.

    Raises:
        ValueError: As ``greedy``.

    References:
        Minoux, *Accelerated Greedy Algorithms for Maximizing Submodular Set Functions*, 1978

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> chosen = lazy_greedy(Modular(jnp.array([2.0, -1.0, 3.0])), 2)
        >>> chosen.items.tolist(), int(chosen.num_evaluations)
        ([2, 0], 4)
    """
    allowed, chosen = as_start(function.size, candidate_mask, initial_items)
    steps, constraints = as_constraints(
        function.size, k, initial_items, matroid, costs, budget, min_gain
    )
    return _lazy_greedy(function, steps, allowed, chosen, constraints or Constraints())


@partial(jax.jit, static_argnums=1)
def _lazy_greedy(
    function: SetFunction,
    k: int,
    candidate_mask: Bool[Array, " size"] | None,
    initial_items: Int[Array, " initial_items"] | None,
    constraints: Constraints,
) -> MaximizationResult:
    state, before = begin(function, candidate_mask, initial_items)
    return by_gain_and_by_ratio(_grow_lazily, function, k, state, constraints, before)


def by_gain_and_by_ratio(
    how: Any,
    function: SetFunction,
    k: int,
    state: Selection,
    constraints: Constraints,
    before: Float[Array, ""],
) -> MaximizationResult:
    """What is grown by gain and, where there are costs, by gain per cost if that is better."""

    def grown(costs):
        items, gains, num_evaluations = how(function, k, state, constraints, costs)
        return MaximizationResult(items, gains, before + jnp.sum(gains), num_evaluations)

    by_gain = grown(None)
    if constraints.costs is None:
        return by_gain
    by_ratio = grown(constraints.costs)
    better = by_ratio.value > by_gain.value
    found = jax.tree.map(lambda a, b: jnp.where(better, a, b), by_ratio, by_gain)
    return found._replace(num_evaluations=by_gain.num_evaluations + by_ratio.num_evaluations)


def grow_greedily(
    function: SetFunction,
    k: int,
    state: Selection,
    constraints: Constraints,
    costs: Float[Array, " size"] | None,
) -> tuple[Array, Array, Array]:
    """Items, gains and num_evaluations of greedy, by gain or by gain per cost."""

    def choose(state):
        eligible = state.eligible(constraints)
        gains = function.gains(state.memo)
        improves = eligible & constraints.improves(gains)
        best = best_item(score(gains, costs), improves)
        return state, best, gains[best], improves.any(), jnp.sum(eligible)

    return grow(state, k, choose, lambda state, item: state.take(function, item))


def _grow_lazily(
    function: SetFunction,
    k: int,
    state: Selection,
    constraints: Constraints,
    costs: Float[Array, " size"] | None,
) -> tuple[Array, Array, Array]:
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

        # At the first step every bound is a gain.
        search = bounds, jnp.full(function.size, first), *candidate(bounds)
        bounds, exact, best, found = jax.lax.while_loop(
            lambda search: search[3] & ~search[1][search[2]], tighten, search
        )
        carry = state, bounds, jnp.array(False)
        return carry, best, bounds[best], found, jnp.sum(exact & eligible)

    def take(carry, item):
        state, bounds, first = carry
        return state.take(function, item), bounds, first

    return grow((state, function.gains(state.memo), jnp.array(True)), k, choose, take)


def score(
    gains: Float[Array, " some"], costs: Float[Array, " some"] | None
) -> Float[Array, " some"]:
    """What decides between items."""
    # Items that cost nothing come first, the best of them before the others.
    return gains if costs is None else gains / jnp.maximum(costs, 1e-20)
