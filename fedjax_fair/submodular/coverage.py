"""Coverage functions: weighted, probabilistic, saturated, and concave over sums of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.arrays import as_mask, as_non_negative, as_probabilities
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.sparse import SparseSimilarity, as_sparse, is_sparse
from fedjax_fair.submodular.sparse_functions import saturated_of_lists

__all__ = [
    "CONCAVE",
    "Concave",
    "as_weights",
    "coverage",
    "feature_based",
    "probabilistic_coverage",
    "saturated_coverage",
]

Concave = Callable[[Float[Array, "..."]], Float[Array, "..."]]

CONCAVE: dict[str, Concave] = {"sqrt": jnp.sqrt, "log1p": jnp.log1p}


def as_weights(weights: ArrayLike | None, count: int, of: str) -> Float[Array, " columns"]:
    """The weights of so many topics or features, by default 1, checked."""
    worth = as_non_negative("weights", jnp.ones(count) if weights is None else weights, of)
    if worth.shape[0] != count:
        raise ValueError(f"weights: expected {count} {of}, got {worth.shape[0]}.")
    return worth


def coverage(membership: ArrayLike, weights: ArrayLike | None = None) -> SetFunction:
    """The weight of all topics that at least one item of the set covers: monotone submodular.

    Args:
        membership: Whether each item covers each topic, ``[items, topics]``.
        weights: Weight of each topic, ``[topics]``, >= 0; by default 1.

    Raises:
        ValueError: If shapes do not fit, a membership is not 0 or 1, or a weight is negative.

    Examples:
        >>> membership = jnp.array([[1, 1, 0], [0, 1, 1]], bool)
        >>> function = coverage(membership)
        >>> function.gains(function.add(function.init(), 0)).tolist()
        [0.0, 1.0]
    """
    covers = as_mask("membership", membership)
    if covers.ndim != 2 or 0 in covers.shape:
        raise ValueError(f"membership: expected shape [items, topics], got {covers.shape}.")
    worth = as_weights(weights, covers.shape[1], "topics")
    return SetFunction(
        size=covers.shape[0],
        value=lambda mask: jnp.sum(worth, where=(covers & mask[:, None]).any(axis=0)),
        init=lambda: worth,
        gains=lambda uncovered: product(covers.astype(worth.dtype), uncovered),
        gain=lambda uncovered, item: jnp.sum(uncovered, where=covers[item]),
        add=lambda uncovered, item: jnp.where(covers[item], 0.0, uncovered),
    )


def probabilistic_coverage(
    probabilities: ArrayLike, weights: ArrayLike | None = None
) -> SetFunction:
    r"""``sum_u w_u * (1 - prod_{j in S} (1 - p_ju))``: monotone submodular.

    The expected weight of the topics that at least one item covers, if each item covers each topic
    independently of all others. With probabilities of 0 and 1 it is ``coverage``.

    Args:
        probabilities: That each item covers each topic, ``[items, topics]``, in [0, 1].
        weights: Weight of each topic, ``[topics]``, >= 0; by default 1.

    Raises:
        ValueError: If shapes do not fit, or a number is out of range.

    Examples:
        >>> function = probabilistic_coverage(jnp.array([[0.5, 0.0], [0.5, 1.0]]))
        >>> function.gains(function.add(function.init(), 1)).tolist()[0]
        0.25
    """
    covers = as_probabilities("probabilities", probabilities, "items topics")
    worth = as_weights(weights, covers.shape[1], "topics")
    return SetFunction(
        size=covers.shape[0],
        value=lambda mask: jnp.sum(worth * (1 - jnp.prod(1 - covers, axis=0, where=mask[:, None]))),
        init=lambda: worth,
        gains=lambda uncovered: product(covers, uncovered),
        gain=lambda uncovered, item: jnp.sum(covers[item] * uncovered),
        add=lambda uncovered, item: uncovered * (1 - covers[item]),
    )


def saturated_coverage(
    similarity: ArrayLike | SparseSimilarity | Any, saturation: float | Float[Array, ""]
) -> SetFunction:
    r"""``sum_i min(sum_{j in S} s_ij, saturation * sum_j s_ij)``: monotone submodular.

    Each point contributes its total similarity to the set, capped at a share of its total
    similarity to all items (Lin and Bilmes, ACL 2011).

    Args:
        similarity: Of every point to every item, ``[points, items]``, >= 0; may be sparse, as for
            ``facility_location``.
        saturation: The share, >= 0; may be traced.

    Raises:
        ValueError: If a number is negative or not finite.

    Notes:
        Greedy picks as in double precision where gains differ by more than 1e-6 of the value.

    Examples:
        >>> function = saturated_coverage(jnp.array([[1.0, 1.0], [0.0, 2.0]]), saturation=0.5)
        >>> function.gains(function.init()).tolist()
        [1.0, 2.0]
    """
    checks.non_negative("saturation", saturation)
    if is_sparse(similarity):
        return saturated_of_lists(as_sparse(similarity), saturation)
    matrix = as_non_negative("similarity", similarity, "points items")
    cap = saturation * jnp.sum(matrix, axis=1)

    # Sums of what every point still takes, rather than differences of two totals: these are so much
    # larger than the gains that in single precision they would decide between items.
    return SetFunction(
        size=matrix.shape[1],
        value=lambda mask: jnp.sum(jnp.minimum(product(matrix, mask.astype(matrix.dtype)), cap)),
        init=lambda: cap,
        gains=lambda room: jnp.sum(jnp.minimum(matrix, room[:, None]), axis=0),
        gain=lambda room, item: jnp.sum(jnp.minimum(matrix[:, item], room)),
        add=lambda room, item: jnp.maximum(room - matrix[:, item], 0),
    )


def feature_based(
    features: ArrayLike,
    concave: str | Concave = "sqrt",
    weights: ArrayLike | None = None,
) -> SetFunction:
    r"""``sum_u w_u * concave(sum_{j in S} x_ju)``: monotone submodular.

    Args:
        features: Amount of each feature in each item, ``[items, features]``, >= 0.
        concave: ``"sqrt"``, ``"log1p"``, or any concave increasing function of an array; its value
            at 0 is subtracted.
        weights: Weight of each feature, ``[features]``, >= 0; by default 1.

    Raises:
        ValueError: If a number is negative or not finite, or shapes do not fit.

    Notes:
        As for ``saturated_coverage``, greedy picks as in double precision where gains differ by
        more than 1e-6 of the value.

    Examples:
        >>> function = feature_based(jnp.array([[4.0, 0.0], [0.0, 9.0], [5.0, 0.0]]))
        >>> function.gains(function.add(function.init(), 0)).tolist()[1:]
        [3.0, 1.0]
    """
    if not callable(concave):
        checks.one_of("concave", concave, tuple(CONCAVE))
        concave = CONCAVE[concave]
    amounts = as_non_negative("features", features, "items features")
    worth = as_weights(weights, amounts.shape[1], "features")

    def raised(before, after):
        # Differences feature by feature; that of two totals would be lost in rounding.
        return jnp.sum((concave(after) - concave(before)) * worth, axis=-1)

    nothing = jnp.zeros(amounts.shape[1], amounts.dtype)
    return SetFunction(
        size=amounts.shape[0],
        value=lambda mask: raised(nothing, product(mask.astype(amounts.dtype), amounts)),
        init=lambda: nothing,
        gains=lambda sums: jax.vmap(lambda own: raised(sums, sums + own))(amounts),
        gain=lambda sums, item: raised(sums, sums + amounts[item]),
        add=lambda sums, item: sums + amounts[item],
    )
