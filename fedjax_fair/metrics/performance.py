"""Levels of accuracy and loss over all clients, the worst and the best of them.

All functions take one value per client, ignore NaN (a client without examples), and return a value
in the same unit, or NaN if no client is left. They work under ``jit`` and ``vmap``.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = [
    "best_10pct",
    "mean_over_clients",
    "mean_over_examples",
    "mean_perplexity",
    "minimum",
    "pooled_perplexity",
    "worst_10pct",
    "worst_10pct_perplexity",
]


def mean_over_clients(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the mean with equal weight for every client.

    Use: the level of an average client. Limitation: ignores spread and the sizes of clients.

    Examples:
        >>> mean_over_clients(jnp.array([1.0, 0.5, jnp.nan])).item()
        0.75
    """
    return jnp.nanmean(values)


def mean_over_examples(
    values: Float[Array, " clients"], sizes: Int[Array, " clients"]
) -> Float[Array, ""]:
    """Computes the mean with weights in proportion to the clients' numbers of examples.

    Use: the value on the pooled examples. Limitation: small clients hardly count.

    Examples:
        >>> mean_over_examples(jnp.array([1.0, 0.5, jnp.nan]), jnp.array([1, 3, 0])).item()
        0.625
    """
    weights = jnp.where(jnp.isnan(values), 0.0, sizes.astype(values.dtype))
    return jnp.nansum(weights * values) / jnp.sum(weights)


def minimum(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the smallest value: the worst client, if values are accuracies.

    Use: the worst case (Rawls). Limitation: mostly sampling noise if test sets are small.

    Examples:
        >>> minimum(jnp.array([0.5, 0.25, jnp.nan])).item()
        0.25
    """
    return jnp.nanmin(values)


def worst_10pct(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the mean of the ``ceil(n / 10)`` smallest of ``n`` values.

    Use: the lower tail, with less noise than the minimum. Limitation: ignores all other clients.

    References:
        Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning",
        ICLR 2020, https://arxiv.org/abs/1905.10497 (worst 10 %).

    Examples:
        >>> worst_10pct(jnp.arange(20.0)).item()  # of 0 and 1
        0.5
    """
    num_clients = jnp.sum(~jnp.isnan(values))
    return _mean_of_ranks(values, 0, (num_clients + 9) // 10)


def best_10pct(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the mean of the ``ceil(n / 10)`` largest of ``n`` values.

    Use: with `worst_10pct`, the cost for the best clients. Limitation: alone not a fairness metric.

    Examples:
        >>> best_10pct(jnp.arange(20.0)).item()  # of 18 and 19
        18.5
    """
    num_clients = jnp.sum(~jnp.isnan(values))
    return _mean_of_ranks(values, num_clients - (num_clients + 9) // 10, num_clients)


def pooled_perplexity(
    losses: Float[Array, " clients"], sizes: Int[Array, " clients"]
) -> Float[Array, ""]:
    """Computes the perplexity on the pooled labels, the exponential of their mean loss.

    Use: the number of equally likely characters that the model hesitates between. Limitation:
    clients with little text hardly count.

    Examples:
        >>> losses = jnp.log(jnp.array([2.0, 8.0]))
        >>> round(pooled_perplexity(losses, jnp.array([1, 1])).item(), 4)
        4.0
    """
    return jnp.exp(mean_over_examples(losses, sizes))


def mean_perplexity(losses: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the mean of the clients' perplexities, with equal weight for every client.

    Use: the perplexity of an average client. Limitation: single large values dominate.

    Examples:
        >>> round(mean_perplexity(jnp.log(jnp.array([2.0, 8.0]))).item(), 4)
        5.0
    """
    return jnp.nanmean(jnp.exp(losses))


def worst_10pct_perplexity(losses: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the mean of the ``ceil(n / 10)`` largest of ``n`` perplexities.

    Use: the upper tail. Limitation: ignores all other clients.

    Examples:
        >>> round(worst_10pct_perplexity(jnp.log(jnp.array([2.0, 8.0]))).item(), 4)
        8.0
    """
    return best_10pct(jnp.exp(losses))


def _mean_of_ranks(
    values: Float[Array, " clients"], first: int | Int[Array, ""], last: Int[Array, ""]
) -> Float[Array, ""]:
    """Averages the values at ranks ``first`` to ``last - 1`` in ascending order."""
    rank = jnp.arange(values.size)  # Sorting puts NaN last.
    inside = (rank >= first) & (rank < last)
    return jnp.nanmean(jnp.where(inside, jnp.sort(values), jnp.nan))
