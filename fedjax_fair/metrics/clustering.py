"""How well groups that were found agree with groups that were planted.

Labels are arbitrary integers: only which entries share one matters. Entries where either label is
negative are left out; if none is left the answer is NaN. Groups are found by sorting, so a
million entries are no trouble.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

__all__ = ["adjusted_rand_index", "normalized_mutual_information"]


def normalized_mutual_information(
    found: Int[Array, " n"], planted: Int[Array, " n"]
) -> Float[Array, ""]:
    """Mutual information of two groupings over the mean of their entropies.

    Shows how much of one grouping is known from the other; hides whether groups were split or
    merged, and is above 0 by chance, the more so the more groups there are (see
    `adjusted_rand_index`).

    Args:
        found: Group of each entry, -1 to leave it out.
        planted: The same of the other grouping.

    Returns:
        A number in ``[0, 1]``: 1 if the groupings are the same up to names (also where both have
        one group), 0 if they are independent (also where only one of them has one group); NaN if
        no entry is left.

    Examples:
        >>> found, planted = jnp.array([1, 1, 0, 0, -1]), jnp.array([7, 7, 9, 9, 9])
        >>> normalized_mutual_information(found, planted).item()
        1.0
    """
    counted = (found >= 0) & (planted >= 0)
    separate = _entropy(counted, found) + _entropy(counted, planted)
    some = jnp.where(separate > 0, separate, 1.0)
    shared = jnp.clip(2.0 - 2.0 * _entropy(counted, found, planted) / some, 0.0, 1.0)
    return jnp.where(counted.any(), jnp.where(separate > 0, shared, 1.0), jnp.nan)


def adjusted_rand_index(found: Int[Array, " n"], planted: Int[Array, " n"]) -> Float[Array, ""]:
    """Share of the pairs on which two groupings agree, corrected for chance.

    Shows agreement such that random groups score 0 whatever their number; hides small groups,
    which hold few of the pairs.

    Args:
        found: Group of each entry, -1 to leave it out.
        planted: The same of the other grouping.

    Returns:
        A number in ``[-0.5, 1]``: 1 if the groupings are the same up to names, 0 on average over
        random ones; NaN if no entry is left.

    References:
        Hubert, Arabie, *Comparing Partitions*, Journal of Classification, 1985

    Examples:
        >>> found, planted = jnp.array([0, 0, 1, 1]), jnp.array([0, 0, 1, 2])
        >>> print(f"{adjusted_rand_index(found, planted):.4f}")
        0.5714
    """
    counted = (found >= 0) & (planted >= 0)
    num = jnp.sum(counted).astype(jnp.float32)
    of_found, of_planted = _sizes(counted, found), _sizes(counted, planted)
    of_both = _sizes(counted, found, planted)

    def pairs(others):
        """Ordered pairs, given each entry's number of partners, as a share of ``num ** 2``."""
        return jnp.sum(jnp.where(counted, others / num, 0.0)) / num

    # Sums of whole numbers, none negative, so that digits are lost in one difference only.
    together, apart = pairs(of_both - 1.0), pairs(num - of_found - of_planted + of_both)
    only_found, only_planted = pairs(of_found - of_both), pairs(of_planted - of_both)
    above = 2.0 * (together * apart - only_found * only_planted)
    below = (together + only_planted) * (only_planted + apart)
    below += (together + only_found) * (only_found + apart)
    index = jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 1.0)
    return jnp.where(counted.any(), index, jnp.nan)


def _entropy(counted: Bool[Array, " n"], *labels: Int[Array, " n"]) -> Float[Array, ""]:
    """Entropy of the joint labels, nats."""
    _, sizes = _groups(counted, *labels)
    num = jnp.sum(sizes)
    # Each form of the logarithm is accurate where it is used.
    large = sizes > num / 2
    log_shares = jnp.where(
        large,
        jnp.log1p(jnp.where(large, (sizes - num) / num, 0.0)),
        jnp.log(jnp.maximum(sizes, 1.0) / jnp.maximum(num, 1.0)),
    )
    return -jnp.sum(sizes * log_shares) / jnp.maximum(num, 1.0)


def _sizes(counted: Bool[Array, " n"], *labels: Int[Array, " n"]) -> Float[Array, " n"]:
    """How many of those counted share all labels of each entry."""
    groups, sizes = _groups(counted, *labels)
    return sizes[groups]


def _groups(
    counted: Bool[Array, " n"], *labels: Int[Array, " n"]
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """Numbers from 0 for the groups that share all labels, and how many are counted in each."""
    order = jnp.lexsort(labels)
    changes = [jnp.diff(label[order], prepend=label[order[:1]]) != 0 for label in labels]
    groups = jnp.zeros_like(order).at[order].set(jnp.cumsum(jnp.stack(changes).any(axis=0)))
    return groups, jax.ops.segment_sum(counted.astype(jnp.float32), groups, counted.shape[0])
