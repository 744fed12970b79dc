"""Constraints on the sets that a maximizer may return, and checks of a maximizer's arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import as_items, as_mask, as_non_negative, is_traced
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.tree import Number, Tree

__all__ = ["Constraints", "check_arguments", "check_costs", "check_matroid"]

# Tolerance of the budget for rounding errors, as a share of it.
_SLACK = 1e-6


class Constraints(Tree):
    """Conditions for adding an item to a set.

    Args:
        matroid: The set has to stay independent.
        min_gain: Items with a gain up to this are not added; None allows any gain.
        costs: Cost of each item, ``[size]``, if there is a budget.
        budget: Largest total cost.
        allowed: Mask of the items that may be added, ``[size]``; by default all.
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


def check_arguments(
    size, k, candidate_mask, initial_items, matroid, costs, budget, min_gain
) -> tuple[int, Bool[Array, " size"] | None, Int[Array, " initial"] | None, Constraints | None]:
    """Returns the number of steps, candidates, initial items, and other constraints than ``k``."""
    candidates = (
        None if candidate_mask is None else as_mask("candidate_mask", candidate_mask, (size,))
    )
    initial = None if initial_items is None else as_items("initial_items", initial_items, size)
    remaining = size if initial is None else size - initial.shape[0]
    constrained = not (matroid is None and costs is None and budget is None and min_gain is None)
    if k is None and not constrained:
        raise ValueError("k=None: expected an integer, or one of matroid, budget and min_gain.")
    steps = max(1, remaining + (matroid.rank - size if matroid else 0)) if k is None else k
    checks.positive_int("k", steps, at_most=remaining)
    if not constrained:
        return steps, candidates, initial, None
    if min_gain is not None:
        checks.finite("min_gain", min_gain)
    if matroid is not None:
        check_matroid(matroid, size, "initial_items", initial_items)
    checked_costs = None
    if costs is not None or budget is not None:
        checked_costs = check_costs(size, costs, budget)
        if initial_items is not None and not is_traced((initial_items, costs, budget)):
            spent = np.asarray(checked_costs)[np.asarray(initial_items)].sum()
            if spent > np.asarray(budget) * (1 + _SLACK):
                raise ValueError(f"{initial_items=}: expected items that cost at most {budget=}.")
    return steps, candidates, initial, Constraints(matroid, min_gain, checked_costs, budget)


def check_matroid(matroid: Matroid, size: int, name: str, items: ArrayLike | None) -> None:
    """Requires a matroid of ``size`` items in which ``items``, if known, are independent."""
    if matroid.size != size:
        raise ValueError(f"matroid: expected {size} items, got {matroid.size}.")
    if items is None or is_traced((items, matroid)):
        return
    with jax.ensure_compile_time_eval():
        if not bool(_independent(matroid, np.isin(np.arange(size), np.asarray(items)))):
            raise ValueError(f"{name}={items}: expected an independent set.")


def check_costs(
    size: int, costs: ArrayLike | None, budget: float | Float[Array, ""] | None
) -> Float[Array, " size"]:
    """Returns the costs as an array; requires a budget >= 0."""
    if costs is None or budget is None:
        missing = "budget" if budget is None else "costs"
        raise ValueError(f"{missing}=None: expected both costs and a budget, or neither.")
    checks.non_negative("budget", budget)
    return as_non_negative("costs", costs, "items", size)


@jax.jit
def _independent(matroid: Matroid, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
    return matroid.independent(mask)
