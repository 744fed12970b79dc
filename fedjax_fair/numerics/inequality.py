"""Inequality of values, one per client, of which NaN is ignored."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["gini", "mean_difference", "mean_or_one"]


def gini(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the Gini index: half the mean absolute difference of two clients over the mean.

    The mean is over all ordered pairs, ``i = j`` included. Limitation: it ignores the level; all
    clients at 10 % are as equal as all at 90 %.

    Args:
        values: One non-negative value per client; NaN is ignored.

    Returns:
        A value in ``[0, 1 - 1 / n]``: 0 if all are equal (all zero included), ``1 - 1 / n`` if all
        but one are zero; NaN if the mean is infinite.

    References:
        Gini, "Variabilità e mutabilità", 1912.

    Examples:
        >>> import jax.numpy as jnp
        >>> gini(jnp.array([0.0, 0.0, 0.0, 1.0])).item()
        0.75
    """
    return mean_difference(values) / (2.0 * mean_or_one(values))


def mean_or_one(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Returns the mean; 1 if it is zero, because values that are all zero are equal.

    An infinite mean is NaN: relative to it, all values would be equal.
    """
    mean = jnp.nanmean(values)
    return jnp.where(jnp.isinf(mean), jnp.nan, jnp.where(mean == 0, 1.0, mean))


def mean_difference(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the mean of ``|x_i - x_j|`` over all ordered pairs, ``i = j`` included.

    The gap between two neighbors in sorted order lies between as many pairs as there are values
    below it times values above it. Gaps are never negative, so there is no cancellation, as there
    is in the sum of values weighted by rank.
    """
    num_clients = jnp.sum(~jnp.isnan(values))
    below = jnp.arange(1, values.size)
    total, lower = num_clients.astype(values.dtype), below.astype(values.dtype)
    upper = (num_clients - below).astype(values.dtype)
    gaps = jnp.where(below < num_clients, jnp.diff(jnp.sort(values)), 0.0)
    pairs = 2.0 * (lower / total) * (upper / total)
    return jnp.where(num_clients > 0, jnp.sum(pairs * gaps), jnp.nan)
