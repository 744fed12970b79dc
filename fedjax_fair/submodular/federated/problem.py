"""A federation of private set functions, and what its clients compute.

The clients' functions are one function of one client's data, mapped over clients. A problem holds
this function and the same computations for all clients, which a sparse problem does in one flat
pass. Algorithms take a problem as a pytree, so that one of equal structure and shapes reuses their
programs. Nothing here sums over clients: that is ``secure_aggregate``'s task.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.arrays import is_traced
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.federated.secure import Messages, secure_aggregate
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.tree import Tree

__all__ = [
    "Bases",
    "ClientFunction",
    "DenseProblem",
    "Extensions",
    "Gains",
    "Problem",
    "as_client_weights",
    "filled_weights",
    "rows",
]


class ClientFunction(NamedTuple):
    """A monotone submodular function of a set, given a client's own data; 0 at the empty set.

    Attributes:
        value: ``value(own, mask) -> scalar``.
        gains: ``gains(own, mask) -> [size]``, ``f(S + e) - f(S - e)`` of every item.
        extension: ``extension(own, key, x) -> scalar``, the multilinear extension.
        gradient: ``gradient(own, key, x) -> [size]``, its gradient.
    """

    value: Callable[[PyTree, Bool[Array, " size"]], Float[Array, ""]]
    gains: Callable[[PyTree, Bool[Array, " size"]], Float[Array, " size"]]
    extension: Callable[..., Float[Array, ""]]
    gradient: Callable[..., Float[Array, " size"]]


class Bases(NamedTuple):
    """The heaviest base of each client.

    Attributes:
        utility: Sum of the gains in each client's base, ``[clients]``.
        messages: ``messages(weights) -> Messages``, weighted by ``[clients]``.
    """

    utility: Float[Array, " clients"]
    messages: Callable[[Float[Array, " clients"]], Messages]


class Gains(NamedTuple):
    """A vector over the ground set for each client, all >= 0: its gains or its gradient.

    Attributes:
        messages: ``messages(weights) -> Messages``, weighted by ``[clients]``.
        bases: ``bases(matroid) -> Bases``, each client's heaviest base.
        spread: ``spread(mean) -> scalar``, the largest difference of an entry from ``[size]``.
        shares: ``shares(weights, total) -> [clients]``, the largest share that a client's weighted
            entry has of a positive ``total``, ``[size]``; 0 for a client without entries.
    """

    messages: Callable[[Float[Array, " clients"]], Messages]
    bases: Callable[[Matroid], Bases]
    spread: Callable[[Float[Array, " size"]], Float[Array, ""]]
    shares: Callable[..., Float[Array, " clients"]]


class Extensions(NamedTuple):
    """The clients' multilinear extensions at a point.

    Attributes:
        values: ``[clients]``.
        gradients: Their gradients.
    """

    values: Float[Array, " clients"]
    gradients: Gains


class Problem(Tree):
    """Private functions of a common ground set; ``F = sum_i p_i f_i`` is to be maximized.

    Arrays are children, so that problems of equal structure and shapes share compiled functions,
    and ``jax.vmap`` maps over stacked ones.

    Attributes:
        name: Shown in messages.
        exact: Whether extension and gradient are exact; otherwise they are estimated, with the key.
    """

    name = "problem"
    exact = True

    @property
    @abc.abstractmethod
    def num_clients(self) -> int:
        """Number of clients."""
        raise NotImplementedError

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Items in the ground set."""
        raise NotImplementedError

    @property
    @abc.abstractmethod
    def function(self) -> ClientFunction:
        """The function of one client's data."""
        raise NotImplementedError

    @abc.abstractmethod
    def own(self, client: Int[Array, ""]) -> PyTree:
        """Returns the data of one client."""
        raise NotImplementedError

    @abc.abstractmethod
    def values(self, mask: Bool[Array, " size"]) -> Float[Array, " clients"]:
        """Computes the value of a set for every client."""
        raise NotImplementedError

    @abc.abstractmethod
    def extensions(self, key: Key[Array, ""] | None, x: Float[Array, " size"]) -> Extensions:
        """Computes the multilinear extensions of all clients and their gradients."""
        raise NotImplementedError

    @abc.abstractmethod
    def gains(self, mask: Bool[Array, " size"]) -> Gains:
        """Computes ``f_i(S + e) - f_i(S - e)`` of all clients."""
        raise NotImplementedError

    @abc.abstractmethod
    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        """Returns the weighted sum of all functions, for centralized algorithms."""
        raise NotImplementedError

    def value(self, mask: ArrayLike, client_weights: ArrayLike | None = None) -> Float[Array, ""]:
        """Computes the weighted value of a set, ``sum_i p_i f_i(S)``.

        Args:
            mask: The set, ``[size]``.
            client_weights: ``p_i``, summing to 1; by default all equal.

        Raises:
            ValueError: If the mask has another shape.
        """
        chosen = mask if isinstance(mask, Array) else np.asarray(mask)
        if chosen.shape != (self.size,) or chosen.dtype != bool:
            raise ValueError(
                f"mask: expected booleans of shape ({self.size},), "
                f"got {chosen.dtype}{chosen.shape}."
            )
        return _value(self, chosen, as_client_weights(self, client_weights))


@jax.jit
def _value(problem, mask, weights):
    return product(filled_weights(problem, weights), problem.values(mask))


class DenseProblem(Problem):
    """A problem in which one function is mapped over the data of all clients.

    A subclass defines ``num_clients``, ``size``, ``function`` and ``data``.

    Examples:
        >>> class Additive(DenseProblem):
        ...     rates: Float[Array, "clients size"]
        ...     name = "additive"
        ...     num_clients = property(lambda self: self.rates.shape[-2])
        ...     size = property(lambda self: self.rates.shape[-1])
        ...     function = ClientFunction(
        ...         value=lambda own, mask: jnp.sum(own, where=mask),
        ...         gains=lambda own, mask: own,
        ...         extension=lambda own, key, x: product(own, x),
        ...         gradient=lambda own, key, x: own,
        ...     )
        ...     def data(self):
        ...         return self.rates
        >>> float(Additive(jnp.array([[3.0, 1.0], [0.0, 2.0]])).value([True, True]))
        3.0
    """

    @abc.abstractmethod
    def data(self) -> PyTree:
        """Returns arrays with a leading axis over clients."""
        raise NotImplementedError

    def own(self, client: Int[Array, ""]) -> PyTree:
        """Returns the data of one client."""
        # The arrays may be those of NumPy, which a traced client cannot index.
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[client], self.data())

    def values(self, mask: Bool[Array, " size"]) -> Float[Array, " clients"]:
        """Computes the value of a set for every client."""
        return jax.vmap(self.function.value, (0, None))(self.data(), mask)

    def extensions(self, key: Key[Array, ""] | None, x: Float[Array, " size"]) -> Extensions:
        """Computes the multilinear extensions of all clients and their gradients."""
        function = self.function
        values = self._all_clients(function.extension, key, x)
        return Extensions(values, rows(self._all_clients(function.gradient, key, x)))

    def gains(self, mask: Bool[Array, " size"]) -> Gains:
        """Computes ``f_i(S + e) - f_i(S - e)`` of all clients."""
        return rows(jax.vmap(self.function.gains, (0, None))(self.data(), mask))

    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        """Returns the sum of the clients' functions; subclasses may know a faster form."""
        return _WeightedSum(self, weights)

    def _all_clients(self, compute: Callable, key: Any, x: Float[Array, " size"]) -> Array:
        clients = jnp.arange(self.num_clients, dtype=jnp.int32)
        keys = jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)
        return jax.vmap(compute, (0, 0, None))(self.data(), keys, x)


class _WeightedSum(SetFunction):
    """The weighted sum of the functions of all clients; its memo is the mask of the set."""

    problem: Problem
    weights: Float[Array, " clients"]

    @property
    def size(self) -> int:
        return self.problem.size

    def value(self, mask):
        return product(self.weights, self.problem.values(mask))

    def init(self):
        return jnp.zeros(self.size, bool)

    def gains(self, memo):
        return secure_aggregate(self.problem.gains(memo).messages(self.weights), self.size)

    def gain(self, memo, item):
        return self.gains(memo)[item]

    def add(self, memo, item):
        return memo.at[item].set(True)


def rows(matrix: Float[Array, "clients size"]) -> Gains:
    """Gains as one row a client."""
    items = jnp.arange(matrix.shape[1], dtype=jnp.int32)
    clients = jnp.arange(matrix.shape[0], dtype=jnp.int32)

    def messages(vectors, weights):
        return Messages((items,), (vectors * weights[:, None],), (clients,))

    def bases(matroid):
        chosen = jax.vmap(matroid.max_weight_base)(matrix).astype(matrix.dtype)
        return Bases(jnp.sum(chosen * matrix, axis=1), lambda weights: messages(chosen, weights))

    def shares(weights, total):
        share = matrix / jnp.where(total > 0, total, jnp.inf)[None]
        return weights * jnp.max(share, axis=1)

    return Gains(
        messages=lambda weights: messages(matrix, weights),
        bases=bases,
        spread=lambda mean: jnp.max(jnp.abs(matrix - mean[None])),
        shares=shares,
    )


def as_client_weights(problem: Problem, weights: Any) -> Any:
    """Weights ``p_i`` of the clients as an array of single precision; None if none are given.

    Raises:
        ValueError: If their number does not fit, one is negative, or they do not sum to 1.
    """
    if weights is None:
        return None
    # What is on the host stays there, since every operation outside is a program of its own.
    numpy = jnp if isinstance(weights, Array) or is_traced(weights) else np
    array = numpy.asarray(weights, numpy.float32)
    if array.shape != (problem.num_clients,):
        raise ValueError(
            f"client_weights: expected shape ({problem.num_clients},), got {array.shape}."
        )
    if not is_traced(weights):
        numbers = np.asarray(weights, np.float64)
        checks.non_negative("client_weights", numbers, many=True)
        # Weights may have been normalized in single precision.
        if not math.isclose(total := float(numbers.sum()), 1.0, abs_tol=1e-4):
            raise ValueError(f"client_weights: expected a sum of 1, got {total:.6g}.")
    return array


def filled_weights(problem: Problem, weights: Any) -> Float[Array, " clients"]:
    """Returns the weights, all equal where none are given."""
    if weights is None:
        return jnp.full(problem.num_clients, 1 / problem.num_clients)
    return weights
