"""Selection without a choice: all clients, or all in turn."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Sampling, Selector, empty_state

__all__ = ["full", "round_robin"]


def full() -> Selector:
    """Lets every client train in every round.

    Returns:
        A ``Selector`` whose cohort has uniform weights.

    Examples:
        >>> selector = full()
    """

    def select(key, state, context):
        count = context.num_clients
        clients = jnp.arange(count, dtype=jnp.int32)
        return Cohort(clients, jnp.full(count, 1 / count, jnp.float32)), state, {}

    return Selector(empty_state, select, sees="sum", sampling=Sampling("all"))


def round_robin(cohort_size: int) -> Selector:
    """Takes clients in the order of their ids, from where the round before stopped.

    Args:
        cohort_size: Clients per round.

    Returns:
        A ``Selector`` whose cohort has uniform weights. After any number of rounds no client has
        trained more than once more often than another.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) more than the clients.

    Examples:
        >>> selector = round_robin(cohort_size=10)
    """
    checks.positive_int("cohort_size", cohort_size)

    def init(context):
        checks.positive_int("cohort_size", cohort_size, at_most=context.num_clients)
        return jnp.zeros((), jnp.int32)

    def select(key, state, context):
        places = state + jnp.arange(cohort_size, dtype=jnp.int32)
        cohort = Cohort(
            places % context.num_clients, jnp.full(cohort_size, 1 / cohort_size, jnp.float32)
        )
        return cohort, (state + cohort_size) % context.num_clients, {}

    return Selector(init, select, sees="sum", sampling=Sampling("in_turn", cohort_size))
