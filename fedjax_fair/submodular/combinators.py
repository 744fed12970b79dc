"""Set functions made of other set functions."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.submodular.checked_arrays import as_mask
from fedjax_fair.submodular.set_function import SetFunction, WrappedSetFunction
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Integer, Number, setting

__all__ = ["Restricted", "Scaled", "Sum", "Truncated"]


class Sum(SetFunction):
    """Sum of functions of the same items; submodular (and monotone) where all of them are.

    Args:
        functions: A tuple of functions of one size.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Sum((Modular([1.0, 2.0]), Modular([0.5, -1.0])))
        >>> function.gains(function.init()).tolist()
        [1.5, 1.0]
    """

    functions: tuple[SetFunction, ...] = setting(checks.instance, tuple, "(function, other)")

    def __post_init__(self) -> None:
        for i, function in enumerate(self.functions):
            checks.instance(f"functions[{i}]", function, SetFunction, "Modular([1.0, 2.0])")
        sizes = {function.size for function in self.functions}
        if len(sizes) != 1:
            raise ValueError(
                f"functions: expected one size, got {sorted(sizes) or 'no function'}; pass "
                "functions of the same items."
            )

    @property
    def size(self) -> int:
        return self.functions[0].size

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return _sum(function.value(mask) for function in self.functions)

    def init(self) -> PyTree:
        return tuple(function.init() for function in self.functions)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return _sum(f.gains(part) for f, part in zip(self.functions, memo, strict=True))

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return _sum(f.gain(part, item) for f, part in zip(self.functions, memo, strict=True))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return tuple(f.add(part, item) for f, part in zip(self.functions, memo, strict=True))


def _sum(arrays: Iterable[Array]) -> Array:
    return reduce(operator.add, arrays)


class Scaled(WrappedSetFunction):
    """Multiple of a function; submodular and monotone where the function is.

    Args:
        function: What to multiply.
        factor: At least 0.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Scaled(Modular([1.0, 2.0]), 3.0)
        >>> function.gains(function.init()).tolist()
        [3.0, 6.0]
    """

    factor: Number = setting(checks.non_negative)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self.factor * self.function.value(mask)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self.factor * self.function.gains(memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self.factor * self.function.gain(memo, item)


class Truncated(WrappedSetFunction):
    """``min(bound, value)``; monotone submodular where the function is both.

    Args:
        function: What to truncate.
        bound: At least 0, so that the empty set keeps its value.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Truncated(Modular([1.0, 2.0]), 1.5)
        >>> function.gains(function.init()).tolist()
        [1.0, 1.5]
    """

    bound: Number = setting(checks.non_negative)

    def _increase(self, total: Float[Array, ""], gain: Float[Array, "..."]) -> Float[Array, "..."]:
        # Without a difference of totals, which are much larger than the gains.
        room = self.bound - total
        return jnp.minimum(room, gain) - jnp.minimum(room, 0.0)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return jnp.minimum(self.bound, self.function.value(mask))

    # The memo is the untruncated value, and the function's memo.
    def init(self) -> PyTree:
        return jnp.zeros(()), self.function.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self._increase(memo[0], self.function.gains(memo[1]))

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self._increase(memo[0], self.function.gain(memo[1], item))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        total, part = memo
        return total + self.function.gain(part, item), self.function.add(part, item)


class Restricted(WrappedSetFunction):
    """Value of the items of the set that are in ``mask``; other items contribute 0.

    Args:
        function: What to restrict; submodularity and monotonicity are kept.
        mask: The items that count, ``[n]``.

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> function = Restricted(Modular([1.0, 2.0]), [True, False])
        >>> function.gains(function.init()).tolist()
        [1.0, 0.0]
    """

    mask: Bool[Array, " size"]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._convert(mask=as_mask("mask", self.mask, (self.size,)))

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self.function.value(mask & self.mask)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return jnp.where(self.mask, self.function.gains(memo), 0.0)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.where(self.mask[item], self.function.gain(memo, item), 0.0)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        counts, added = self.mask[item], self.function.add(memo, item)
        return jax.tree.map(lambda new, old: jnp.where(counts, new, old), added, memo)
