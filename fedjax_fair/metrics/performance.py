"""How well the global model does, over all clients and for those it serves worst.

Every function takes one number per client and leaves out clients whose number is NaN (those
without test examples); if no client is left the answer is NaN. All are pure and work under ``jit``
and ``vmap``.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["best_10pct", "mean_over_clients", "mean_over_examples", "minimum", "worst_10pct"]


def mean_over_clients(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Mean in which every client counts the same.

    Shows how an average client fares; hides how an average example does, and any spread.

    Args:
        values: One number per client, NaN to leave a client out.

    Returns:
        The mean, in the unit of ``values``.

    Examples:
        >>> import jax.numpy as jnp
        >>> mean_over_clients(jnp.array([1.0, 0.5, jnp.nan])).item()
        0.75
    """
    return jnp.nanmean(values)


def mean_over_examples(
    values: Float[Array, " clients"], sizes: Int[Array, " clients"]
) -> Float[Array, ""]:
    """Mean in which every client counts by its number of examples.

    For accuracies and mean losses this is the value on the pooled examples. Shows what an
    average example meets; hides small clients.

    Args:
        values: One number per client, NaN to leave a client out.
        sizes: Examples behind each number.

    Returns:
        The weighted mean, in the unit of ``values``; NaN if no examples are left.

    Examples:
        >>> import jax.numpy as jnp
        >>> mean_over_examples(jnp.array([1.0, 0.5, jnp.nan]), jnp.array([1, 3, 0])).item()
        0.625
    """
    weights = jnp.where(jnp.isnan(values), 0.0, sizes.astype(values.dtype))
    return jnp.nansum(weights * values) / jnp.sum(weights)


def minimum(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Smallest value: the client served worst, if values are accuracies.

    The Rawlsian view. Shows the worst case; with small test sets it is mostly sampling noise,
    and it says nothing about anyone else.

    Args:
        values: One number per client, NaN to leave a client out.

    Returns:
        The minimum, in the unit of ``values``.

    Examples:
        >>> import jax.numpy as jnp
        >>> minimum(jnp.array([0.5, 0.25, jnp.nan])).item()
        0.25
    """
    return jnp.nanmin(values)


def worst_10pct(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Mean over the tenth of the clients with the smallest values.

    With ``n`` clients left after leaving out NaN, these are the ``ceil(n / 10)`` smallest
    values, hence at least one client. Shows the tail that a mean conceals, with less noise than
    the minimum; hides everything above the tail.

    Args:
        values: One number per client, NaN to leave a client out.

    Returns:
        The tail's mean, in the unit of ``values``.

    References:
        Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning",
        ICLR 2020, https://arxiv.org/abs/1905.10497 (worst 10 %).

    Examples:
        >>> import jax.numpy as jnp
        >>> worst_10pct(jnp.arange(20.0)).item()  # of 0 and 1
        0.5
    """
    num_clients = jnp.sum(~jnp.isnan(values))
    return _mean_of_ranks(values, 0, (num_clients + 9) // 10)


def best_10pct(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Mean over the tenth of the clients with the largest values.

    The mirror of `worst_10pct`: beside it, shows which clients a fair method takes from; alone it
    says nothing about fairness.

    Args:
        values: One number per client, NaN to leave a client out.

    Returns:
        The tail's mean, in the unit of ``values``.

    References:
        Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning",
        ICLR 2020, https://arxiv.org/abs/1905.10497 (best 10 %).

    Examples:
        >>> import jax.numpy as jnp
        >>> best_10pct(jnp.arange(20.0)).item()  # of 18 and 19
        18.5
    """
    num_clients = jnp.sum(~jnp.isnan(values))
    return _mean_of_ranks(values, num_clients - (num_clients + 9) // 10, num_clients)


def _mean_of_ranks(
    values: Float[Array, " clients"], first: int | Int[Array, ""], last: Int[Array, ""]
) -> Float[Array, ""]:
    """Mean of the values at places ``first`` to ``last - 1`` in ascending order, NaN last."""
    rank = jnp.arange(values.size)
    inside = (rank >= first) & (rank < last)
    return jnp.nanmean(jnp.where(inside, jnp.sort(values), jnp.nan))
