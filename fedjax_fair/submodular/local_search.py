"""Beyond greedy: distorted greedy for functions less costs, and local search by swaps."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import as_items, as_non_negative
from fedjax_fair.submodular.base import MaximizationResult, SetFunction
from fedjax_fair.submodular.constraints import check_matroid
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.tree import Integer

__all__ = ["best_swap", "distorted_greedy"]


def distorted_greedy(function: SetFunction, costs: ArrayLike, k: int) -> MaximizationResult:
    """Maximizes a monotone submodular function less the costs of its items.

    Early steps discount gains against costs, and a step that would not raise the discounted
    difference adds nothing: the value is at least ``(1 - 1/e) * function(best) - costs(best)`` for
    any set of at most ``k`` items, where ``greedy`` on the difference guarantees nothing.

    Args:
        function: Monotone and submodular.
        costs: Cost of every item, ``[size]``, >= 0; may be traced.
        k: Items to choose, at most.

    Returns:
        ``items`` is -1 and ``gains`` is 0 at every step that chose nothing. Gains and ``value`` are
        those of the difference.

    Raises:
        ValueError: If there are fewer than ``k`` items or a cost is negative.

    References:
        Harshaw, Feldman, Ward, Karbasi, *Submodular Maximization beyond Non-negativity:
        Guarantees, Fast Algorithms, and Applications*, ICML 2019

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> chosen = distorted_greedy(Modular(jnp.array([3.0, 2.0])), jnp.array([1.0, 2.5]), 2)
        >>> chosen.items.tolist(), float(chosen.value)
        ([0, -1], 2.0)
    """
    checks.positive_int("k", k, at_most=function.size)
    costs = as_non_negative("costs", costs, "items")
    if costs.shape[0] != function.size:
        raise ValueError(f"costs: expected {function.size} items, got {costs.shape[0]}.")
    return _distorted_greedy(function, costs, k)


@partial(jax.jit, static_argnums=2)
def _distorted_greedy(
    function: SetFunction, costs: Float[Array, " size"], k: int
) -> MaximizationResult:
    def step(carry, number):
        memo, free = carry
        gains = function.gains(memo)
        remaining = (k - 1 - number).astype(gains.dtype)
        distorted = (1 - 1 / k) ** remaining * gains - costs
        best = jnp.argmax(jnp.where(free, distorted, -jnp.inf)).astype(jnp.int32)
        improves = distorted[best] > 0
        added = function.add(memo, best)
        memo = jax.tree.map(lambda new, old: jnp.where(improves, new, old), added, memo)
        chosen = (
            jnp.where(improves, best, -1),
            jnp.where(improves, gains[best] - costs[best], 0.0),
        )
        return (memo, free.at[best].set(free[best] & ~improves)), (*chosen, jnp.sum(free))

    _, (items, gains, num_evaluations) = jax.lax.scan(
        step, (function.init(), jnp.ones(function.size, bool)), jnp.arange(k, dtype=jnp.int32)
    )
    return MaximizationResult(items, gains, jnp.sum(gains), jnp.sum(num_evaluations))


def best_swap(
    function: SetFunction,
    items: ArrayLike,
    *,
    max_swaps: int | None = None,
    matroid: Matroid | None = None,
) -> MaximizationResult:
    """Exchanges an item of a set for another one, always the pair that raises the value most.

    It ends when no exchange raises the value, or after ``max_swaps``. For facility location it closes
    the gap of about one percent between greedy and the best known sets. Where it ends by itself the
    value of a monotone submodular function is at least half of the largest that ``k`` items, or any
    independent set if ``items`` are a base of the matroid, can have.

    Args:
        function: What to maximize.
        items: The initial set, ``[k]``, for example the one ``greedy`` found.
        max_swaps: Exchanges at most; None sets no limit.
        matroid: Sets stay independent.

    Returns:
        The set, in the order of ``items`` with new items in the places of those they replaced; each
        gain is that of the item after those before it.

    Raises:
        ValueError: If ``items`` are none, not different or not independent, ``max_swaps`` is not
            positive, or the matroid has another number of items.

    References:
        Fisher, Nemhauser, Wolsey, *An Analysis of Approximations for Maximizing Submodular Set
        Functions II*, 1978

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> best_swap(Modular(jnp.array([2.0, -1.0, 3.0])), jnp.array([1, 0])).items.tolist()
        [2, 0]
    """
    chosen = as_items("items", items, function.size)
    if not chosen.size:
        raise ValueError("items=[]: expected at least one item, since swaps add none.")
    if max_swaps is not None:
        checks.positive_int("max_swaps", max_swaps)
    if matroid is not None:
        check_matroid(matroid, function.size, "items", items)
    return _best_swap(function, chosen, max_swaps, matroid)


@jax.jit
def _best_swap(
    function: SetFunction,
    chosen: Int[Array, " k"],
    max_swaps: Integer | None,
    matroid: Matroid | None,
) -> MaximizationResult:
    k = chosen.shape[0]
    places = jnp.arange(k, dtype=jnp.int32)

    def exchange(chosen, place):
        """The best item for one place, by how much it raises the value, the largest gain, num_evaluations."""

        def add(memo, other):
            added = function.add(memo, chosen[other])
            return jax.tree.map(lambda new, old: jnp.where(other == place, old, new), added, memo)

        memo, _ = jax.lax.scan(lambda memo, i: (add(memo, i), None), function.init(), places)
        gains = function.gains(memo)
        inside = jnp.zeros(function.size, bool).at[chosen].set(True)
        others = ~inside
        if matroid is not None:
            others &= matroid.feasible_items(inside.at[chosen[place]].set(False))
        raised = jnp.where(others, gains - gains[chosen[place]], -jnp.inf)
        best = jnp.argmax(raised)
        return best.astype(jnp.int32), raised[best], jnp.max(jnp.abs(gains)), jnp.sum(others)

    def body(search):
        chosen, _, swaps, num_evaluations = search
        others, raised, magnitude, looked = jax.lax.map(
            lambda place: exchange(chosen, place), places
        )
        place = jnp.argmax(raised)
        # An increase within the rounding error of the gains is none.
        improves = raised[place] > 1e-6 * jnp.max(magnitude)
        chosen = jnp.where(improves, chosen.at[place].set(others[place]), chosen)
        num_evaluations += jnp.sum(looked, dtype=jnp.int32)
        return chosen, improves, swaps + improves.astype(swaps.dtype), num_evaluations

    def proceed(search):
        _, improves, swaps, _ = search
        return improves if max_swaps is None else improves & (swaps < max_swaps)

    zero = jnp.zeros((), jnp.int32)
    chosen, _, _, num_evaluations = jax.lax.while_loop(
        proceed, body, (chosen, jnp.array(k < function.size), zero, zero)
    )

    def measure(memo, item):
        return function.add(memo, item), function.gain(memo, item)

    _, gains = jax.lax.scan(measure, function.init(), chosen)
    return MaximizationResult(chosen, gains, jnp.sum(gains), num_evaluations)
