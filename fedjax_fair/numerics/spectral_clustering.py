"""Clustering in compiled functions: spectral embedding, k-means, and weights of clusters."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_fair.numerics.products import product
from fedjax_fair.utils import checks

__all__ = ["KMeans", "cluster_weights", "eigengap", "kmeans", "spectral_embedding"]

_MAX_STEPS = 300
# Relative to squared lengths: rounding error of squared distances from float32 products.
_ROUNDING = 1e-6
# Relative to the inertia: moves with smaller gains make a search of 1,000 points ten times longer.
_MIN_GAIN = 1e-4


class KMeans(NamedTuple):
    """Clusters of points.

    Attributes:
        labels: Cluster of each point, -1 for a masked point.
        centers: Mean of each cluster; for an empty one, the mean of all points.
        inertia: Sum of the squared distances of points to their centers.
        steps: Number of steps of the best restart.
    """

    labels: Int[Array, " n"]
    centers: Float[Array, "clusters width"]
    inertia: Float[Array, ""]
    steps: Int[Array, ""]


@partial(jax.jit, static_argnums=1)
def spectral_embedding(
    similarity: Float[Array, "n n"], num_clusters: int
) -> Float[Array, "n clusters"]:
    """Returns the eigenvectors of the largest eigenvalues, one row per point.

    Args:
        similarity: A symmetric, finite matrix.
        num_clusters: Number of columns, at most the number of points.

    Returns:
        Orthonormal columns, by descending eigenvalue, whose entry of largest magnitude is positive;
        zero for eigenvalues below 1e-6 of the largest, because these would be arbitrary.

    Examples:
        >>> groups = jnp.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        >>> print(spectral_embedding(groups, 2).round(2))
        [[0.71 0.  ]
         [0.71 0.  ]
         [0.   1.  ]]
    """
    checks.positive_int("num_clusters", num_clusters, at_most=similarity.shape[0])
    values, vectors = jnp.linalg.eigh(similarity)
    is_positive = values > _ROUNDING * values[-1]
    top = jnp.where(is_positive[None], vectors, 0.0)[:, ::-1][:, :num_clusters]
    peaks = jnp.take_along_axis(top, jnp.argmax(jnp.abs(top), axis=0, keepdims=True), axis=0)
    return jnp.where(peaks < 0, -top, top)


@partial(jax.jit, static_argnums=1)
def eigengap(similarity: Float[Array, "n n"], at_most: int) -> Int[Array, ""]:
    """Returns the number of clusters, >= 2, after which the ratio of eigenvalues is largest.

    The first eigenvalue of similarities of one sign always exceeds the others. Eigenvalues below
    1 % of the second count as equal.

    Args:
        similarity: A symmetric, finite matrix of inner products. Negative eigenvalues, due to
            rounding, count as zero.
        at_most: Largest result, >= 2; it may exceed the number of points.

    Returns:
        The smallest of equally good integers.

    Examples:
        >>> eigengap(jnp.diag(jnp.array([90.0, 8.0, 4.0, 0.5])), 3).item()
        3
    """
    if not checks.is_int(at_most) or at_most < 2:
        raise ValueError(f"{at_most=}: expected an integer >= 2.")
    values = jnp.maximum(jnp.linalg.eigvalsh(similarity)[::-1], 0.0)
    missing = max(at_most + 1 - similarity.shape[0], 0)
    values = jnp.pad(values, (0, missing))[: at_most + 1]
    values = values[1:] + 0.01 * jnp.where(values[1] > 0, values[1], 1.0)
    return (2 + jnp.argmax(values[:-1] / values[1:])).astype(jnp.int32)


def kmeans(
    key: Key[Array, ""],
    points: Float[Array, "n width"],
    num_clusters: int,
    restarts: int = 10,
    *,
    active: int | Int[Array, ""] | None = None,
    mask: Bool[Array, " n"] | None = None,
) -> KMeans:
    """Runs k-means with greedy k-means++ initialization, the best of several restarts.

    Lloyd's steps move every point to the nearest mean. If no point moves, the single move with the
    largest decrease of the inertia (Hartigan) is made if it exceeds one part in 10,000. With up to
    10,000 points, clusters thus remain empty only if there are fewer distinct points. A restart
    ends when no point moves, or after 300 steps. Squared distances are exact to about 1e-6 of those
    from the mean of all points, so that closer groups are not split.

    Args:
        key: Random key of the initialization.
        points: One point per row, finite where the mask is true.
        num_clusters: Number of clusters; may exceed the number of points.
        restarts: Number of restarts, positive.
        active: Number of clusters used, in ``[1, num_clusters]``, all by default; may be traced.
        mask: True for points to be clustered, all by default.

    Returns:
        The clusters of the first restart with the smallest inertia.

    References:
        Arthur, Vassilvitskii, *k-means++: The Advantages of Careful Seeding*, SODA 2007 (each seed
        is the best of ``2 + floor(log(num_clusters))`` draws, as in their experiments).
        Hartigan, *Clustering Algorithms*, 1975 (single moves).

    Examples:
        >>> points = jnp.array([[0.0], [1.0], [9.0], [10.0]])
        >>> clusters = kmeans(jax.random.key(0), points, 2)
        >>> sorted(clusters.centers[:, 0].tolist()), clusters.inertia.item()
        ([0.5, 9.5], 1.0)
    """
    checks.positive_int("num_clusters", num_clusters)
    checks.positive_int("restarts", restarts)
    active = num_clusters if active is None else active
    checks.integer("active", active, at_most=num_clusters)
    return _kmeans(key, points, active, mask, num_clusters, restarts)


@partial(jax.jit, static_argnums=(4, 5))
def _kmeans(
    key: Key[Array, ""],
    points: Float[Array, "n width"],
    active: int | Int[Array, ""],
    mask: Bool[Array, " n"] | None,
    num_clusters: int,
    restarts: int,
) -> KMeans:
    used = jnp.arange(num_clusters, dtype=jnp.int32) < active
    valid = jnp.ones(points.shape[0], bool) if mask is None else mask

    centered, mean = _Points.of(points, valid)
    keys = jax.random.split(key, restarts)
    seeds = jax.vmap(lambda key: _seeds(key, centered, num_clusters))(keys)
    # Sequentially: in parallel, all searches would continue until the slowest ends.
    runs = jax.lax.map(lambda seeds: _search(centered, used, seeds), seeds)
    first = jnp.argmin(runs.inertia)
    best = jax.tree.map(lambda leaf: leaf[first], runs)
    return KMeans(best.labels, best.centers + mean[None], best.inertia, best.steps)


@partial(jax.jit, static_argnums=1)
def cluster_weights(labels: Int[Array, " n"], num_clusters: int) -> Float[Array, " n"]:
    """Returns equal weights of clusters, and of the points in a cluster; they sum to 1.

    Args:
        labels: Cluster of each point, in ``[0, num_clusters)``; -1 for weight zero.
        num_clusters: Number of clusters, some of which may be empty.

    Returns:
        ``1 / (C' * size of the cluster)``, with ``C'`` the number of non-empty clusters. Uniform if
        all labels are -1.

    Examples:
        >>> cluster_weights(jnp.array([0, 0, 2, -1]), 3).tolist()
        [0.25, 0.25, 0.5, 0.0]
    """
    checks.positive_int("num_clusters", num_clusters)
    valid = labels >= 0
    sizes = jax.ops.segment_sum(valid.astype(jnp.int32), labels, num_clusters)
    shared = jnp.sum(sizes > 0) * sizes[labels]
    weights = jnp.where(valid, 1.0 / jnp.maximum(shared, 1).astype(jnp.float32), 0.0)
    return jnp.where(valid.any(), weights, jnp.float32(1 / labels.shape[0]))


class _Points(NamedTuple):
    """Centered points, zero where masked, and their squared lengths."""

    rows: Float[Array, "n width"]
    squares: Float[Array, " n"]
    valid: Bool[Array, " n"]

    @classmethod
    def of(cls, rows: Float[Array, "n width"], valid: Bool[Array, " n"]) -> tuple[_Points, Array]:
        rows = jnp.where(valid[:, None], rows, 0.0)
        mean = jnp.sum(rows, axis=0) / jnp.maximum(jnp.sum(valid), 1).astype(rows.dtype)
        centered = jnp.where(valid[:, None], rows - mean[None], 0.0)
        # Equal points differ from their mean by rounding, which must not make them distinct.
        squares = jnp.sum(centered**2, axis=1)
        is_distinct = squares > _ROUNDING**2 * jnp.sum(rows**2, axis=1)
        centered = jnp.where(is_distinct[:, None], centered, 0.0)
        return cls(centered, jnp.where(is_distinct, squares, 0.0), valid), mean

    def squared_distances(self, others: Float[Array, "m width"]) -> Float[Array, "m n"]:
        lengths = jnp.sum(others**2, axis=1)[:, None] + self.squares[None]
        squared = lengths - 2 * product(others, self.rows.T)
        return jnp.where(squared > _ROUNDING * lengths, squared, 0.0)


def _seeds(key: Key[Array, ""], points: _Points, num: int) -> Float[Array, "clusters width"]:
    """Draws greedy k-means++ seeds: each is the best of a few points drawn by squared distance."""
    trials = 2 + int(math.log(num))
    uniform = points.valid.astype(points.rows.dtype)

    def add(nearest, key):
        # Once every distinct point is a seed, all distances are zero.
        drawn = _draw(key, jnp.where((nearest > 0).any(), nearest, uniform), trials)
        nearer = jnp.minimum(nearest[None], points.squared_distances(points.rows[drawn]))
        best = jnp.argmin(jnp.sum(nearer, axis=1))
        return nearer[best], drawn[best]

    keys = jax.random.split(key, num)
    first = _draw(keys[0], uniform, 1)
    nearest = jnp.where(points.valid, points.squared_distances(points.rows[first])[0], 0.0)
    _, others = jax.lax.scan(add, nearest, keys[1:])
    return points.rows[jnp.concatenate([first, others])]


def _draw(key: Key[Array, ""], weights: Float[Array, " n"], times: int) -> Int[Array, " times"]:
    """Draws in proportion to weights, and never where the weight is zero."""
    ends = jnp.where(weights > 0, jnp.cumsum(weights), 0.0)
    positions = jax.random.uniform(key, (times,), weights.dtype) * jnp.max(ends)
    return jnp.argmax(ends[None] > positions[:, None], axis=1)


class _Clusters(NamedTuple):
    """Mean and number of the points of each cluster."""

    centers: Float[Array, "clusters width"]
    sizes: Float[Array, " clusters"]

    @classmethod
    def of(cls, points: _Points, labels: Int[Array, " n"], num: int) -> _Clusters:
        # A product with indicators uses vector units, a segment sum does not.
        members = labels[None] == jnp.arange(num, dtype=jnp.int32)[:, None]
        members = members.astype(points.rows.dtype)
        sizes = jnp.sum(members, axis=1)
        return cls(product(members, points.rows) / jnp.maximum(sizes, 1.0)[:, None], sizes)


class _Search(NamedTuple):
    labels: Int[Array, " n"]
    steps: Int[Array, ""]
    moving: Bool[Array, ""]


def _search(
    points: _Points, used: Bool[Array, " clusters"], seeds: Float[Array, "clusters width"]
) -> KMeans:
    """Alternates Lloyd's steps with single moves if no point moves."""
    num = used.shape[0]

    def nearest(squared):
        return jnp.where(points.valid, jnp.argmin(squared, axis=0).astype(jnp.int32), -1)

    def step(search):
        clusters = _Clusters.of(points, search.labels, num)
        squared = points.squared_distances(clusters.centers)
        squared = jnp.where(clusters.sizes[:, None] > 0, squared, jnp.inf)
        labels = nearest(squared)
        labels = jax.lax.cond(
            (labels == search.labels).all(),
            lambda: _move_one(points, used, labels, squared, clusters.sizes),
            lambda: labels,
        )
        return _Search(labels, search.steps + 1, (labels != search.labels).any())

    to_seeds = jnp.where(used[:, None], points.squared_distances(seeds), jnp.inf)
    start = _Search(nearest(to_seeds), jnp.int32(0), jnp.array(True))
    last = jax.lax.while_loop(lambda s: s.moving & (s.steps < _MAX_STEPS), step, start)
    centers = _Clusters.of(points, last.labels, num).centers
    residuals = jnp.where(points.valid[:, None], points.rows - centers[last.labels], 0.0)
    return KMeans(last.labels, centers, jnp.sum(residuals**2), last.steps)


def _move_one(
    points: _Points,
    used: Bool[Array, " clusters"],
    labels: Int[Array, " n"],
    squared: Float[Array, "clusters n"],
    sizes: Float[Array, " clusters"],
) -> Int[Array, " n"]:
    """Makes the single move with the largest decrease of the inertia, if it is large enough.

    A point contributes ``size / (size - 1)`` times its squared distance to its cluster, and would
    contribute ``size / (size + 1)`` times the distance to another, or 0 if that is empty.
    """
    to_center = jnp.where(points.valid, jnp.min(squared, axis=0), 0.0)
    decrease = to_center * (sizes / jnp.maximum(sizes - 1.0, 1.0))[labels]
    increase = squared * (sizes / (sizes + 1.0))[:, None]
    increase = jnp.where(sizes[:, None] > 0, increase, jnp.where(used, 0.0, jnp.inf)[:, None])
    is_other = jnp.arange(used.shape[0], dtype=jnp.int32)[:, None] != labels[None]
    increase = jnp.where(is_other, increase, jnp.inf)
    gains = jnp.where(points.valid, decrease - jnp.min(increase, axis=0), 0.0)
    point = jnp.argmax(gains)
    min_gain = jnp.maximum(_ROUNDING * points.squares[point], _MIN_GAIN * jnp.sum(to_center))
    target = jnp.argmin(increase[:, point]).astype(jnp.int32)
    return labels.at[point].set(jnp.where(gains[point] > min_gain, target, labels[point]))
