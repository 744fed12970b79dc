"""The best guarantee under a budget, for few items."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.base import MaximizationResult, SetFunction
from fedjax_fair.submodular.constraints import Constraints, check_costs
from fedjax_fair.submodular.greedy import grow_greedily
from fedjax_fair.submodular.selection import begin

__all__ = ["partial_enumeration"]


def partial_enumeration(
    function: SetFunction,
    costs: ArrayLike,
    budget: float | Float[Array, ""],
    *,
    seed_size: int = 3,
) -> MaximizationResult:
    """Greedy by gain per cost from every set of at most three items that the budget pays for.

    The best of what it finds is at least ``1 - 1/e`` of the best set that the budget pays for, if
    the function is monotone and submodular. There are about ``size**3 / 6`` runs of greedy.

    Args:
        function: Monotone and submodular.
        costs: Cost of each item, ``[size]``, >= 0; may be traced.
        budget: The largest sum of costs, >= 0, up to a millionth; may be traced.
        seed_size: Items of the largest initial sets; with fewer than three it is faster and the
            guarantee is lost.

    Returns:
        The items, ``[size]``: -1, with gain 0, in places that stay empty.

    Raises:
        ValueError: If shapes do not fit, or a number is out of range.

    References:
        Sviridenko, *A Note on Maximizing a Submodular Set Function Subject to a Knapsack
        Constraint*, Operations Research Letters, 2004

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> weights, costs = jnp.array([6.0, 5.0, 5.0]), jnp.array([3.0, 2.0, 2.0])
        >>> partial_enumeration(Modular(weights), costs, 4.0).items.tolist()
        [1, 2, -1]
    """
    size = function.size
    checks.positive_int("seed_size", seed_size, at_most=size)
    constraints = Constraints(costs=check_costs(size, costs, budget), budget=budget)
    return _partial_enumeration(function, constraints, seed_size)


@partial(jax.jit, static_argnums=2)
def _partial_enumeration(
    function: SetFunction, constraints: Constraints, seed_size: int
) -> MaximizationResult:
    size = function.size
    empty, _ = begin(function)

    def add(state, item):
        """One item of a seed, unless there is none or the budget does not pay for it."""
        fits = (item >= 0) & constraints.feasible_items(~state.free)[item]
        gain = jnp.where(fits, function.gain(state.memo, item), 0)
        state = jax.lax.cond(fits, lambda: state.take(function, item), lambda: state)
        return state, (jnp.where(fits, item, -1), gain)

    def grown(seed):
        state, (seed, gains) = jax.lax.scan(add, empty, seed)
        items, more, num_evaluations = grow_greedily(
            function, size, state, constraints, constraints.costs
        )
        items, gains = jnp.append(seed, items), jnp.append(gains, more)
        first = jnp.argsort(items < 0, stable=True)[:size]
        return MaximizationResult(
            items[first], gains[first], jnp.sum(gains), num_evaluations + jnp.sum(seed >= 0)
        )

    found = jax.lax.map(grown, jnp.asarray(_seeds(size, seed_size)))
    best = jax.tree.map(lambda leaf: leaf[jnp.argmax(found.value)], found)
    return best._replace(num_evaluations=jnp.sum(found.num_evaluations))


def _seeds(size: int, largest: int) -> np.ndarray:
    """All sets of at most so many items, padded with -1."""
    sets = [s for count in range(largest + 1) for s in itertools.combinations(range(size), count)]
    return np.array([[*s, *[-1] * (largest - len(s))] for s in sets], np.int32)
