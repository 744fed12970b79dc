"""Which sets a maximizer may return: independent ones, affordable ones, and where it stops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import as_non_negative, is_traced
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.tree import Number, Tree

__all__ = ["Constraints", "as_constraints", "check_costs", "check_matroid"]

# A set costs too much from this share above the budget on, which is more than rounding errors.
_SLACK = 1e-6


class Constraints(Tree):
    """What may join a set.

    Args:
        matroid: The set has to stay independent.
        min_gain: Items that gain at most so much are not chosen; None where any gain will do.
        costs: Cost of each item, ``[size]``, where there is a budget.
        budget: The largest sum of costs.
        allowed: Mask of the items that may be chosen, ``[size]``; by default all.
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
        """Whether each item gains enough to be chosen."""
        return jnp.ones(gains.shape, bool) if self.min_gain is None else gains > self.min_gain


def as_constraints(
    size: int,
    k: int | None,
    initial_items: ArrayLike | None,
    matroid: Matroid | None,
    costs: ArrayLike | None,
    budget: float | Float[Array, ""] | None,
    min_gain: float | Float[Array, ""] | None,
) -> tuple[int, Constraints | None]:
    """The number of steps, and the constraints beyond it, if there are any; ``initial_items`` is valid."""
    taken = 0 if initial_items is None else np.shape(initial_items)[0]
    constrained = not (matroid is None and costs is None and budget is None and min_gain is None)
    if k is None and not constrained:
        raise ValueError("k=None: expected an integer, a matroid, a budget, or a least gain.")
    steps = max(1, (matroid.rank if matroid else size) - taken) if k is None else k
    checks.positive_int("k", steps, at_most=size - taken)
    if not constrained:
        return steps, None
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
    return steps, Constraints(matroid, min_gain, checked_costs, budget)


def check_matroid(matroid: Matroid, size: int, name: str, items: ArrayLike | None) -> None:
    """Requires a matroid of so many items in which some of them, where they are known, may be."""
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
    """The costs, checked, as is their budget."""
    if costs is None or budget is None:
        missing = "budget" if budget is None else "costs"
        raise ValueError(f"{missing}=None: expected both costs and a budget, or neither.")
    checks.non_negative("budget", budget)
    costs = as_non_negative("costs", costs, "items")
    if costs.shape[0] != size:
        raise ValueError(f"costs: expected {size} items, got {costs.shape[0]}.")
    return costs


@jax.jit
def _independent(matroid: Matroid, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
    return matroid.independent(mask)
