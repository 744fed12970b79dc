"""Deterministic selection: all clients, or all clients in turn."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Sampling, Selector, ServerView
from fedjax_fair.selectors.uniform import uniform_cohort

__all__ = ["Full", "RoundRobin"]


class Full(Selector):
    """Selects all clients in every round. The cohort has uniform weights.

    Examples:
        >>> Full()
        Full()
    """

    server_view: ClassVar[ServerView] = "aggregate"

    @property
    def sampling(self):
        return Sampling("full")

    def select(self, key, state, context):
        return uniform_cohort(jnp.arange(context.num_clients, dtype=jnp.int32)), state, {}


class RoundRobin(Selector):
    """Selects clients in the order of their ids, continuing after those of the previous round.

    The cohort has uniform weights. The participation counts of clients differ by at most one.

    Args:
        cohort_size: Clients per round.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) exceeds the number of
            clients.

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
        clients = (state + jnp.arange(self.cohort_size, dtype=jnp.int32)) % context.num_clients
        return uniform_cohort(clients), (state + self.cohort_size) % context.num_clients, {}
