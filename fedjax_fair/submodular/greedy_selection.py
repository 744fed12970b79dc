"""State, constraints and loop that the greedy maximizers share, and checks of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.submodular.checked_arrays import as_items, as_mask, as_non_negative, is_traced
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Number, Tree

# Tolerance of the budget for rounding errors, as a share of it.
_SLACK = 1e-6


class Constraints(Tree):
    """Conditions for adding an item to a set.

    Args:
        matroid: The set has to stay independent.
        min_gain: Items with a gain up to this are not added.
        costs: Cost of each item, ``[size]``, if there is a budget.
        budget: Largest total cost.
        allowed: Mask of the items that may be added, ``[size]``.
    """

    matroid: Matroid | None = None
    min_gain: Number | None = None
    costs: Float[Array, " size"] | None = None
    budget: Number | None = None
    allowed: Bool[Array, " size"] | None = None

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        """Returns the items outside of a set that can join it."""
        free = ~mask if self.matroid is None else self.matroid.feasible_items(mask)
        if self.allowed is not None:
            free = free & self.allowed
        if self.costs is None or self.budget is None:
            return free
        spent = jnp.sum(self.costs, where=mask)
        return free & (spent + self.costs <= self.budget * (1 + _SLACK))

    def improves(self, gains: Float[Array, " size"]) -> Bool[Array, " size"]:
        """Returns whether each gain is large enough."""
        return jnp.ones(gains.shape, bool) if self.min_gain is None else gains > self.min_gain


class Selection(NamedTuple):
    """A growing set.

    Attributes:
        memo: The function's memo of the set.
        free: Items outside of the set.
        candidate_mask: Items to select before all others.
    """

    memo: PyTree
    free: Bool[Array, " size"]
    candidate_mask: Bool[Array, " size"]

    def eligible(self, constraints: Constraints | None = None) -> Bool[Array, " size"]:
        """Returns the items that may be selected next."""
        free = self.free if constraints is None else constraints.feasible_items(~self.free)
        first = free & self.candidate_mask
        return jnp.where(first.any(), first, free)

    def take(self, function: SetFunction, item: Int[Array, ""]) -> Selection:
        """Returns the set with one more item."""
        memo = function.add(self.memo, item)
        return Selection(memo, self.free.at[item].set(False), self.candidate_mask)

    def take_if(
        self,
        accepted: Bool[Array, ""],
        function: SetFunction,
        item: Int[Array, ""],
        gain: Float[Array, ""],
    ) -> tuple[Selection, tuple[Int[Array, ""], Float[Array, ""]]]:
        """Adds an item if it is accepted, and returns it with its gain, else -1 and 0."""
        state = jax.lax.cond(accepted, lambda: self.take(function, item), lambda: self)
        return state, (jnp.where(accepted, item, -1), jnp.where(accepted, gain, 0))


def begin(
    function: SetFunction,
    candidate_mask: Bool[Array, " size"] | None = None,
    initial_items: Int[Array, " initial"] | None = None,
) -> tuple[Selection, Float[Array, ""]]:
    """Returns the initial set and its value."""
    everything = jnp.ones(function.size, bool)
    candidates = everything if candidate_mask is None else candidate_mask
    state = Selection(function.init(), everything, candidates)
    if initial_items is None:
        return state, jnp.zeros(())
    state, _ = jax.lax.scan(lambda s, item: (s.take(function, item), None), state, initial_items)
    return state, function.value(~state.free)


def grow(
    state: PyTree,
    k: int,
    choose: Callable[[Any], tuple],
    take: Callable[[Any, Int[Array, ""]], Any],
) -> MaximizationResult:
    """Adds items until there are ``k`` or no item may be added.

    Args:
        state: The initial state.
        k: Maximum number of items.
        choose: ``choose(state) -> (state, item, gain, accepted, num_evaluations)``.
        take: ``take(state, item) -> state``.

    Returns:
        The items, ``[k]``; the value is the sum of their gains.
    """

    def step(carry):
        count, state, _, items, gains, num_evaluations = carry
        state, item, gain, accepted, evaluations = choose(state)
        # The last item is not added to the memo, which costs as much as choosing it.
        state = jax.lax.cond(accepted & (count + 1 < k), lambda: take(state, item), lambda: state)
        items = items.at[count].set(jnp.where(accepted, item, -1))
        gains = gains.at[count].set(jnp.where(accepted, gain, 0))
        return count + 1, state, accepted, items, gains, num_evaluations + evaluations

    gain_dtype = jax.eval_shape(choose, state)[2].dtype
    zero, no_items = jnp.zeros((), jnp.int32), jnp.full(k, -1, jnp.int32)
    carry = (zero, state, jnp.array(True), no_items, jnp.zeros(k, gain_dtype), zero)
    with jax.named_scope(f"selections_{k}"):
        carry = jax.lax.while_loop(lambda carry: (carry[0] < k) & carry[2], step, carry)
    *_, items, gains, num_evaluations = carry
    return MaximizationResult(items, gains, jnp.sum(gains), num_evaluations)


def best_item(gains: Float[Array, " size"], eligible: Bool[Array, " size"]) -> Int[Array, ""]:
    """Returns the eligible item with the largest gain, also where gains are infinite or NaN."""
    return jnp.argmax(jnp.where(eligible, _comparable(gains), -jnp.inf)).astype(jnp.int32)


def best_of(items: Int[Array, " some"], gains: Float[Array, " some"]) -> Int[Array, ""]:
    """Returns the position of the largest gain; of equal gains, the smallest item."""
    gains = _comparable(gains)
    largest = gains == jnp.max(gains)
    return jnp.argmin(jnp.where(largest, items, jnp.iinfo(items.dtype).max))


def _comparable(gains: Float[Array, " some"]) -> Float[Array, " some"]:
    """Replaces NaN and minus infinity by the lowest finite value."""
    lowest = jnp.finfo(gains.dtype).min
    return jnp.maximum(jnp.where(jnp.isnan(gains), lowest, gains), lowest)


def check_function(function: SetFunction) -> int:
    """Returns the number of items of a set function."""
    checks.instance("function", function, SetFunction, "FacilityLocation(similarity)")
    return function.size


def check_arguments(
    function, k, candidate_mask, initial_items, matroid, costs, budget, min_gain
) -> tuple[int, Bool[Array, " size"] | None, Int[Array, " initial"] | None, Constraints | None]:
    """Returns the number of steps, candidates, initial items, and other constraints than ``k``."""
    size = check_function(function)
    if candidate_mask is not None:
        candidate_mask = as_mask("candidate_mask", candidate_mask, (size,))
    num_initial = 0
    if initial_items is not None:
        initial_items = as_items("initial_items", initial_items, size)
        num_initial = initial_items.shape[0]
        if num_initial == size:
            raise ValueError(
                "initial_items: expected an item to remain, got all of them; start from fewer "
                "items."
            )
    is_constrained = any(one is not None for one in (matroid, costs, budget, min_gain))
    if k is None and not is_constrained:
        raise ValueError(
            "k=None: expected an integer, or one of matroid, budget and min_gain; set one of them."
        )
    most = size if matroid is None else check_matroid(matroid, size, "initial_items", initial_items)
    steps = max(1, most - num_initial) if k is None else k
    checks.positive_int("k", steps, at_most=size - num_initial)
    if min_gain is not None:
        checks.finite("min_gain", min_gain)
    if costs is not None or budget is not None:
        costs = check_costs(size, costs, budget)
        if initial_items is not None and not is_traced((initial_items, costs, budget)):
            items = np.asarray(initial_items)
            if np.asarray(costs)[items].sum() > np.asarray(budget) * (1 + _SLACK):
                raise ValueError(
                    f"initial_items={items.tolist()}: expected items that cost at most {budget=}; "
                    "raise the budget or remove items."
                )
    constraints = Constraints(matroid, min_gain, costs, budget) if is_constrained else None
    return steps, candidate_mask, initial_items, constraints


def check_matroid(matroid: Matroid, size: int, name: str, items: ArrayLike | None) -> int:
    """Returns the rank of a matroid of ``size`` items in which ``items`` are independent."""
    checks.instance("matroid", matroid, Matroid, "matroids.Uniform(k, num_items)")
    if matroid.size != size:
        raise ValueError(
            f"matroid: expected {size} items, got {matroid.size}; make the matroid of the "
            "function's items."
        )
    if items is not None and not is_traced((items, matroid)):
        chosen = np.asarray(items)
        with jax.ensure_compile_time_eval():
            if not bool(_independent(matroid, np.isin(np.arange(size), chosen))):
                raise ValueError(
                    f"{name}={chosen.tolist()}: expected an independent set; remove items."
                )
    return matroid.rank


def check_costs(
    size: int, costs: ArrayLike | None, budget: float | Float[Array, ""] | None
) -> Float[Array, " size"]:
    """Returns the costs as an array; requires a budget >= 0."""
    if costs is None or budget is None:
        missing = "budget" if budget is None else "costs"
        raise ValueError(
            f"{missing}=None: expected both costs and a budget, or neither; set {missing}."
        )
    checks.non_negative("budget", budget)
    return as_non_negative("costs", costs, "items", size)


@jax.jit
def _independent(matroid: Matroid, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
    return matroid.independent(mask)
