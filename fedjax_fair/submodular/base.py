"""Set functions as incremental oracles, and the result of a maximizer."""

from __future__ import annotations

import abc
from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.tree import Integer, Tree

__all__ = ["MaximizationResult", "SetFunction"]


class SetFunction(Tree):
    """A function of subsets of ``{0, ..., size - 1}`` that is 0 at the empty set.

    A maximizer adds items one by one and carries a memo, the function's summary of the set so far.
    ``value`` is the definition, and the incremental ``gains``, ``gain`` and ``add`` agree with it.
    All of them are pure.

    A subclass declares its arrays and numbers as fields. These are children of a pytree, so that
    functions of the same class and shapes share compiled maximizers, and several functions can be
    stacked and mapped. A callable in a field is structure, equal only to itself, unless it is a
    ``jax.tree_util.Partial``.

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
        ...     def gain(self, memo, item):
        ...         return self.gains(memo)[item]
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
        raise NotImplementedError

    @abc.abstractmethod
    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        """Returns the value of the set given by a mask over all items."""
        raise NotImplementedError

    @abc.abstractmethod
    def init(self) -> PyTree:
        """Returns the memo of the empty set."""
        raise NotImplementedError

    @abc.abstractmethod
    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        """Returns the marginal gain of each item; entries of items of the set are meaningless."""
        raise NotImplementedError

    @abc.abstractmethod
    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        """Returns the marginal gain of one item."""
        raise NotImplementedError

    @abc.abstractmethod
    def add(self, memo: PyTree, item: Integer) -> PyTree:
        """Returns the memo of the set with the item."""
        raise NotImplementedError


class MaximizationResult(NamedTuple):
    """A set that a maximizer found.

    Attributes:
        items: The items, all different, in the order in which they were chosen.
        gains: The marginal gain of each of them when it was chosen.
        value: Value of the set.
        num_evaluations: Number of gains evaluated; in a federation these are messages.
    """

    items: Int[Array, " k"]
    gains: Float[Array, " k"]
    value: Float[Array, ""]
    num_evaluations: Int[Array, ""]
