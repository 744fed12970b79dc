"""Greedy from all small initial sets: the best guarantee under a budget, for few items."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular.greedy import grow_greedily
from fedjax_fair.submodular.greedy_selection import Constraints, begin, check_costs, check_function
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.utils import checks

__all__ = ["partial_enumeration"]


def partial_enumeration(
    function: SetFunction,
    costs: ArrayLike,
    budget: float | Float[Array, ""],
    *,
    seed_size: int = 3,
) -> MaximizationResult:
    """Runs greedy by gain per cost from every affordable set of at most three items.

    The best result is at least ``1 - 1/e`` of the optimum within the budget, for a monotone
    submodular function. There are about ``size**3 / 6`` runs of greedy.

    Args:
        function: Monotone and submodular.
        costs: As for `greedy`.
        budget: As for `greedy`.
        seed_size: Items of the largest initial sets; fewer than three have no guarantee.

    References:
        Sviridenko, *A Note on Maximizing a Submodular Set Function Subject to a Knapsack
        Constraint*, Operations Research Letters, 2004

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function, costs = Modular([6.0, 5.0, 5.0]), [3.0, 2.0, 2.0]
        >>> partial_enumeration(function, costs, 4.0, seed_size=1).items.tolist()
        [1, 2, -1]
    """
    size = check_function(function)
    checks.positive_int("seed_size", seed_size, at_most=max(size, 3))
    constraints = Constraints(costs=check_costs(size, costs, budget), budget=budget)
    return _partial_enumeration(function, constraints, min(seed_size, size))


@partial(jax.jit, static_argnums=2)
def _partial_enumeration(function, constraints, seed_size) -> MaximizationResult:
    size = function.size
    empty, _ = begin(function)

    def add(state, item):
        """Adds an item of a seed if there is one and the budget allows it."""
        fits = (item >= 0) & constraints.feasible_items(~state.free)[item]
        return state.take_if(fits, function, item, function.gain(state.memo, item))

    def grown(seed):
        state, (seed, seed_gains) = jax.lax.scan(add, empty, seed)
        added = grow_greedily(function, size, state, constraints, constraints.costs)
        items, gains = jnp.append(seed, added.items), jnp.append(seed_gains, added.gains)
        used = jnp.argsort(items < 0, stable=True)[:size]
        evaluations = added.num_evaluations + jnp.sum(seed >= 0)
        return MaximizationResult(items[used], gains[used], jnp.sum(gains), evaluations)

    results = jax.lax.map(grown, jnp.asarray(_seeds(size, seed_size)))
    best = jax.tree.map(lambda leaf: leaf[jnp.argmax(results.value)], results)
    return best._replace(num_evaluations=jnp.sum(results.num_evaluations))


def _seeds(size: int, largest: int) -> np.ndarray:
    """Returns all sets of at most ``largest`` items, padded with -1."""
    sets = [s for count in range(largest + 1) for s in itertools.combinations(range(size), count)]
    return np.array([[*s, *[-1] * (largest - len(s))] for s in sets], np.int32)
