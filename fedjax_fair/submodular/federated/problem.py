"""A federation of private set functions, and what its clients compute.

The clients' functions are one function of one client's data, mapped over clients. A problem holds
this function and the same computations for all clients, which a sparse problem does in one flat
pass. Nothing here sums over clients: that is ``secure_aggregate``'s task.
"""

from __future__ import annotations

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

__all__ = [
    "Bases",
    "ClientFunction",
    "Extensions",
    "Gains",
    "Problem",
    "as_client_weights",
    "family",
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
        worth: Sum of the gains in each client's base, ``[clients]``.
        messages: ``messages(weights) -> Messages``, weighted by ``[clients]``.
    """

    worth: Float[Array, " clients"]
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


class Problem(NamedTuple):
    """Private functions of a common ground set; ``F = sum_i p_i f_i`` is to be maximized.

    Attributes:
        name: Shown in messages.
        num_clients: Number of clients.
        size: Items in the ground set.
        exact: Whether extension and gradient are exact; otherwise they are estimated, with the key.
        own: ``own(client) -> PyTree``, the data of one client.
        function: The function of one client's data.
        values: ``values(mask) -> [clients]``.
        extensions: ``extensions(key, x) -> Extensions``.
        gains: ``gains(mask) -> Gains``, ``f_i(S + e) - f_i(S - e)``.
        total: ``total(weights) -> SetFunction``, the weighted sum of all functions, for centralized
            algorithms.
    """

    name: str
    num_clients: int
    size: int
    exact: bool
    own: Callable[[Int[Array, ""]], PyTree]
    function: ClientFunction
    values: Callable[[Bool[Array, " size"]], Float[Array, " clients"]]
    extensions: Callable[..., Extensions]
    gains: Callable[[Bool[Array, " size"]], Gains]
    total: Callable[[Float[Array, " clients"]], SetFunction]

    def value(self, mask: ArrayLike, client_weights: ArrayLike | None = None) -> Float[Array, ""]:
        """The weighted value of a set, ``sum_i p_i f_i(S)``.

        Args:
            mask: The set, ``[size]``.
            client_weights: ``p_i``, summing to 1; by default all equal.

        Raises:
            ValueError: If the mask has another shape.
        """
        chosen = jnp.asarray(mask)
        if chosen.shape != (self.size,) or chosen.dtype != bool:
            raise ValueError(
                f"mask: expected booleans of shape ({self.size},), "
                f"got {chosen.dtype}{chosen.shape}."
            )
        return product(as_client_weights(self, client_weights), self.values(chosen))


def family(
    name: str,
    data: PyTree,
    function: ClientFunction,
    *,
    size: int,
    exact: bool,
    total: Callable[[Float[Array, " clients"]], SetFunction] | None = None,
) -> Problem:
    """A problem in which one function is mapped over the data of all clients.

    Args:
        name: Shown in messages.
        data: Arrays with a leading axis over clients.
        function: The function of one client's data.
        size: Items in the ground set.
        exact: Whether the function's extension and gradient are exact.
        total: A fast form of the weighted sum; by default the clients' functions are summed.
    """
    data = jax.tree.map(jnp.asarray, data)  # Which a traced client indexes.
    num_clients = jax.tree.leaves(data)[0].shape[0]
    clients = jnp.arange(num_clients, dtype=jnp.int32)

    def all_clients(compute: Callable, key: Key[Array, ""], x: Float[Array, " size"]):
        keys = jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)
        return jax.vmap(compute, (0, 0, None))(data, keys, x)

    def gains(mask):
        return rows(jax.vmap(function.gains, (0, None))(data, mask))

    def values(mask):
        return jax.vmap(function.value, (0, None))(data, mask)

    def summed(weights):
        def weighted(mask):
            return secure_aggregate(gains(mask).messages(weights), size)

        return SetFunction(
            size=size,
            value=lambda mask: product(weights, values(mask)),
            init=lambda: jnp.zeros(size, bool),
            gains=weighted,
            gain=lambda mask, item: weighted(mask)[item],
            add=lambda mask, item: mask.at[item].set(True),
        )

    return Problem(
        name=name,
        num_clients=num_clients,
        size=size,
        exact=exact,
        own=lambda client: jax.tree.map(lambda leaf: leaf[client], data),
        function=function,
        values=values,
        extensions=lambda key, x: Extensions(
            all_clients(function.extension, key, x), rows(all_clients(function.gradient, key, x))
        ),
        gains=gains,
        total=total or summed,
    )


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


def as_client_weights(problem: Problem, weights: Any) -> Float[Array, " clients"]:
    """Weights ``p_i`` of the clients, all equal by default.

    Raises:
        ValueError: If their number does not fit, one is negative, or they do not sum to 1.
    """
    if weights is None:
        return jnp.full(problem.num_clients, 1 / problem.num_clients)
    array = jnp.asarray(weights, jnp.float32)
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
