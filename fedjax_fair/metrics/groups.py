"""How groups of clients fare, where it is known which clients belong together.

Every function takes one number per client and leaves out clients whose number is NaN. Inside a
group every client counts the same, however many examples it has.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics.performance import mean_over_examples

__all__ = ["gap", "highest", "lowest", "means", "sigma_acc"]


def means(
    values: Float[Array, " clients"], groups: Int[Array, " clients"], num_groups: int
) -> Float[Array, " groups"]:
    """Mean over the clients of each group.

    Args:
        values: One number per client, NaN to leave a client out.
        groups: Group of each client, in ``[0, num_groups)``.
        num_groups: Number of groups.

    Returns:
        The means, in the unit of ``values``; NaN for a group of which no client is left.

    Examples:
        >>> means(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2]), 3).tolist()
        [0.75, nan, 0.25]
    """
    known = ~jnp.isnan(values)
    total = jax.ops.segment_sum(jnp.where(known, values, 0), groups, num_groups)
    return total / jax.ops.segment_sum(known.astype(values.dtype), groups, num_groups)


def lowest(values: Float[Array, " clients"], groups: Int[Array, " clients"]) -> Float[Array, ""]:
    """Smallest mean of a group: the group served worst, if values are accuracies.

    Args:
        values: One number per client, NaN to leave a client out.
        groups: Group of each client, in ``[0, clients)``.

    Returns:
        The mean, in the unit of ``values``; NaN if no client is left.

    Examples:
        >>> lowest(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2])).item()
        0.25
    """
    return jnp.nanmin(means(values, groups, values.size))


def highest(values: Float[Array, " clients"], groups: Int[Array, " clients"]) -> Float[Array, ""]:
    """Largest mean of a group; the mirror of `lowest`.

    Args:
        values: One number per client, NaN to leave a client out.
        groups: Group of each client, in ``[0, clients)``.

    Returns:
        The mean, in the unit of ``values``; NaN if no client is left.

    Examples:
        >>> highest(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2])).item()
        0.75
    """
    return jnp.nanmax(means(values, groups, values.size))


def gap(values: Float[Array, " clients"], groups: Int[Array, " clients"]) -> Float[Array, ""]:
    """Difference between the largest and the smallest mean of a group.

    Shows what belonging to one group rather than another is worth; hides all differences inside
    the groups.

    Args:
        values: One number per client, NaN to leave a client out.
        groups: Group of each client, in ``[0, clients)``.

    Returns:
        The difference, at least 0, in the unit of ``values``; NaN if no client is left.

    Examples:
        >>> gap(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2])).item()
        0.5
    """
    return highest(values, groups) - lowest(values, groups)


def sigma_acc(
    accuracy: Float[Array, " clients"],
    sizes: Int[Array, " clients"],
    groups: Int[Array, " clients"],
) -> Float[Array, ""]:
    """Root mean square distance of the clients' groups from the accuracy on the pooled examples.

    What `fairness.sigma_acc` would be if every client were tested on all examples of its group.
    Shows differences between groups without the noise of small test sets; hides those inside
    groups.

    Args:
        accuracy: Test accuracy of each client, NaN to leave a client out.
        sizes: Test examples of each client.
        groups: Group of each client, in ``[0, clients)``.

    Returns:
        The distance, at least 0, in the unit of ``accuracy``. Every client counts the same.

    References:
        *Equitable Federated Learning with Activation Clustering*, sigma_Acc.

    Examples:
        >>> accuracy = jnp.array([1.0, 0.5, 0.25, 0.25])
        >>> sigma_acc(accuracy, jnp.full(4, 10), jnp.array([0, 0, 1, 1])).item()
        0.25
    """
    of_group = means(accuracy, groups, accuracy.size)[groups]
    own = jnp.where(jnp.isnan(accuracy), jnp.nan, of_group)
    return jnp.sqrt(jnp.nanmean((own - mean_over_examples(accuracy, sizes)) ** 2))
