"""Uniform client selection, without replacement: the paper's *Random*."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Sampling, Selector
from fedjax_fair.numerics.permutation import permutation_at

__all__ = ["draw", "uniform"]


def uniform(cohort_size: int) -> Selector:
    """Draws distinct clients, each equally likely.

    The cost does not depend on the number of clients, unless some are not available.

    Args:
        cohort_size: Clients per round, at most the number of clients.

    Returns:
        A ``Selector`` whose cohort has uniform weights.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) more than the clients.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas, *Communication-Efficient Learning of Deep
        Networks from Decentralized Data*, 2017, https://arxiv.org/abs/1602.05629

    Examples:
        >>> selector = uniform(cohort_size=10)
    """
    checks.positive_int("cohort_size", cohort_size)

    def init(context):
        checks.positive_int("cohort_size", cohort_size, at_most=context.num_clients)
        return ()

    def select(key, state, context):
        clients = draw(key, cohort_size, context)
        return Cohort(clients, jnp.full(cohort_size, 1 / cohort_size, jnp.float32)), state, {}

    return Selector(init, select, sees="sum", sampling=Sampling("uniform", cohort_size))


def draw(key: Key[Array, ""], count: int, context: Context) -> Int[Array, " count"]:
    """Ids of distinct clients, each equally likely; of those that are available, if enough are."""
    if context.available is None:
        return permutation_at(key, jnp.arange(count, dtype=jnp.int32), context.num_clients)
    order = permutation_at(
        key, jnp.arange(context.num_clients, dtype=jnp.int32), context.num_clients
    )
    return order[jnp.argsort(~context.available[order], stable=True)[:count]]
