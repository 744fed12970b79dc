"""Client selection proportional to size, with replacement (multinomial sampling)."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, ServerView, Selector

__all__ = ["BySize", "ends_of_available"]


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
        # The state has the end of each client's examples if all of them are laid out on a line. The
        # owner of a uniform example is a client drawn in proportion to its size.
        size = self.cohort_size
        ends = ends_of_available(state, context)
        # Where no client is available it is the last client, which does not answer.
        example = jax.random.randint(key, (size,), 0, jnp.maximum(ends[-1], 1))
        clients = jnp.searchsorted(ends, example, side="right").astype(jnp.int32)
        clients = jnp.minimum(clients, context.num_clients - 1)
        return Cohort(clients, jnp.full(size, 1 / size, jnp.float32)), state, {}


def ends_of_available(ends: Int[Array, " clients"], context: Context) -> Int[Array, " clients"]:
    """Returns the end of each client's examples on a line that holds the available clients alone.

    Args:
        ends: The same on a line of all clients; it is returned where all are available.
        context: The context of the round, with the clients that are available.
    """
    if context.available is None:
        return ends
    return jnp.cumsum(jnp.where(context.available, context.sizes, 0))
