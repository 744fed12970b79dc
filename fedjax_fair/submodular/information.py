"""What a set tells about a query, or beyond a private set, measured by any submodular function.

Query and private items belong to the same ground set as all others, among which maximizers choose
with ``candidate_mask``. Gains are differences of gains of the function, accurate to the rounding errors
of these.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.submodular.arrays import as_items
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.tree import Integer

__all__ = ["ConditionalGain", "ConditionalMutualInformation", "MutualInformation"]


class ConditionalGain(SetFunction):
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
        >>> from fedjax_fair.submodular import Coverage
        >>> function = ConditionalGain(Coverage([[1, 1, 0], [0, 1, 1], [1, 0, 0]]), private=[0])
        >>> function.gains(function.init()).tolist()
        [0.0, 1.0, 0.0]
    """

    function: SetFunction
    private: Int[Array, " private"]

    def __post_init__(self) -> None:
        self._convert(private=as_items("private", self.private, self.size))

    @property
    def size(self) -> int:
        return self.function.size

    @property
    def _beyond(self) -> _Given:
        return _Given(self.function, self.private)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self._beyond.value(mask)

    def init(self) -> PyTree:
        return self._beyond.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self._beyond.gains(memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self._beyond.gain(memo, item)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return self._beyond.add(memo, item)


class _Common(SetFunction):
    """What a set has in common with a query: the difference of two conditional gains."""

    function: SetFunction
    query: Int[Array, " query"]

    def __post_init__(self) -> None:
        self._convert(query=as_items("query", self.query, self.size))

    @property
    def size(self) -> int:
        return self.function.size

    @property
    def _private(self) -> Int[Array, " private"]:
        return jnp.zeros(0, jnp.int32)

    @property
    def _beyond(self) -> _Given:
        return _Given(self.function, self._private)

    @property
    def _beyond_both(self) -> _Given:
        return _Given(self.function, jnp.append(self._private, self.query))

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self._beyond.value(mask) - self._beyond_both.value(mask)

    def init(self) -> PyTree:
        return self._beyond.init(), self._beyond_both.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self._beyond.gains(memo[0]) - self._beyond_both.gains(memo[1])

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self._beyond.gain(memo[0], item) - self._beyond_both.gain(memo[1], item)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return self._beyond.add(memo[0], item), self._beyond_both.add(memo[1], item)


class MutualInformation(_Common):
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
        As for ``ConditionalGain``.

    Examples:
        >>> from fedjax_fair.submodular import Coverage
        >>> function = MutualInformation(Coverage([[1, 1, 0], [0, 1, 1], [1, 0, 0]]), query=[0])
        >>> function.gains(function.init()).tolist()
        [2.0, 1.0, 1.0]
    """


class ConditionalMutualInformation(_Common):
    """``f(S | P) + f(Q | P) - f(S or Q | P)``: what else a set has in common with a query.

    Monotone and submodular as ``MutualInformation``.

    Args:
        function: What to measure with.
        query: Different items, ``[query]``.
        private: Different items, ``[private]``; items of both tell nothing.

    Raises:
        ValueError: If either are not different items.

    References:
        As for ``ConditionalGain``.

    Examples:
        >>> from fedjax_fair.submodular import Coverage
        >>> topics = Coverage([[1, 1, 0], [0, 1, 1], [1, 0, 0]])
        >>> function = ConditionalMutualInformation(topics, query=[0], private=[2])
        >>> function.gains(function.init()).tolist()
        [1.0, 1.0, 0.0]
    """

    private: Int[Array, " private"]

    def __post_init__(self) -> None:
        self._convert(
            private=as_items("private", self.private, self.size),
            query=as_items("query", self.query, self.size),
        )

    @property
    def _private(self) -> Int[Array, " private"]:
        return self.private


class _Given(SetFunction):
    """``f(S | items)``; they may repeat."""

    function: SetFunction
    items: Int[Array, " items"]

    @property
    def size(self) -> int:
        return self.function.size

    @property
    def _inside(self) -> Bool[Array, " size"]:
        return jnp.zeros(self.size, bool).at[self.items].set(True)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        inside = self._inside
        return self.function.value(mask | inside) - self.function.value(inside)

    def init(self) -> PyTree:
        def step(carry, item):
            memo, taken = carry
            return (self._grow(memo, item, ~taken[item]), taken.at[item].set(True)), None

        empty = self.function.init(), jnp.zeros(self.size, bool)
        (memo, _), _ = jax.lax.scan(step, empty, self.items)
        return memo

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return jnp.where(self._inside, 0, self.function.gains(memo))

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.where(self._inside[item], 0, self.function.gain(memo, item))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return self._grow(memo, item, ~self._inside[item])

    def _grow(self, memo: PyTree, item: Integer, joins: Bool[Array, ""]) -> PyTree:
        added = self.function.add(memo, item)
        return jax.tree.map(lambda new, old: jnp.where(joins, new, old), added, memo)
