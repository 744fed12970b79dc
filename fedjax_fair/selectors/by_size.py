"""Client selection proportional to size, with replacement (multinomial sampling)."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Selector, ServerView

__all__ = ["BySize", "available_cumulative_sizes"]


class BySize(Selector):
    """Draws each slot of the cohort independently, a client with probability ``n_i / sum(n)``.

    The cohort has uniform weights. Averaged uniformly, it is an unbiased estimate of the update of
    all clients weighted by size. A client may be drawn more than once and then trains independently
    each time.

    Args:
        cohort_size: Slots per round.

    Raises:
        ValueError: If ``cohort_size`` is not positive.

    References:
        Li, Huang, Yang, Wang, Zhang, *On the Convergence of FedAvg on Non-IID Data*, 2020,
        scheme I, https://arxiv.org/abs/1907.02189

    Examples:
        >>> BySize(cohort_size=10)
        BySize(cohort_size=10)
    """

    server_view: ClassVar[ServerView] = "aggregate"

    cohort_size: int

    def __post_init__(self):
        checks.positive_int("cohort_size", self.cohort_size)

    def init(self, context):
        return jnp.cumsum(context.sizes)

    def select(self, key, state, context):
        # Inverse-CDF sampling: the state has the cumulative sizes of all clients, and the
        # owner of a uniform example is a client drawn in proportion to its size.
        size = self.cohort_size
        cumulative_sizes = available_cumulative_sizes(state, context)
        # Where no client is available it is the last client, which does not answer.
        example = jax.random.randint(key, (size,), 0, jnp.maximum(cumulative_sizes[-1], 1))
        clients = jnp.searchsorted(cumulative_sizes, example, side="right").astype(jnp.int32)
        clients = jnp.minimum(clients, context.num_clients - 1)
        return Cohort(clients, jnp.full(size, 1 / size, jnp.float32)), state, {}


def available_cumulative_sizes(
    cumulative_sizes: Int[Array, " clients"], context: Context
) -> Int[Array, " clients"]:
    """Returns the cumulative sizes where clients that are not available count as empty.

    Args:
        cumulative_sizes: The cumulative sizes of all clients; returned where all are available.
        context: The context of the round, with the clients that are available.
    """
    if context.available is None:
        return cumulative_sizes
    return jnp.cumsum(jnp.where(context.available, context.sizes, 0))
