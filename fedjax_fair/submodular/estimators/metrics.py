"""Similarities of the rows of a matrix, by the name of a metric."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array
from sklearn.neighbors import NearestNeighbors

from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.utils import checks

KERNELS = ("cosine", "correlation", "rbf")
"""Metrics whose similarity matrices are positive semi-definite."""

# The squared distances of such rows are finite in single precision.
_MAX_DIFFERENCE = 1e17

METRICS = ("euclidean", "sqeuclidean", *KERNELS)


def prepared(rows: Float[np.ndarray, "n width"], metric: str) -> Float[np.ndarray, "n width"]:
    """Returns rows in single precision whose Euclidean distances determine the metric.

    Raises:
        ValueError: If a row is 0 (cosine) or constant (correlation).
    """
    if metric not in ("cosine", "correlation"):
        # Far from the origin rows are not distinct in single precision. Differences from a row,
        # unlike those from the mean, are exact for integers.
        rows = rows - rows[0]
        if not (largest := np.abs(rows).max()) <= _MAX_DIFFERENCE:
            expected = f"differences of rows up to {_MAX_DIFFERENCE:g}"
            raise ValueError(f"X: expected {expected}, got {largest:g}; scale the features.")
        return rows.astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    if metric == "correlation":
        rows = rows - rows.mean(axis=1, keepdims=True)
    centered = np.linalg.norm(rows, axis=1)
    flat = np.flatnonzero(centered <= 1e-12 * lengths)
    if flat.size:
        what = "0" if metric == "cosine" else "constant"
        raise ValueError(
            f"X: row {flat[0]} is {what}, and has no {metric} with other rows; remove it, or use "
            "metric='euclidean'."
        )
    return (rows / centered[:, None]).astype(np.float32)


def similarities(rows: Any, metric: str) -> Any:
    """Returns the similarities, >= 0, of all pairs of `prepared` rows.

    Args:
        rows: Rows, ``[n, width]``; similarities, returned as they are, if they are precomputed.
        metric: Distances and squared distances are subtracted from the largest one; ``cosine`` and
            ``correlation`` are ``(1 + r) / 2``; ``rbf`` is ``exp(-d**2 / width)``.
    """
    if metric == "precomputed":
        return rows
    return _of_distances(pairwise_distances(rows), metric, rows.shape[1], jnp)


def neighbor_similarities(rows: Float[np.ndarray, "n width"], metric: str, count: int) -> Any:
    """Returns similarities of `prepared` rows to themselves and ``count`` neighbors, sparse.

    Raises:
        ValueError: If there are not ``count`` other rows.
    """
    size = rows.shape[0]
    checks.positive_int("n_neighbors", count)
    if count >= size:
        raise ValueError(
            f"n_neighbors={count}: expected fewer than n_samples={size}; lower it, or pass None "
            "for all."
        )
    distances, others = NearestNeighbors(n_neighbors=count).fit(rows).kneighbors()
    near = _of_distances(np.hstack([np.zeros((size, 1)), distances]), metric, rows.shape[1], np)
    places = np.hstack([np.arange(size)[:, None], others]).ravel()
    starts = np.arange(size + 1) * (count + 1)
    return csr_array((near.ravel(), places, starts), shape=(size, size))


def _of_distances(distances: Any, metric: str, width: int, numpy: Any) -> Any:
    """Converts distances to similarities by NumPy or ``jax.numpy``."""
    squares = distances**2
    if metric == "rbf":
        return numpy.exp(-squares / width)
    if metric in KERNELS:
        return numpy.maximum(1 - squares / 4, 0)
    apart = distances if metric == "euclidean" else squares
    return numpy.max(apart) - apart
