"""What a set tells about a query, or beyond a private set, measured by any submodular function.

Query and private items belong to the same ground set as all others, among which maximizers choose
with ``available``. Gains are differences of gains of the function, accurate to the rounding errors
of these.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from numpy.typing import ArrayLike

from fedjax_fair.submodular.arrays import as_items
from fedjax_fair.submodular.base import SetFunction

__all__ = ["conditional_gain", "conditional_mutual_information", "mutual_information"]


def conditional_gain(function: SetFunction, private: ArrayLike) -> SetFunction:
    """``f(S | P) = f(S or P) - f(P)``: what a set adds to private items.

    Submodular and monotone as the function is.

    Args:
        function: What to measure with.
        private: Different items, ``[private]``.

    Raises:
        ValueError: If they are not different items.

    References:
        Iyer, Khargoankar, Bilmes, Asnani, *Submodular Combinatorial Information Measures with
        Applications in Machine Learning*, ALT 2021

    Examples:
        >>> from fedjax_fair.submodular import coverage
        >>> topics = coverage(jnp.array([[1, 1, 0], [0, 1, 1], [1, 0, 0]]))
        >>> function = conditional_gain(topics, private=[0])
        >>> function.gains(function.init()).tolist()
        [0.0, 1.0, 0.0]
    """
    return _given(function, as_items("private", private, function.size))


def mutual_information(function: SetFunction, query: ArrayLike) -> SetFunction:
    """``f(S) + f(Q) - f(S or Q)``: what a set has in common with a query.

    Monotone where the function is monotone and submodular; for items outside of the query it is
    enough that the function is submodular. It is submodular itself for facility location and
    coverage, and for graph cut a sum of weights outside of the query; for log-determinant it need
    not be submodular.

    Args:
        function: What to measure with.
        query: Different items, ``[query]``.

    Raises:
        ValueError: If they are not different items.

    References:
        As for ``conditional_gain``.

    Examples:
        >>> from fedjax_fair.submodular import coverage
        >>> topics = coverage(jnp.array([[1, 1, 0], [0, 1, 1], [1, 0, 0]]))
        >>> function = mutual_information(topics, query=[0])
        >>> function.gains(function.init()).tolist()
        [2.0, 1.0, 1.0]
    """
    return conditional_mutual_information(function, query, private=[])


def conditional_mutual_information(
    function: SetFunction, query: ArrayLike, private: ArrayLike
) -> SetFunction:
    """``f(S | P) + f(Q | P) - f(S or Q | P)``: what else a set has in common with a query.

    Monotone and submodular as ``mutual_information``.

    Args:
        function: What to measure with.
        query: Different items, ``[query]``.
        private: Different items, ``[private]``; items of both tell nothing.

    Raises:
        ValueError: If either are not different items.

    References:
        As for ``conditional_gain``.

    Examples:
        >>> from fedjax_fair.submodular import coverage
        >>> topics = coverage(jnp.array([[1, 1, 0], [0, 1, 1], [1, 0, 0]]))
        >>> function = conditional_mutual_information(topics, query=[0], private=[2])
        >>> function.gains(function.init()).tolist()
        [1.0, 1.0, 0.0]
    """
    known = as_items("private", private, function.size)
    queried = as_items("query", query, function.size)
    beyond, beyond_both = _given(function, known), _given(function, jnp.append(known, queried))
    return SetFunction(
        size=function.size,
        value=lambda mask: beyond.value(mask) - beyond_both.value(mask),
        init=lambda: (beyond.init(), beyond_both.init()),
        gains=lambda memo: beyond.gains(memo[0]) - beyond_both.gains(memo[1]),
        gain=lambda memo, item: beyond.gain(memo[0], item) - beyond_both.gain(memo[1], item),
        add=lambda memo, item: (beyond.add(memo[0], item), beyond_both.add(memo[1], item)),
    )


def _given(function: SetFunction, items: Int[Array, " items"]) -> SetFunction:
    """``f(S | items)``; they may repeat."""
    inside = jnp.zeros(function.size, bool).at[items].set(True)

    def grow(memo, item, joins):
        added = function.add(memo, item)
        return jax.tree.map(lambda new, old: jnp.where(joins, new, old), added, memo)

    def init():
        def step(carry, item):
            memo, taken = carry
            return (grow(memo, item, ~taken[item]), taken.at[item].set(True)), None

        empty = function.init(), jnp.zeros(function.size, bool)
        (memo, _), _ = jax.lax.scan(step, empty, items)
        return memo

    return SetFunction(
        size=function.size,
        value=lambda mask: function.value(mask | inside) - function.value(inside),
        init=init,
        gains=lambda memo: jnp.where(inside, 0, function.gains(memo)),
        gain=lambda memo, item: jnp.where(inside[item], 0, function.gain(memo, item)),
        add=lambda memo, item: grow(memo, item, ~inside[item]),
    )
