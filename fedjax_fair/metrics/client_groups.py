"""Metrics of groups of clients, such as ground-truth clusters.

All functions take one value per client and its group, an id below the number of clients. They
ignore NaN and return NaN if no client is left. Within a group all clients count equally.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics.performance import mean_over_examples

__all__ = ["gap", "lowest", "means", "sigma_acc"]


def means(
    values: Float[Array, " clients"], groups: Int[Array, " clients"], num_groups: int
) -> Float[Array, " groups"]:
    """Computes the mean over the clients of each group.

    Args:
        values: One value per client.
        groups: Group of each client, in ``[0, num_groups)``.
        num_groups: Number of groups.

    Returns:
        The means, in the unit of ``values``; NaN for a group without clients.

    Examples:
        >>> means(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2]), 3).tolist()
        [0.75, nan, 0.25]
    """
    measured = ~jnp.isnan(values)
    total = jax.ops.segment_sum(jnp.where(measured, values, 0), groups, num_groups)
    return total / jax.ops.segment_sum(measured.astype(values.dtype), groups, num_groups)


def lowest(values: Float[Array, " clients"], groups: Int[Array, " clients"]) -> Float[Array, ""]:
    """Computes the smallest group mean: the worst group, if values are accuracies.

    Examples:
        >>> lowest(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2])).item()
        0.25
    """
    return jnp.nanmin(means(values, groups, values.size))


def gap(values: Float[Array, " clients"], groups: Int[Array, " clients"]) -> Float[Array, ""]:
    """Computes the difference between the largest and the smallest group mean.

    Use: the effect of group membership. Limitation: ignores differences within groups.

    Examples:
        >>> gap(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2])).item()
        0.5
    """
    group_means = means(values, groups, values.size)
    return jnp.nanmax(group_means) - jnp.nanmin(group_means)


def sigma_acc(
    accuracy: Float[Array, " clients"],
    sizes: Int[Array, " clients"],
    groups: Int[Array, " clients"],
) -> Float[Array, ""]:
    """Computes `fairness.sigma_acc` with each client's accuracy replaced by its group's mean.

    Use: differences between groups, with less noise of small test sets. Limitation: ignores
    differences within groups.

    References:
        *Equitable Federated Learning with Activation Clustering*, sigma_Acc.

    Examples:
        >>> accuracy = jnp.array([1.0, 0.5, 0.25, 0.25])
        >>> sigma_acc(accuracy, jnp.full(4, 10), jnp.array([0, 0, 1, 1])).item()
        0.25
    """
    group_means = means(accuracy, groups, accuracy.size)[groups]
    smoothed = jnp.where(jnp.isnan(accuracy), jnp.nan, group_means)
    return jnp.sqrt(jnp.nanmean((smoothed - mean_over_examples(accuracy, sizes)) ** 2))
