"""Rotation: random clients that did not take part recently."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.roles import Integer, setting
from fedjax_fair.selectors.uniform import FixedSizeSelector, uniform_cohort
from fedjax_fair.utils import checks

__all__ = ["Rotation"]


class Rotation(FixedSizeSelector):
    """Samples clients that were in none of the last cohorts.

    Clients outside of the last ``window`` cohorts have equal probabilities. If they are too few,
    the others of the cohort are sampled from recent participants, and then from clients that are
    not available. It is the exclusion of recent participants by `UnionFL` without representation,
    hence a control for it. The cohort has uniform weights.

    Args:
        cohort_size: Clients per round.
        window: Number of recent cohorts, >= 0; with 0 it samples as `Uniform`, from other random
            numbers. Memory use does not depend on it.

    Raises:
        ValueError: If ``window`` is out of range, or as for `Uniform`.

    Examples:
        >>> Rotation(cohort_size=10, window=3)
        Rotation(cohort_size=10, window=3)
    """

    server_view = "aggregate"

    window: Integer = setting(checks.integer, default=5, at_least=0, at_most=2**30)

    def init(self, context):
        super().init(context)
        # The round of the last selection; in round 0 that of nobody is recent.
        return jnp.full(context.num_clients, -1 - self.window, jnp.int32)

    def select(self, key, state, context):
        recent = context.round - state <= self.window
        score = jax.random.uniform(key, state.shape) + jnp.where(recent, 1.0, 0.0)
        if context.available is not None:
            score += jnp.where(context.available, 0.0, 2.0)
        _, clients = jax.lax.top_k(-score, self.cohort_size)
        return uniform_cohort(clients), state.at[clients].set(context.round), {}
