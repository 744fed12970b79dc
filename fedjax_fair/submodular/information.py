"""Information measures of a set function: conditional gain and mutual information.

Query and private items belong to the ground set; exclude them from a selection with
``candidate_mask``. Gains are differences of the function's gains, and have their rounding errors,
except that a difference within these is 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.submodular.checked_arrays import as_items
from fedjax_fair.submodular.set_function import WrappedSetFunction
from fedjax_fair.utils.tree import Integer

__all__ = ["ConditionalGain", "ConditionalMutualInformation", "MutualInformation"]


# Differences of gains of one set function on its ground set: three classes instead of one for each
# pair of measure and function. This costs two memos and rounding errors; closed forms exist where
# it matters.
class _Conditional(WrappedSetFunction):
    """``f(S | private)``; private items may repeat."""

    private: Int[Array, " private"]

    @property
    def _private_mask(self) -> Bool[Array, " size"]:
        return jnp.zeros(self.size, bool).at[self.private].set(True)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        private = self._private_mask
        return self.function.value(mask | private) - self.function.value(private)

    def init(self) -> PyTree:
        def step(carry, item):
            memo, added = carry
            return (self._add_if(~added[item], memo, item), added.at[item].set(True)), None

        empty = self.function.init(), jnp.zeros(self.size, bool)
        (memo, _), _ = jax.lax.scan(step, empty, self.private)
        return memo

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return jnp.where(self._private_mask, 0, self.function.gains(memo))

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.where(self._private_mask[item], 0, self.function.gain(memo, item))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return self._add_if(~self._private_mask[item], memo, item)

    def _add_if(self, condition: Bool[Array, ""], memo: PyTree, item: Integer) -> PyTree:
        added = self.function.add(memo, item)
        return jax.tree.map(lambda new, old: jnp.where(condition, new, old), added, memo)


class ConditionalGain(_Conditional):
    """``f(S | P) = f(S or P) - f(P)``: what a set adds to private items.

    Args:
        function: The function *f*; submodularity and monotonicity are kept.
        private: Distinct items *P*, ``[private]``.

    References:
        Iyer, Khargoankar, Bilmes, Asnani, *Submodular Combinatorial Information Measures with
        Applications in Machine Learning*, ALT 2021

    Examples:
        >>> from fedjax_fair.submodular import Coverage
        >>> function = ConditionalGain(Coverage([[1, 1, 0], [0, 1, 1], [1, 0, 0]]), private=[0])
        >>> function.gains(function.init()).tolist()
        [0.0, 1.0, 0.0]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._convert(private=as_items("private", self.private, self.size))


class MutualInformation(WrappedSetFunction):
    """``f(S) + f(Q) - f(S or Q)``: what a set has in common with a query.

    Monotone if the function is monotone and submodular; for items outside of the query submodular
    is enough. Submodular for facility location, coverage and graph cut, but not always for
    log-determinant.

    Args:
        function: The function *f*.
        query: Distinct items *Q*, ``[query]``.

    Examples:
        >>> from fedjax_fair.submodular import Coverage
        >>> function = MutualInformation(Coverage([[1, 1, 0], [0, 1, 1], [1, 0, 0]]), query=[0])
        >>> function.gains(function.init()).tolist()
        [2.0, 1.0, 1.0]
    """

    query: Int[Array, " query"]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._convert(query=as_items("query", self.query, self.size))

    @property
    def _condition(self) -> Int[Array, " private"]:
        return jnp.zeros(0, jnp.int32)

    # The value is the difference of the two, and the memo has the memos of both.
    @property
    def _parts(self) -> tuple[_Conditional, _Conditional]:
        """Returns ``f(S | P)`` and ``f(S | P or Q)``."""
        private = self._condition
        both = jnp.append(private, self.query)
        return _Conditional(self.function, private), _Conditional(self.function, both)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        first, second = self._parts
        return first.value(mask) - second.value(mask)

    def init(self) -> PyTree:
        return tuple(part.init() for part in self._parts)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        first, second = self._parts
        return _difference(first.gains(memo[0]), second.gains(memo[1]))

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        first, second = self._parts
        return _difference(first.gain(memo[0], item), second.gain(memo[1], item))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return tuple(f.add(part, item) for f, part in zip(self._parts, memo, strict=True))


def _difference(first: Array, second: Array) -> Array:
    """Subtracts gains; a difference within their rounding errors is 0."""
    difference = first - second
    return jnp.where(jnp.abs(difference) > 1e-6 * jnp.abs(first), difference, 0.0)


class ConditionalMutualInformation(MutualInformation):
    """``f(S | P) + f(Q | P) - f(S or Q | P)``: mutual information beyond private items.

    Monotone and submodular where ``MutualInformation`` is.

    Args:
        function: The function *f*.
        query: Distinct items *Q*, ``[query]``.
        private: Distinct items *P*, ``[private]``.

    Examples:
        >>> from fedjax_fair.submodular import Coverage
        >>> topics = Coverage([[1, 1, 0], [0, 1, 1], [1, 0, 0]])
        >>> function = ConditionalMutualInformation(topics, query=[0], private=[2])
        >>> function.gains(function.init()).tolist()
        [1.0, 1.0, 0.0]
    """

    private: Int[Array, " private"]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._convert(private=as_items("private", self.private, self.size))

    @property
    def _condition(self) -> Int[Array, " private"]:
        return self.private
