"""Client selection proportional to size, with replacement (multinomial sampling)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Selector

__all__ = ["by_size", "ends_of_available"]


def by_size(cohort_size: int) -> Selector:
    """Draws each slot of the cohort independently, a client with probability ``n_i / sum(n)``.

    Averaged uniformly, such a cohort is an unbiased estimate of the update of all clients weighted
    by size. A client may be drawn more than once and then trains independently each time.

    Args:
        cohort_size: Slots per round.

    Returns:
        A ``Selector`` whose cohort has uniform weights.

    Raises:
        ValueError: If ``cohort_size`` is not positive.

    References:
        Li, Huang, Yang, Wang, Zhang, *On the Convergence of FedAvg on Non-IID Data*, 2020,
        scheme I, https://arxiv.org/abs/1907.02189

    Examples:
        >>> selector = by_size(cohort_size=10)
    """
    checks.positive_int("cohort_size", cohort_size)

    def init(context):
        return jnp.cumsum(context.sizes)

    def select(key, state, context):
        # The state is where the examples of each client end if laid out on a line. The owner of a
        # uniform example is a client drawn in proportion to its size.
        ends = ends_of_available(state, context)
        # Where no client is available it is the last client, who does not answer.
        example = jax.random.randint(key, (cohort_size,), 0, jnp.maximum(ends[-1], 1))
        clients = jnp.searchsorted(ends, example, side="right").astype(jnp.int32)
        clients = jnp.minimum(clients, context.num_clients - 1)
        return Cohort(clients, jnp.full(cohort_size, 1 / cohort_size, jnp.float32)), state, {}

    return Selector(init, select, sees="sum")


def ends_of_available(ends: Int[Array, " clients"], context: Context) -> Int[Array, " clients"]:
    """Where the examples of each client end on a line that holds those of available ones alone.

    Args:
        ends: The same of all clients, which it is if all are available.
        context: What says who is.
    """
    if context.available is None:
        return ends
    return jnp.cumsum(jnp.where(context.available, context.sizes, 0))
