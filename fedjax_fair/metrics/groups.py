"""How groups of clients fare, where it is known who belongs together.

Every function takes one number per client and leaves out clients whose number is NaN. Inside a
group every client counts the same, however many examples it has.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["gap", "highest", "lowest", "means"]


def means(
    values: Float[Array, " clients"], groups: Int[Array, " clients"], num_groups: int
) -> Float[Array, " groups"]:
    """Mean over the clients of each group.

    Args:
        values: One number per client, NaN to leave a client out.
        groups: Group of each client, in ``[0, num_groups)``.
        num_groups: Number of groups.

    Returns:
        The means, in the unit of ``values``; NaN for a group of which nobody is left.

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
        The mean, in the unit of ``values``; NaN if nobody is left.

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
        The mean, in the unit of ``values``; NaN if nobody is left.

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
        The difference, at least 0, in the unit of ``values``; NaN if nobody is left.

    Examples:
        >>> gap(jnp.array([1.0, 0.5, 0.25]), jnp.array([0, 0, 2])).item()
        0.5
    """
    return highest(values, groups) - lowest(values, groups)
