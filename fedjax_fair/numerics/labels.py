"""Sums over the labels of examples, which have one label each or a sequence with a mask.

Integer labels ``[examples, length]`` are sequences. `MASKED_LABEL` marks places that do not count,
such as padding.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

__all__ = [
    "MASKED_LABEL",
    "are_sequences",
    "check_one_label",
    "count_labels",
    "mean_over_labels",
    "mean_per_example",
    "sum_labels",
]

MASKED_LABEL = -1
"""Label of a place that counts in no loss and in no metric."""


# Losses of a model return one value per label, and the sums here leave masked ones out, so that a
# custom loss need not know about masks. Dtype and shape tell sequences, so that compiled functions
# of other datasets do not change.
def are_sequences(labels: Any) -> bool:
    """Returns whether each example has a sequence of labels, from their shape and dtype."""
    return labels.ndim > 1 and np.issubdtype(labels.dtype, np.integer)


def check_one_label(labels: Any, reason: str) -> None:
    """Checks that each example has one label, for methods of group fairness.

    Raises:
        ValueError: If it has several, with the reason.
    """
    if labels.ndim > 1:
        raise ValueError(
            f"labels {list(labels.shape[1:])} of an example: expected one class, as {reason}; use "
            "labels of shape [examples]."
        )


def count_labels(labels: Shaped[Array, "batch ..."]) -> Int[Array, " batch"] | None:
    """Counts the labels of each example that are not masked; None if each example has one label.

    Examples:
        >>> count_labels(jnp.array([[0, 1, -1], [2, -1, -1]])).tolist()
        [2, 1]
    """
    if not are_sequences(labels):
        return None
    return jnp.sum(labels != MASKED_LABEL, axis=1, dtype=jnp.int32)


def sum_labels(
    values: Float[Array, "batch ..."], labels: Shaped[Array, "batch ..."]
) -> Float[Array, " batch"]:
    """Sums a value of each label over the labels of each example that are not masked.

    Masked places at the end change no bit of the sums.

    Examples:
        >>> sum_labels(jnp.ones((2, 3)), jnp.array([[0, 1, -1], [2, -1, -1]])).tolist()
        [2.0, 1.0]
        >>> sum_labels(jnp.ones(2), jnp.array([0, 1])).tolist()
        [1.0, 1.0]
    """
    if not are_sequences(labels):
        return values
    return _sum_in_halves(jnp.where(labels != MASKED_LABEL, values, 0))


def mean_per_example(
    values: Float[Array, "batch ..."], labels: Shaped[Array, "batch ..."]
) -> Float[Array, " batch"]:
    """Averages a value of each label over the labels of each example that are not masked.

    Examples:
        >>> labels = jnp.array([[0, 1, -1], [2, -1, -1]])
        >>> mean_per_example(jnp.array([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]]), labels).tolist()
        [1.5, 4.0]
    """
    counts = count_labels(labels)
    return values if counts is None else sum_labels(values, labels) / counts.astype(values.dtype)


def mean_over_labels(
    values: Float[Array, "batch ..."],
    labels: Shaped[Array, "batch ..."],
    mask: Bool[Array, " batch"],
) -> Float[Array, ""]:
    """Averages a value of each label over the labels of the examples in ``mask``.

    Examples:
        >>> labels = jnp.array([[0, 1], [2, -1], [0, 0]])
        >>> values = jnp.array([[1.0, 2.0], [6.0, 9.0], [9.0, 9.0]])
        >>> mean_over_labels(values, labels, jnp.array([True, True, False])).item()
        3.0
    """
    counts = count_labels(labels)
    if counts is None:
        total = jnp.sum(mask, dtype=values.dtype)
    else:
        total = jnp.sum(counts, where=mask).astype(values.dtype)
    return jnp.sum(sum_labels(values, labels), where=mask) / total


# The order of additions in a reduction depends on its length, so that padding would change bits.
# Halves of a length that is a power of two are independent of zeros at the end.
@jax.custom_jvp
def _sum_in_halves(values: Float[Array, "batch length"]) -> Float[Array, " batch"]:
    """Sums the last axis; the order of additions does not depend on zeros at its end."""
    length = values.shape[1]
    half = 1 << (length - 1).bit_length()
    values = jnp.pad(values, ((0, 0), (0, half - length)))
    while half > 1:
        half //= 2
        values = values[:, :half] + values[:, half:]
    return values[:, 0]


# The derivative of the additions would be as many paddings.
@_sum_in_halves.defjvp
def _(primals, tangents):
    return _sum_in_halves(*primals), jnp.sum(*tangents, axis=1)
