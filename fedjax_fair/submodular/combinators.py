"""Set functions made of set functions."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import as_mask
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.tree import Integer, Number

__all__ = ["Restricted", "Scaled", "Sum", "Truncated"]


class Sum(SetFunction):
    """The sum of functions of the same items; submodular (and monotone) where all of them are.

    Args:
        functions: A tuple of functions.

    Raises:
        ValueError: If there is none, or they differ in size.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Sum((Modular([1.0, 2.0]), Modular([0.5, -1.0])))
        >>> function.gains(function.init()).tolist()
        [1.5, 1.0]
    """

    functions: tuple[SetFunction, ...]

    def __post_init__(self) -> None:
        checks.instance("functions", self.functions, tuple, "(function, other)")
        sizes = {function.size for function in self.functions}
        if len(sizes) != 1:
            raise ValueError(f"functions: expected one size, got {sorted(sizes) or 'no function'}.")

    @property
    def size(self) -> int:
        return self.functions[0].size

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return _sum(function.value(mask) for function in self.functions)

    def init(self) -> PyTree:
        return tuple(function.init() for function in self.functions)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return _sum(f.gains(own) for f, own in zip(self.functions, memo, strict=True))

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return _sum(f.gain(own, item) for f, own in zip(self.functions, memo, strict=True))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return tuple(f.add(own, item) for f, own in zip(self.functions, memo, strict=True))


def _sum(arrays: Iterable[Array]) -> Array:
    return reduce(operator.add, arrays)


class Scaled(SetFunction):
    """A multiple of a function; submodular and monotone as it is.

    Args:
        function: What to multiply.
        factor: At least 0; may be traced.

    Raises:
        ValueError: If the factor is negative.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Scaled(Modular([1.0, 2.0]), 3.0)
        >>> function.gains(function.init()).tolist()
        [3.0, 6.0]
    """

    function: SetFunction
    factor: Number

    def __post_init__(self) -> None:
        checks.non_negative("factor", self.factor)

    @property
    def size(self) -> int:
        return self.function.size

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self.factor * self.function.value(mask)

    def init(self) -> PyTree:
        return self.function.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self.factor * self.function.gains(memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self.factor * self.function.gain(memo, item)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return self.function.add(memo, item)


class Truncated(SetFunction):
    """``min(bound, value)``; monotone submodular where the function is both.

    Args:
        function: What to truncate.
        bound: At least 0, so that the empty set keeps its value; may be traced.

    Raises:
        ValueError: If the bound is negative.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Truncated(Modular([1.0, 2.0]), 2.5)
        >>> float(function.value(jnp.array([True, True])))
        2.5
    """

    function: SetFunction
    bound: Number

    def __post_init__(self) -> None:
        checks.non_negative("bound", self.bound)

    @property
    def size(self) -> int:
        return self.function.size

    def _increase(self, total: Float[Array, ""], gain: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.minimum(self.bound, total + gain) - jnp.minimum(self.bound, total)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return jnp.minimum(self.bound, self.function.value(mask))

    def init(self) -> PyTree:
        return jnp.zeros(()), self.function.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self._increase(memo[0], self.function.gains(memo[1]))

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self._increase(memo[0], self.function.gain(memo[1], item))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        total, own = memo
        return total + self.function.gain(own, item), self.function.add(own, item)


class Restricted(SetFunction):
    """The value of the items of the set that are in ``mask``; the others contribute nothing.

    Submodular and monotone as the function is.

    Args:
        function: What to restrict.
        mask: The items that count, ``[n]``.

    Raises:
        ValueError: If the mask has another length than the function has items.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Restricted(Modular([1.0, 2.0]), [True, False])
        >>> function.gains(function.init()).tolist()
        [1.0, 0.0]
    """

    function: SetFunction
    mask: Bool[Array, " size"]

    def __post_init__(self) -> None:
        counted = as_mask("mask", self.mask)
        if counted.shape != (self.size,):
            raise ValueError(f"mask: expected shape ({self.size},), got {counted.shape}.")
        self._convert(mask=counted)

    @property
    def size(self) -> int:
        return self.function.size

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self.function.value(mask & self.mask)

    def init(self) -> PyTree:
        return self.function.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return jnp.where(self.mask, self.function.gains(memo), 0.0)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.where(self.mask[item], self.function.gain(memo, item), 0.0)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        counts, added = self.mask[item], self.function.add(memo, item)
        return jax.tree.map(lambda new, old: jnp.where(counts, new, old), added, memo)
