"""Agreement of two groupings, such as estimated clusters and ground-truth groups.

Labels are arbitrary integers; entries with a negative label in either grouping are ignored. If no
entry is left the result is NaN. Memory and time are of order ``n log n``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

__all__ = ["adjusted_rand_index", "normalized_mutual_information"]


def normalized_mutual_information(
    estimated: Int[Array, " n"], truth: Int[Array, " n"]
) -> Float[Array, ""]:
    """Computes the mutual information of two groupings divided by their mean entropy.

    Use: how well one grouping predicts the other. Limitation: does not distinguish split from
    merged groups; positive by chance, increasingly with the number of groups (see
    `adjusted_rand_index`).

    Returns:
        A value in ``[0, 1]``: 1 for equal groupings up to names (also two single groups), 0 for
        independent ones (also if only one grouping is a single group).

    Examples:
        >>> estimated, truth = jnp.array([1, 1, 0, 0, -1]), jnp.array([7, 7, 9, 9, 9])
        >>> jax.jit(normalized_mutual_information)(estimated, truth).item()
        1.0
    """
    counted = (estimated >= 0) & (truth >= 0)
    separate = _entropy(counted, estimated) + _entropy(counted, truth)
    divisor = jnp.where(separate > 0, separate, 1.0)
    shared = jnp.clip(2.0 - 2.0 * _entropy(counted, estimated, truth) / divisor, 0.0, 1.0)
    return jnp.where(counted.any(), jnp.where(separate > 0, shared, 1.0), jnp.nan)


def adjusted_rand_index(estimated: Int[Array, " n"], truth: Int[Array, " n"]) -> Float[Array, ""]:
    """Computes the share of pairs on which two groupings agree, corrected for chance.

    Use: agreement with mean 0 for random groups of any number. Limitation: small groups have few
    pairs and hardly count.

    Returns:
        A value in ``[-0.5, 1]``: 1 for equal groupings up to names, 0 on average for random ones.

    References:
        Hubert, Arabie, *Comparing Partitions*, Journal of Classification, 1985

    Examples:
        >>> estimated, truth = jnp.array([0, 0, 1, 1]), jnp.array([0, 0, 1, 2])
        >>> print(f"{jax.jit(adjusted_rand_index)(estimated, truth):.4f}")
        0.5714
    """
    counted = (estimated >= 0) & (truth >= 0)
    num = jnp.sum(counted).astype(jnp.float32)
    in_estimated, in_truth = _sizes(counted, estimated), _sizes(counted, truth)
    in_both = _sizes(counted, estimated, truth)

    def pairs(partners):
        """Returns ordered pairs as a share of ``num ** 2``."""
        return jnp.sum(jnp.where(counted, partners / num, 0.0)) / num

    # All terms are non-negative integers, so that only one difference below loses digits.
    together, apart = pairs(in_both - 1.0), pairs(num - in_estimated - in_truth + in_both)
    only_estimated, only_truth = pairs(in_estimated - in_both), pairs(in_truth - in_both)
    above = 2.0 * (together * apart - only_estimated * only_truth)
    below = (together + only_truth) * (only_truth + apart)
    below += (together + only_estimated) * (only_estimated + apart)
    index = jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 1.0)
    return jnp.where(counted.any(), index, jnp.nan)


def _entropy(counted: Bool[Array, " n"], *labels: Int[Array, " n"]) -> Float[Array, ""]:
    """Computes the entropy of the joint labels, in nats."""
    _, sizes = _groups(counted, *labels)
    num = jnp.sum(sizes)
    # `log1p` is accurate for shares near 1, `log` for small ones.
    large = sizes > num / 2
    log_shares = jnp.where(
        large,
        jnp.log1p(jnp.where(large, (sizes - num) / num, 0.0)),
        jnp.log(jnp.maximum(sizes, 1.0) / jnp.maximum(num, 1.0)),
    )
    return -jnp.sum(sizes * log_shares) / jnp.maximum(num, 1.0)


def _sizes(counted: Bool[Array, " n"], *labels: Int[Array, " n"]) -> Float[Array, " n"]:
    """Returns the number of counted entries that share all labels of each entry."""
    groups, sizes = _groups(counted, *labels)
    return sizes[groups]


def _groups(
    counted: Bool[Array, " n"], *labels: Int[Array, " n"]
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """Returns consecutive ids of the groups that share all labels, and their counted sizes."""
    order = jnp.lexsort(labels)
    changes = [jnp.diff(label[order], prepend=label[order[:1]]) != 0 for label in labels]
    groups = jnp.zeros_like(order).at[order].set(jnp.cumsum(jnp.stack(changes).any(axis=0)))
    return groups, jax.ops.segment_sum(counted.astype(jnp.float32), groups, counted.shape[0])
