"""Maximizers of functions that are not monotone, such as the cut of a graph."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fedjax_fair.submodular.checked_arrays import check_key
from fedjax_fair.submodular.greedy_selection import Selection, begin, check_function
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.utils import checks

__all__ = ["double_greedy", "random_greedy"]


def double_greedy(key: Key[Array, ""], function: SetFunction) -> MaximizationResult:
    """Decides for each item whether to add it to a growing set or remove it from all items.

    Both have a probability in proportion to their gain. For a submodular function the expected
    value is at least :math:`OPT / 2 + f(E) / 4`, where *E* is the set of all items: half of the
    best set of any size, if no value is negative.

    Args:
        key: Random key.
        function: Submodular.

    Returns:
        The set, ``[size]``: slot *i* holds item *i* and its gain, or -1 and 0. ``num_evaluations``
        is two for each item; a removal takes two values of ``function.value``.

    References:
        Buchbinder, Feldman, Naor, Schwartz, *A Tight Linear Time (1/2)-Approximation for
        Unconstrained Submodular Maximization*, FOCS 2012

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> result = double_greedy(jax.random.key(0), Modular([2.0, -1.0, 3.0]))
        >>> result.items.tolist(), float(result.value)
        ([0, -1, 2], 5.0)
    """
    check_key(key)
    check_function(function)
    return _double_greedy(key, function)


@jax.jit
def _double_greedy(key, function) -> MaximizationResult:
    def decide(carry, item):
        state, upper = carry
        gain = function.gain(state.memo, item)
        lower = upper.at[item].set(False)
        largest = function.value(upper)
        loss = largest - function.value(lower)
        # A difference within the rounding error of the values is 0.
        loss = jnp.where(jnp.abs(loss) > 1e-6 * jnp.abs(largest), loss, 0.0)
        add, remove = jnp.maximum(gain, 0), jnp.maximum(-loss, 0)
        # An item is added if neither choice gains anything.
        draw = jax.random.uniform(jax.random.fold_in(key, item))
        added = (draw * (add + remove) < add) | (add + remove == 0)
        state, chosen = state.take_if(added, function, item, gain)
        return (state, jnp.where(added, upper, lower)), chosen

    state, _ = begin(function)
    everything, places = jnp.ones(function.size, bool), jnp.arange(function.size, dtype=jnp.int32)
    _, (items, gains) = jax.lax.scan(decide, (state, everything), places)
    return MaximizationResult(items, gains, jnp.sum(gains), jnp.int32(2 * function.size))


def random_greedy(key: Key[Array, ""], function: SetFunction, k: int) -> MaximizationResult:
    """Adds a random one of the ``k`` items with the largest gains, if it is positive, ``k`` times.

    The expected value is at least ``1/e`` of the best set of at most ``k`` items if the function is
    submodular and nowhere negative, and ``1 - 1/e`` if it is also monotone.

    Args:
        key: Random key.
        function: Submodular.
        k: Maximum number of items.

    References:
        Buchbinder, Feldman, Naor, Schwartz, *Submodular Maximization with Cardinality Constraints*,
        SODA 2014

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> random_greedy(jax.random.key(0), Modular([2.0, -1.0, 3.0]), 1).items.tolist()
        [2]
    """
    check_key(key)
    checks.positive_int("k", k, at_most=check_function(function))
    return _random_greedy(key, function, k)


@partial(jax.jit, static_argnums=2)
def _random_greedy(key, function, k) -> MaximizationResult:
    def step(state: Selection, number):
        gains = jnp.where(state.free, function.gains(state.memo), -jnp.inf)
        largest, items = jax.lax.top_k(gains, k)
        place = jax.random.randint(jax.random.fold_in(key, number), (), 0, k)
        item, gain = items[place].astype(jnp.int32), largest[place]
        num_free = jnp.sum(state.free)
        state, chosen = state.take_if(gain > 0, function, item, gain)
        return state, (*chosen, num_free)

    steps = jnp.arange(k, dtype=jnp.int32)
    _, (items, gains, evaluations) = jax.lax.scan(step, begin(function)[0], steps)
    return MaximizationResult(items, gains, jnp.sum(gains), jnp.sum(evaluations))
