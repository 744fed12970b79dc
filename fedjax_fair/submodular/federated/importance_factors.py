"""Importance factors of clients, in two rounds (Rafiey 2024, Algorithms 4 and 5).

The server sums the clients' values of single items; clients compute their factors from the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from fedjax_fair.numerics.secure_sum import as_secure
from fedjax_fair.submodular.federated import secure as messaging
from fedjax_fair.submodular.federated.problem import Problem, as_client_weights, fill_weights
from fedjax_fair.submodular.federated.secure import Aggregation, secure_aggregate
from fedjax_fair.submodular.federated.trajectory import Communication

__all__ = ["ImportanceFactors", "compute_factors", "importance_factors"]


class ImportanceFactors(NamedTuple):
    """Importance factors and their communication.

    Attributes:
        factors: Largest share of each client in the value of an item, ``[clients]``; not sent.
        singles: Value of each single item, ``[size]``.
        communication: Clients and bits of both rounds.
    """

    factors: Float[Array, " clients"]
    singles: Float[Array, " size"]
    communication: Communication


def importance_factors(
    problem: Problem,
    client_weights: ArrayLike | None = None,
    *,
    aggregation: Aggregation = "plain",
    key: Key[Array, ""] | None = None,
) -> ImportanceFactors:
    """Computes ``w_i = max_e p_i f_i({e}) / F({e})`` over the items with a positive value.

    Args:
        problem: The clients' functions.
        client_weights: As for ``fedcg``.
        aggregation: As for ``fedcg``.
        key: Random key of the masks, for secure aggregation.

    Examples:
        >>> from fedjax_fair.submodular import federated
        >>> problem = federated.max_coverage(jnp.array([[True, False], [True, True]]))
        >>> importance_factors(problem).factors.tolist()
        [0.5, 1.0]
    """
    secure = as_secure(aggregation)
    if secure is not None and key is None:
        raise ValueError(
            "key=None: aggregation='secure' needs a random key for its masks; pass "
            "key=jax.random.key(0)."
        )
    return compute_factors(problem, as_client_weights(problem, client_weights), secure, key)


@jax.jit
def compute_factors(problem, weights, secure=None, key=None) -> ImportanceFactors:
    """Computes ``importance_factors`` from checked arguments."""
    weights = fill_weights(problem, weights)
    gains = problem.gains(jnp.zeros(problem.size, bool))
    protocol = messaging.make_protocol(secure, key, problem.num_clients)
    singles = secure_aggregate(gains.messages(weights), problem.size, protocol)
    up, down = jnp.array([1, 0], jnp.int32), jnp.array([0, 1], jnp.int32)
    clients, bits = problem.num_clients, messaging.vector_bits(problem.size)
    communication = Communication(clients * down, clients * up, bits * down, bits * up)
    return ImportanceFactors(gains.shares(weights, singles), singles, communication)
