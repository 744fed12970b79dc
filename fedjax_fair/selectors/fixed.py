"""Selection without a choice: all clients, or all in turn."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Sampling, Selector, ServerView

__all__ = ["Full", "RoundRobin"]


class Full(Selector):
    """Lets every client train in every round. The cohort has uniform weights.

    Examples:
        >>> Full()
        Full()
    """

    server_view: ClassVar[ServerView] = "aggregate"

    @property
    def sampling(self):
        return Sampling("full")

    def select(self, key, state, context):
        count = context.num_clients
        clients = jnp.arange(count, dtype=jnp.int32)
        return Cohort(clients, jnp.full(count, 1 / count, jnp.float32)), state, {}


class RoundRobin(Selector):
    """Takes clients in the order of their ids, from where the previous round stopped.

    The cohort has uniform weights. After any number of rounds, the clients' counts of rounds
    differ by at most one.

    Args:
        cohort_size: Clients per round.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) more than the clients.

    Examples:
        >>> RoundRobin(cohort_size=10)
        RoundRobin(cohort_size=10)
    """

    server_view: ClassVar[ServerView] = "aggregate"

    cohort_size: int

    def __post_init__(self):
        checks.positive_int("cohort_size", self.cohort_size)

    @property
    def sampling(self):
        return Sampling("round_robin", self.cohort_size)

    def init(self, context):
        checks.positive_int("cohort_size", self.cohort_size, at_most=context.num_clients)
        return jnp.zeros((), jnp.int32)

    def select(self, key, state, context):
        size, count = self.cohort_size, context.num_clients
        places = state + jnp.arange(size, dtype=jnp.int32)
        cohort = Cohort(places % count, jnp.full(size, 1 / size, jnp.float32))
        return cohort, (state + size) % count, {}
