"""Clustering inside a compiled program: spectral embedding, k-means, and weights of clusters.

Everything has fixed shapes and can be jitted and mapped. What may change from round to round, the
number of clusters and which points count, is a number and a mask.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_fair import checks
from fedjax_fair.numerics.products import product

__all__ = ["KMeans", "cluster_weights", "eigengap", "kmeans", "spectral_embedding"]

_MAX_STEPS = 300
# Of the squared lengths: float32 products leave about this much of a squared distance of zero.
_ROUNDING = 1e-6
# Of the inertia: single moves that gain less would make a search of 1,000 points ten times longer.
_WORTHWHILE = 1e-4


class KMeans(NamedTuple):
    """Clusters of points.

    Attributes:
        labels: Cluster of each point, -1 for a point that does not count.
        centers: Mean of each cluster; for an empty one, the mean of all points.
        inertia: Sum of the squared distances of points to their centers.
        steps: Number of times the best restart moved points, the last time in vain.
    """

    labels: Int[Array, " n"]
    centers: Float[Array, "clusters width"]
    inertia: Float[Array, ""]
    steps: Int[Array, ""]


def spectral_embedding(
    similarity: Float[Array, "n n"], num_clusters: int
) -> Float[Array, "n clusters"]:
    """Eigenvectors of the largest eigenvalues, as one short vector for each point.

    Neither scaled by their eigenvalues nor normalized by rows. In each column the entry of largest
    magnitude is positive. Among equal eigenvalues the basis is arbitrary, but distances between
    rows do not depend on it unless the equality straddles the last column.

    Args:
        similarity: A symmetric, finite matrix. A point whose row and column are zero has the
            embedding zero, as long as ``num_clusters`` eigenvalues are positive.
        num_clusters: Number of columns.

    Returns:
        Orthonormal columns, by descending eigenvalue; zero in place of those whose eigenvalue is
        zero up to rounding, below 1e-6 of the largest, because these would be arbitrary.

    Raises:
        ValueError: If there are fewer points than columns.

    Examples:
        >>> groups = jnp.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        >>> print(spectral_embedding(groups, 2).round(2))
        [[0.71 0.  ]
         [0.71 0.  ]
         [0.   1.  ]]
    """
    checks.positive_int("num_clusters", num_clusters, at_most=similarity.shape[0])
    return _spectral_embedding(similarity, num_clusters)


@partial(jax.jit, static_argnums=1)
def _spectral_embedding(
    similarity: Float[Array, "n n"], num_clusters: int
) -> Float[Array, "n clusters"]:
    values, vectors = jnp.linalg.eigh(similarity)
    kept = values > _ROUNDING * values[-1]
    top = jnp.where(kept[None], vectors, 0.0)[:, ::-1][:, :num_clusters]
    peaks = jnp.take_along_axis(top, jnp.argmax(jnp.abs(top), axis=0, keepdims=True), axis=0)
    return jnp.where(peaks < 0, -top, top)


def eigengap(similarity: Float[Array, "n n"], at_most: int) -> Int[Array, ""]:
    """The number of clusters after which the eigenvalues drop most, by their ratio.

    A heuristic: ``C`` groups make ``C`` large eigenvalues, and differences inside the groups make
    the rest. One cluster is not offered: the first eigenvalue of similarities of one sign exceeds
    all others whether or not there are groups. Eigenvalues below 1 % of the second are not
    distinguished, so groups that differ ten times less than others are not seen.

    Args:
        similarity: A symmetric, finite matrix of inner products. Negative eigenvalues, which come
            from rounding, count as zero, and so do those beyond the last: points whose similarities
            are all zero change nothing.
        at_most: Largest number offered; it may exceed the number of points.

    Returns:
        A number in ``[2, at_most]``, the smallest of equally good ones.

    Raises:
        ValueError: If ``at_most`` is not an integer of at least 2.

    Examples:
        >>> eigengap(jnp.diag(jnp.array([90.0, 8.0, 4.0, 0.5])), 3).item()
        3
    """
    checks.positive_int("at_most", at_most)
    if at_most < 2:
        raise ValueError(f"{at_most=}: expected an integer >= 2.")
    return _eigengap(similarity, at_most)


@partial(jax.jit, static_argnums=1)
def _eigengap(similarity: Float[Array, "n n"], at_most: int) -> Int[Array, ""]:
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
    """k-means from greedy k-means++ seeds, the best of several restarts.

    Lloyd's steps move every point to the nearest mean, the first of equally near ones. When that
    changes nothing, the one point moves whose move lowers the inertia most (Hartigan), if it does
    by more than one part in 10,000, and Lloyd's steps go on. So an empty cluster gets the point
    that is worst off: among up to 10,000 points clusters stay empty only where there are fewer
    different points than clusters. A restart ends when nothing moves, or after 300 steps; of
    equally good restarts the first is taken.

    Squared distances are exact to about 1e-6 of the squared distances from the mean of all points,
    and zero below that: a group whose diameter is less than a thousandth of its distance from that
    mean is not split.

    Args:
        key: Random key, for the seeds.
        points: One point a row, finite where the mask is true.
        num_clusters: Number of clusters; may exceed the number of points.
        restarts: How many times to begin anew.
        active: Number of clusters used, in ``[1, num_clusters]``, all by default; may be traced.
        mask: Which points count, all by default; the others have no influence, whatever they hold.

    Returns:
        The clusters of least inertia.

    Raises:
        ValueError: If a number is not a positive integer, or ``active`` exceeds ``num_clusters``.

    References:
        Arthur, Vassilvitskii, *k-means++: The Advantages of Careful Seeding*, SODA 2007 (here each
        seed is the best of ``2 + floor(log(num_clusters))`` draws, as in their experiments).
        Hartigan, *Clustering Algorithms*, 1975 (single moves).

    Examples:
        >>> points = jnp.array([[0.0], [1.0], [9.0], [10.0]])
        >>> found = kmeans(jax.random.key(0), points, 2)
        >>> sorted(found.centers[:, 0].tolist()), found.inertia.item()
        ([0.5, 9.5], 1.0)
    """
    checks.positive_int("num_clusters", num_clusters)
    checks.positive_int("restarts", restarts)
    if active is None:
        active = num_clusters
    elif not isinstance(active, Tracer):
        checks.positive_int("active", int(active), at_most=num_clusters)
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
    seeds = jax.vmap(lambda key: _seeds(key, centered, num_clusters))(
        jax.random.split(key, restarts)
    )
    # One search after another: side by side all would go on until the slowest ends.
    runs = jax.lax.map(lambda seeds: _search(centered, used, seeds), seeds)
    first = jnp.argmin(runs.inertia)
    best = jax.tree.map(lambda leaf: leaf[first], runs)
    return KMeans(best.labels, best.centers + mean[None], best.inertia, best.steps)


def cluster_weights(labels: Int[Array, " n"], num_clusters: int) -> Float[Array, " n"]:
    """Weights under which every cluster counts the same, and every member of a cluster.

    Args:
        labels: Cluster of each point, in ``[0, num_clusters)``; -1 for one that has no weight.
        num_clusters: Number of clusters, some of which may be empty.

    Returns:
        ``1 / (C' * size of the cluster)``, with ``C'`` the number of clusters that are not empty:
        non-negative, summing to 1. Uniform if all labels are -1.

    Raises:
        ValueError: If ``num_clusters`` is not a positive integer.

    Examples:
        >>> cluster_weights(jnp.array([0, 0, 2, -1]), 3).tolist()
        [0.25, 0.25, 0.5, 0.0]
    """
    checks.positive_int("num_clusters", num_clusters)
    return _cluster_weights(labels, num_clusters)


@partial(jax.jit, static_argnums=1)
def _cluster_weights(labels: Int[Array, " n"], num_clusters: int) -> Float[Array, " n"]:
    valid = labels >= 0
    sizes = jax.ops.segment_sum(valid.astype(jnp.int32), labels, num_clusters)
    shared = jnp.sum(sizes > 0) * sizes[labels]
    weights = jnp.where(valid, 1.0 / jnp.maximum(shared, 1).astype(jnp.float32), 0.0)
    return jnp.where(valid.any(), weights, jnp.float32(1 / labels.shape[0]))


class _Points(NamedTuple):
    """Points less their mean, zero where they do not count; and their squared lengths."""

    rows: Float[Array, "n width"]
    squares: Float[Array, " n"]
    valid: Bool[Array, " n"]

    @classmethod
    def of(cls, rows: Float[Array, "n width"], valid: Bool[Array, " n"]) -> tuple[_Points, Array]:
        rows = jnp.where(valid[:, None], rows, 0.0)
        mean = jnp.sum(rows, axis=0) / jnp.maximum(jnp.sum(valid), 1).astype(rows.dtype)
        centered = jnp.where(valid[:, None], rows - mean[None], 0.0)
        # Of points that are all equal only rounding is left, which must not be distinguished.
        squares = jnp.sum(centered**2, axis=1)
        apart = squares > _ROUNDING**2 * jnp.sum(rows**2, axis=1)
        return cls(
            jnp.where(apart[:, None], centered, 0.0), jnp.where(apart, squares, 0.0), valid
        ), mean

    def squared_distances(self, others: Float[Array, "m width"]) -> Float[Array, "m n"]:
        lengths = jnp.sum(others**2, axis=1)[:, None] + self.squares[None]
        products = product(others, self.rows.T)
        squared = lengths - 2 * products
        return jnp.where(squared > _ROUNDING * lengths, squared, 0.0)


def _seeds(key: Key[Array, ""], points: _Points, num: int) -> Float[Array, "clusters width"]:
    """Greedy k-means++: each seed is the best of a few points drawn by their squared distance."""
    trials = 2 + int(math.log(num))
    anyone = points.valid.astype(points.rows.dtype)

    def add(nearest, key):
        # Once every different point is a seed, no distance is left to draw by.
        drawn = _draw(key, jnp.where((nearest > 0).any(), nearest, anyone), trials)
        nearer = jnp.minimum(nearest[None], points.squared_distances(points.rows[drawn]))
        best = jnp.argmin(jnp.sum(nearer, axis=1))
        return nearer[best], drawn[best]

    keys = jax.random.split(key, num)
    first = _draw(keys[0], anyone, 1)
    nearest = jnp.where(points.valid, points.squared_distances(points.rows[first])[0], 0.0)
    _, others = jax.lax.scan(add, nearest, keys[1:])
    return points.rows[jnp.concatenate([first, others])]


def _draw(key: Key[Array, ""], weights: Float[Array, " n"], times: int) -> Int[Array, " times"]:
    """Draws in proportion to weights, never one without."""
    ends = jnp.where(weights > 0, jnp.cumsum(weights), 0.0)
    places = jax.random.uniform(key, (times,), weights.dtype) * jnp.max(ends)
    return jnp.argmax(ends[None] > places[:, None], axis=1)


class _Clusters(NamedTuple):
    """Sums over the members of each cluster."""

    centers: Float[Array, "clusters width"]
    sizes: Float[Array, " clusters"]

    @classmethod
    def of(cls, points: _Points, labels: Int[Array, " n"], num: int) -> _Clusters:
        # A product with indicators, which uses the vector units as a segment sum does not.
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
    """Moves all points to the nearest mean, and the most profitable single one if none moves."""
    num = used.shape[0]

    def nearest(squared):
        return jnp.where(points.valid, jnp.argmin(squared, axis=0).astype(jnp.int32), -1)

    def step(now):
        clusters = _Clusters.of(points, now.labels, num)
        squared = points.squared_distances(clusters.centers)
        squared = jnp.where(clusters.sizes[:, None] > 0, squared, jnp.inf)
        labels = nearest(squared)
        labels = jax.lax.cond(
            (labels == now.labels).all(),
            lambda: _move_one(points, used, labels, squared, clusters.sizes),
            lambda: labels,
        )
        return _Search(labels, now.steps + 1, (labels != now.labels).any())

    to_seeds = jnp.where(used[:, None], points.squared_distances(seeds), jnp.inf)
    start = _Search(nearest(to_seeds), jnp.int32(0), jnp.array(True))
    last = jax.lax.while_loop(lambda now: now.moving & (now.steps < _MAX_STEPS), step, start)
    centers = _Clusters.of(points, last.labels, num).centers
    apart = jnp.where(points.valid[:, None], points.rows - centers[last.labels], 0.0)
    return KMeans(last.labels, centers, jnp.sum(apart**2), last.steps)


def _move_one(
    points: _Points,
    used: Bool[Array, " clusters"],
    labels: Int[Array, " n"],
    squared: Float[Array, "clusters n"],
    sizes: Float[Array, " clusters"],
) -> Int[Array, " n"]:
    """Labels once that point has moved whose move lowers the inertia most, if one is worth it.

    Without a point its cluster is better by ``size / (size - 1)`` times its squared distance; with
    it another one is worse by ``size / (size + 1)`` times that. An empty cluster costs nothing.
    """
    own = jnp.where(points.valid, jnp.min(squared, axis=0), 0.0)
    without = own * (sizes / jnp.maximum(sizes - 1.0, 1.0))[labels]
    within = squared * (sizes / (sizes + 1.0))[:, None]
    within = jnp.where(sizes[:, None] > 0, within, jnp.where(used, 0.0, jnp.inf)[:, None])
    elsewhere = jnp.arange(used.shape[0], dtype=jnp.int32)[:, None] != labels[None]
    within = jnp.where(elsewhere, within, jnp.inf)
    gains = jnp.where(points.valid, without - jnp.min(within, axis=0), 0.0)
    point = jnp.argmax(gains)
    min_gain = jnp.maximum(_ROUNDING * points.squares[point], _WORTHWHILE * jnp.sum(own))
    target = jnp.argmin(within[:, point]).astype(jnp.int32)
    return labels.at[point].set(jnp.where(gains[point] > min_gain, target, labels[point]))
