"""Client selection in proportion to size, with replacement (multinomial sampling)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_fair.roles import Context
from fedjax_fair.selectors.uniform import FixedSizeSelector, uniform_cohort

__all__ = ["BySize", "available_cumulative_sizes"]


class BySize(FixedSizeSelector):
    """Samples each slot of the cohort independently, a client with probability ``n_i / sum(n)``.

    The uniform average of the cohort is an unbiased estimate of the update of all clients weighted
    by size. A client that is sampled more than once trains independently each time.

    Args:
        cohort_size: Slots per round, positive.

    References:
        Li, Huang, Yang, Wang, Zhang, *On the Convergence of FedAvg on Non-IID Data*, 2020,
        scheme I, https://arxiv.org/abs/1907.02189

    Examples:
        >>> BySize(cohort_size=10)
        BySize(cohort_size=10)
    """

    server_view = "aggregate"

    def init(self, context):
        return jnp.cumsum(context.sizes)

    def select(self, key, state, context):
        # Inverse-CDF sampling: the owner of a uniformly sampled example.
        cumulative_sizes = available_cumulative_sizes(state, context)
        # If no client is available this is the last client, which does not respond.
        num_examples = jnp.maximum(cumulative_sizes[-1], 1)
        example = jax.random.randint(key, (self.cohort_size,), 0, num_examples)
        clients = jnp.searchsorted(cumulative_sizes, example, side="right").astype(jnp.int32)
        return uniform_cohort(jnp.minimum(clients, context.num_clients - 1)), state, {}


def available_cumulative_sizes(
    cumulative_sizes: Int[Array, " clients"], context: Context
) -> Int[Array, " clients"]:
    """Returns cumulative sizes in which clients that are not available have size 0."""
    if context.available is None:
        return cumulative_sizes
    return jnp.cumsum(jnp.where(context.available, context.sizes, 0))
