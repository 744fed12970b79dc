"""Federated problems: private set functions of clients.

Problems of equal structure and shapes share compiled functions.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.checked_arrays import as_host, is_traced
from fedjax_fair.submodular.federated.secure import Messages, secure_aggregate
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.set_function import SetFunction
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree

__all__ = ["ClientFunction", "DenseProblem", "Extensions", "Gains", "Problem"]


class ClientFunction(NamedTuple):
    """Monotone submodular function of a set and one client's data; 0 at the empty set.

    Attributes:
        value: ``value(data, mask) -> scalar``.
        gains: ``gains(data, mask) -> [size]``, ``f(S + e) - f(S - e)`` of every item.
        extension: ``extension(data, key, x) -> scalar``, the multilinear extension.
        gradient: ``gradient(data, key, x) -> [size]``.
    """

    value: Callable[[PyTree, Bool[Array, " size"]], Float[Array, ""]]
    gains: Callable[[PyTree, Bool[Array, " size"]], Float[Array, " size"]]
    extension: Callable[..., Float[Array, ""]]
    gradient: Callable[..., Float[Array, " size"]]


class Bases(NamedTuple):
    """Heaviest base of each client.

    Attributes:
        utility: Sum of the gains in each client's base, ``[clients]``.
        messages: ``messages(weights) -> Messages``, weighted by ``[clients]``.
    """

    utility: Float[Array, " clients"]
    messages: Callable[[Float[Array, " clients"]], Messages]


class Gains(NamedTuple):
    """Non-negative vector over the items for each client: gains or a gradient.

    Attributes:
        messages: ``messages(weights) -> Messages``, weighted by ``[clients]``.
        bases: ``bases(matroid) -> Bases``.
        spread: ``spread(mean) -> scalar``, the largest difference of an element from ``[size]``.
        shares: ``shares(weights, total) -> [clients]``, the largest ratio of a weighted element to
            a positive one of ``total``, ``[size]``.
    """

    messages: Callable[[Float[Array, " clients"]], Messages]
    bases: Callable[[Matroid], Bases]
    spread: Callable[[Float[Array, " size"]], Float[Array, ""]]
    shares: Callable[..., Float[Array, " clients"]]


class Extensions(NamedTuple):
    """Multilinear extensions of all clients at a point.

    Attributes:
        values: ``[clients]``.
        gradients: Gradients of all clients.
    """

    values: Float[Array, " clients"]
    gradients: Gains


class Problem(Tree):
    """Private functions of a common ground set; the objective is ``F = sum_i p_i f_i``.

    Attributes:
        name: Name in messages.
        exact: Whether extension and gradient are exact; otherwise they are random estimates.
        function: Function of one client's data.
    """

    name = "problem"
    exact = True
    function: ClassVar[ClientFunction]

    @property
    @abc.abstractmethod
    def num_clients(self) -> int:
        """Number of clients."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of items in the ground set."""

    @abc.abstractmethod
    def client_data(self, client: Int[Array, ""]) -> PyTree:
        """Returns the data of one client."""

    @abc.abstractmethod
    def values(self, mask: Bool[Array, " size"]) -> Float[Array, " clients"]:
        """Computes the value of a set for every client."""

    @abc.abstractmethod
    def extensions(self, key: Key[Array, ""] | None, x: Float[Array, " size"]) -> Extensions:
        """Computes the multilinear extensions of all clients and their gradients."""

    @abc.abstractmethod
    def gains(self, mask: Bool[Array, " size"]) -> Gains:
        """Computes ``f_i(S + e) - f_i(S - e)`` of all clients."""

    @abc.abstractmethod
    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        """Returns the weighted sum of all functions, for centralized algorithms."""

    def value(self, mask: ArrayLike, client_weights: ArrayLike | None = None) -> Float[Array, ""]:
        """Computes the weighted value of a set, ``sum_i p_i f_i(S)``.

        Args:
            mask: The set, ``[size]``.
            client_weights: ``p_i``, summing to 1; equal by default.

        Raises:
            ValueError: If the mask or the weights have a wrong shape or dtype.
        """
        array = mask if isinstance(mask, Array) else as_host("mask", mask)
        if array.shape != (self.size,) or array.dtype != bool:
            raise ValueError(
                f"mask: got {array.dtype} of shape {array.shape}, expected booleans of shape "
                f"({self.size},); pass one boolean per item."
            )
        return _value(self, array, as_client_weights(self, client_weights))


@jax.jit
def _value(problem, mask, weights):
    return product(fill_weights(problem, weights), problem.values(mask))


# Algorithms use messages, bases and shares only, and only `secure_aggregate` sums over clients, so
# that a problem may answer for all clients at once: a dense one maps the function of a client, a
# sparse one uses a flat list of scores.
class DenseProblem(Problem):
    """Problem that maps one function over the data of all clients.

    ``num_clients`` and ``size`` are by default the first and the last axis of the first array.

    Examples:
        >>> class Additive(DenseProblem):
        ...     rates: Float[Array, "clients size"]
        ...     function = ClientFunction(
        ...         value=lambda rates, mask: jnp.sum(rates, where=mask),
        ...         gains=lambda rates, mask: rates,
        ...         extension=lambda rates, key, x: product(rates, x),
        ...         gradient=lambda rates, key, x: rates,
        ...     )
        ...     def data(self):
        ...         return self.rates
        >>> float(Additive(jnp.array([[3.0, 1.0], [0.0, 2.0]])).value([True, True]))
        3.0
    """

    @abc.abstractmethod
    def data(self) -> PyTree:
        """Returns arrays with a leading axis over clients."""

    @property
    def num_clients(self) -> int:
        return jax.tree.leaves(self.data())[0].shape[0]

    @property
    def size(self) -> int:
        return jax.tree.leaves(self.data())[0].shape[-1]

    def client_data(self, client):
        # A traced client cannot index NumPy arrays.
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[client], self.data())

    def values(self, mask):
        return jax.vmap(self.function.value, (0, None))(self.data(), mask)

    def extensions(self, key: Any, x):
        clients = jnp.arange(self.num_clients, dtype=jnp.int32)
        keys = jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)
        values = jax.vmap(self.function.extension, (0, 0, None))(self.data(), keys, x)
        gradients = jax.vmap(self.function.gradient, (0, 0, None))(self.data(), keys, x)
        return Extensions(values, dense_gains(gradients))

    def gains(self, mask):
        return dense_gains(jax.vmap(self.function.gains, (0, None))(self.data(), mask))

    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        return WeightedSum(self, weights)


class WeightedSum(SetFunction):
    """Weighted sum of the functions of all clients; the memo is the mask of the set."""

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

    def add(self, memo, item):
        return memo.at[item].set(True)


def dense_gains(matrix: Float[Array, "clients size"]) -> Gains:
    """Wraps a matrix with one row per client."""
    items = jnp.arange(matrix.shape[1], dtype=jnp.int32)
    clients = jnp.arange(matrix.shape[0], dtype=jnp.int32)

    def messages(vectors, weights):
        return Messages((items,), (vectors * weights[:, None],), (clients,))

    def bases(matroid):
        base = jax.vmap(matroid.max_weight_base)(matrix).astype(matrix.dtype)
        return Bases(jnp.sum(base * matrix, axis=1), lambda weights: messages(base, weights))

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
    """Checks the weights ``p_i`` and converts them to single precision; None stays None.

    Raises:
        ValueError: If the shape is wrong, a weight is negative, or they do not sum to 1.
    """
    if weights is None:
        return None
    # NumPy arrays stay on the host: an operation outside of jit would be compiled separately.
    is_jax = isinstance(weights, Array) or is_traced(weights)
    array = jnp.asarray(weights) if is_jax else as_host("client_weights", weights)
    array = array.astype(np.float32)
    if array.shape != (problem.num_clients,):
        raise ValueError(
            f"client_weights: got shape {array.shape}, expected one weight per client, "
            f"({problem.num_clients},); pass None for equal weights."
        )
    if not is_traced(weights):
        host_weights = as_host("client_weights", weights).astype(np.float64)
        checks.non_negative("client_weights", host_weights, many=True)
        # Weights may have been normalized in single precision.
        if not math.isclose(total := float(host_weights.sum()), 1.0, abs_tol=1e-4):
            raise ValueError(
                f"client_weights: got a sum of {total:.6g}, expected 1; divide them by their sum."
            )
    return array


def fill_weights(problem: Problem, weights: Any) -> Float[Array, " clients"]:
    """Replaces None by equal weights."""
    if weights is None:
        return jnp.full(problem.num_clients, 1 / problem.num_clients)
    return weights
