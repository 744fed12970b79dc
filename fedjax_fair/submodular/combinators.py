"""Set functions made of set functions."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import as_mask
from fedjax_fair.submodular.base import SetFunction

__all__ = ["restricted", "scaled", "sum_of", "truncated"]


def sum_of(*functions: SetFunction) -> SetFunction:
    """The sum of functions of the same items; submodular (and monotone) where all of them are.

    Raises:
        ValueError: If there is none, or they differ in size.

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> function = sum_of(modular(jnp.array([1.0, 2.0])), modular(jnp.array([0.5, -1.0])))
        >>> function.gains(function.init()).tolist()
        [1.5, 1.0]
    """
    sizes = {function.size for function in functions}
    if len(sizes) != 1:
        raise ValueError(f"functions: expected one size, got {sorted(sizes) or 'no function'}.")
    return SetFunction(
        size=sizes.pop(),
        value=lambda mask: _sum(function.value(mask) for function in functions),
        init=lambda: tuple(function.init() for function in functions),
        gains=lambda memo: _sum(f.gains(own) for f, own in zip(functions, memo, strict=True)),
        gain=lambda memo, item: _sum(
            f.gain(own, item) for f, own in zip(functions, memo, strict=True)
        ),
        add=lambda memo, item: tuple(
            f.add(own, item) for f, own in zip(functions, memo, strict=True)
        ),
    )


def _sum(arrays: Iterable[Array]) -> Array:
    return reduce(operator.add, arrays)


def scaled(function: SetFunction, factor: float | Float[Array, ""]) -> SetFunction:
    """A multiple of a function; submodular and monotone as it is.

    Args:
        function: What to multiply.
        factor: At least 0; may be traced.

    Raises:
        ValueError: If the factor is negative.

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> function = scaled(modular(jnp.array([1.0, 2.0])), 3.0)
        >>> function.gains(function.init()).tolist()
        [3.0, 6.0]
    """
    checks.non_negative("factor", factor)
    return SetFunction(
        size=function.size,
        value=lambda mask: factor * function.value(mask),
        init=function.init,
        gains=lambda memo: factor * function.gains(memo),
        gain=lambda memo, item: factor * function.gain(memo, item),
        add=function.add,
    )


def truncated(function: SetFunction, bound: float | Float[Array, ""]) -> SetFunction:
    """``min(bound, value)``; monotone submodular where the function is both.

    Args:
        function: What to truncate.
        bound: At least 0, so that the empty set keeps its value; may be traced.

    Raises:
        ValueError: If the bound is negative.

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> function = truncated(modular(jnp.array([1.0, 2.0])), 2.5)
        >>> float(function.value(jnp.array([True, True])))
        2.5
    """
    checks.non_negative("bound", bound)

    def raised(total, gain):
        return jnp.minimum(bound, total + gain) - jnp.minimum(bound, total)

    def init():
        return jnp.zeros(()), function.init()

    def add(memo, item):
        total, own = memo
        return total + function.gain(own, item), function.add(own, item)

    return SetFunction(
        size=function.size,
        value=lambda mask: jnp.minimum(bound, function.value(mask)),
        init=init,
        gains=lambda memo: raised(memo[0], function.gains(memo[1])),
        gain=lambda memo, item: raised(memo[0], function.gain(memo[1], item)),
        add=add,
    )


def restricted(function: SetFunction, mask: ArrayLike) -> SetFunction:
    """The value of the items of the set that are in ``mask``; the others contribute nothing.

    Submodular and monotone as the function is.

    Args:
        function: What to restrict.
        mask: The items that count, ``[n]``.

    Raises:
        ValueError: If the mask has another length than the function has items.

    Examples:
        >>> from fedjax_fair.submodular import modular
        >>> function = restricted(modular(jnp.array([1.0, 2.0])), jnp.array([True, False]))
        >>> function.gains(function.init()).tolist()
        [1.0, 0.0]
    """
    counted = as_mask("mask", mask)
    if counted.shape != (function.size,):
        raise ValueError(f"mask: expected shape ({function.size},), got {counted.shape}.")

    def add(memo, item):
        return jax.tree.map(
            lambda new, old: jnp.where(counted[item], new, old), function.add(memo, item), memo
        )

    return SetFunction(
        size=function.size,
        value=lambda chosen: function.value(chosen & counted),
        init=function.init,
        gains=lambda memo: jnp.where(counted, function.gains(memo), 0.0),
        gain=lambda memo, item: jnp.where(counted[item], function.gain(memo, item), 0.0),
        add=add,
    )
