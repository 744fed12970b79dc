"""Interface of set functions, and the result of a maximizer."""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Integer, Tree

__all__ = ["ArraySetFunction", "MaximizationResult", "SetFunction", "WrappedSetFunction"]


class SetFunction(Tree):
    """A function of subsets of ``{0, ..., size - 1}`` that is 0 at the empty set.

    A maximizer adds items one at a time and carries a memo, the function's summary of the set.
    ``value`` is the definition; ``gains``, ``gain`` and ``add`` are its incremental form. All
    methods are pure.

    Arrays and scalars are fields, which may be traced: functions of the same class and shapes share
    compiled maximizers, and can be stacked and mapped. A callable field is structure, equal only to
    itself, unless it is a ``jax.tree_util.Partial``.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fedjax_fair.submodular import greedy
        >>> class Square(SetFunction):
        ...     weights: Float[Array, " n"]
        ...
        ...     @property
        ...     def size(self):
        ...         return self.weights.shape[-1]
        ...
        ...     def value(self, mask):
        ...         return jnp.sum(self.weights, where=mask) ** 2
        ...
        ...     def init(self):
        ...         return jnp.zeros(())
        ...
        ...     def gains(self, memo):
        ...         return (memo + self.weights) ** 2 - memo**2
        ...
        ...     def add(self, memo, item):
        ...         return memo + self.weights[item]
        >>> greedy(Square(jnp.array([1.0, 3.0, 2.0])), 2).items.tolist()
        [1, 2]
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of items."""

    @abc.abstractmethod
    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        """Returns the value of the set given by a mask over all items."""

    @abc.abstractmethod
    def init(self) -> PyTree:
        """Returns the memo of the empty set."""

    @abc.abstractmethod
    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        """Returns the marginal gains of all items, which are undefined for members."""

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        """Returns the marginal gain of one item; override it where that is cheaper than `gains`."""
        return self.gains(memo)[item]

    @abc.abstractmethod
    def add(self, memo: PyTree, item: Integer) -> PyTree:
        """Returns the memo of the set with the item."""

    def renew(self, memo: PyTree) -> PyTree:
        """Returns the memo of a set of other items for the items of this function.

        Override it where the memo has values of single items, for `sieve_batches`.
        """
        return memo


class ArraySetFunction(SetFunction):
    """Base class of functions whose items are an axis of their first array."""

    _item_axis = -1

    @property
    def size(self) -> int:
        return jax.tree.leaves(self)[0].shape[self._item_axis]


class WrappedSetFunction(SetFunction):
    """Base class of functions that forward to another function what they do not define."""

    function: SetFunction

    def __post_init__(self) -> None:
        checks.instance("function", self.function, SetFunction, "Modular([1.0, 2.0])")

    @property
    def size(self) -> int:
        return self.function.size

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self.function.value(mask)

    def init(self) -> PyTree:
        return self.function.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self.function.gains(memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self.function.gain(memo, item)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return self.function.add(memo, item)

    def renew(self, memo: PyTree) -> PyTree:
        return self.function.renew(memo)


class MaximizationResult(NamedTuple):
    """The set that a maximizer returns.

    Attributes:
        items: Distinct items in the order of selection; -1 in unused slots.
        gains: Gain of each item when it was selected; 0 in unused slots.
        value: Value of the set.
        num_evaluations: Number of gains evaluated.
    """

    items: Int[Array, " k"]
    gains: Float[Array, " k"]
    value: Float[Array, ""]
    num_evaluations: Int[Array, ""]
