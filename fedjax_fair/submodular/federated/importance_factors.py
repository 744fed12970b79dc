"""Importance factors of clients, in two rounds (Rafiey 2024, Algorithms 4 and 5).

The server sums the clients' values of single items and sends the sums to all clients; each client
computes its own factor from them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from fedjax_fair.numerics.secure_sum import SecureAggregation, as_secure
from fedjax_fair.submodular.federated.problem import Problem, as_client_weights, filled_weights
from fedjax_fair.submodular.federated.secure import protocol, secure_aggregate, vector_bits
from fedjax_fair.submodular.federated.trajectory import Communication

__all__ = ["ImportanceFactors", "factors_of", "importance_factors"]


class ImportanceFactors(NamedTuple):
    """Importance factors and what they cost.

    Attributes:
        factors: The largest share that each client has of the value of an item, ``[clients]``, in
            ``[0, 1]``. They sum to at most ``size``. They are not sent to the server.
        singles: Value of each single item, ``[size]``, sent to all clients.
        communication: Of the two rounds: values up, sums down.
    """

    factors: Float[Array, " clients"]
    singles: Float[Array, " size"]
    communication: Communication


def importance_factors(
    problem: Problem,
    client_weights: ArrayLike | None = None,
    *,
    aggregation: Literal["plain", "secure"] | SecureAggregation = "plain",
    key: Key[Array, ""] | None = None,
) -> ImportanceFactors:
    """``w_i = max_e p_i f_i({e}) / F({e})`` over the items with a positive value.

    For facility location it is Algorithm 4 and for coverage Algorithm 5; it works for any problem.

    Args:
        problem: The clients' functions.
        client_weights: ``p_i``, summing to 1; by default all equal.
        aggregation: As for ``fedcg``.
        key: Random key of the masks, for secure aggregation.

    Raises:
        ValueError: If the weights do not sum to 1, or secure aggregation has no key.

    Examples:
        >>> from fedjax_fair.submodular import federated
        >>> problem = federated.max_coverage(jnp.array([[True, False], [True, True]]))
        >>> importance_factors(problem).factors.tolist()
        [0.5, 1.0]
    """
    secure = as_secure(aggregation)
    if secure is not None and key is None:
        raise ValueError("key=None: expected a random key with aggregation='secure'.")
    return factors_of(problem, as_client_weights(problem, client_weights), secure, key)


@jax.jit
def factors_of(
    problem: Problem,
    weights: Float[Array, " clients"] | None,
    secure: SecureAggregation | None = None,
    key: Key[Array, ""] | None = None,
) -> ImportanceFactors:
    """Computes what ``importance_factors`` does from checked arguments."""
    weights = filled_weights(problem, weights)
    own = problem.gains(jnp.zeros(problem.size, bool))
    hidden = protocol(secure, key, problem.num_clients)
    singles = secure_aggregate(own.messages(weights), problem.size, hidden)
    clients, none = jnp.int32(problem.num_clients), jnp.int32(0)
    bits = jnp.int32(vector_bits(problem.size))
    return ImportanceFactors(
        factors=own.shares(weights, singles),
        singles=singles,
        communication=Communication(
            contacted=jnp.stack([none, clients]),
            responded=jnp.stack([clients, none]),
            down=jnp.stack([none, bits]),
            up=jnp.stack([bits, none]),
        ),
    )
