"""Similarities of the rows of a matrix, by the name of a metric."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedjax_fair.numerics.distances import pairwise_distances

__all__ = ["KERNELS", "METRICS", "prepared", "similarities"]

KERNELS = ("cosine", "correlation", "rbf")
"""The metrics whose similarities are a positive semi-definite matrix."""

METRICS = ("euclidean", "sqeuclidean", *KERNELS)


def prepared(rows: Float[np.ndarray, "n width"], metric: str) -> Float[np.ndarray, "n width"]:
    """Rows in single precision whose Euclidean distances determine the metric.

    Raises:
        ValueError: If a row has no direction, which cosine and correlation are about.
    """
    if metric not in ("cosine", "correlation"):
        # Far from the origin single precision would not tell rows apart. Differences from a row are
        # exact for whole numbers, those from the mean are not.
        return (rows - rows[0]).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    if metric == "correlation":
        rows = rows - rows.mean(axis=1, keepdims=True)
    centered = np.linalg.norm(rows, axis=1)
    flat = np.flatnonzero(centered <= 1e-12 * lengths)
    if flat.size:
        what = "0" if metric == "cosine" else "constant"
        raise ValueError(f"X: row {flat[0]} is {what}, and has no {metric} with others.")
    return (rows / centered[:, None]).astype(np.float32)


def similarities(rows: Float[Array, "n width"], metric: str) -> Float[Array, "n items"]:
    """Of all pairs of ``prepared`` rows, >= 0; what is ``"precomputed"`` is left as it is.

    Euclidean distances and their squares are subtracted from the largest of them; ``cosine`` and
    ``correlation`` are ``(1 + r) / 2``; ``rbf`` is ``exp(-d**2 / width)``.
    """
    if metric == "precomputed":
        return rows
    distances = pairwise_distances(rows)
    squares = distances**2
    if metric == "rbf":
        return jnp.exp(-squares / rows.shape[1])
    if metric in KERNELS:
        return jnp.maximum(1 - squares / 4, 0)
    apart = distances if metric == "euclidean" else squares
    return jnp.max(apart) - apart
