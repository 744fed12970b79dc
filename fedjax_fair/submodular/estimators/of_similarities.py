"""Estimators of functions that are made of similarities between rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedjax_fair import checks
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.submodular import diversity
from fedjax_fair.submodular.arrays import as_non_negative, as_symmetric
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.coverage import saturated_coverage
from fedjax_fair.submodular.diversity import as_kernel, graph_cut
from fedjax_fair.submodular.estimators.base import BaseSubsetSelector
from fedjax_fair.submodular.estimators.metrics import (
    KERNELS,
    METRICS,
    neighbor_similarities,
    prepared,
    similarities,
)
from fedjax_fair.submodular.facility_location import (
    facility_location,
    facility_location_from_distances,
    facility_location_from_features,
)
from fedjax_fair.submodular.sparse import SparseSimilarity, is_sparse, sparse_similarity
from fedjax_fair.submodular.sparse_functions import check_symmetric
from fedjax_fair.tree import Number

__all__ = ["FacilityLocation", "GraphCut", "LogDet", "SaturatedCoverage"]

Metric = str | Callable[[NDArray[Any]], ArrayLike]

# Items up to which a matrix of all distances is made: 400 MB of them.
_MATRIX = 10_000


class _OfSimilarities(BaseSubsetSelector):
    metric: Metric
    n_neighbors: int | None = None
    _metrics: tuple[str, ...] = METRICS
    _takes_lists = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    def _check(self, similarity: ArrayLike) -> Array:
        """The similarities, if they suit the function."""
        raise NotImplementedError

    def _check_lists(self, similarity: SparseSimilarity) -> SparseSimilarity:
        """As ``_check``, of sparse ones."""
        return similarity

    def _neighbors(self, rows: NDArray[Any], metric: str, count: int) -> Any:
        return neighbor_similarities(rows, metric, count)

    def _rows(self, values: Any) -> tuple[Any, str]:
        """Rows or similarities, and the metric that applies to them."""
        metric = self.metric
        if not callable(metric):
            checks.one_of("metric", metric, (*self._metrics, "precomputed"))
            if metric != "precomputed":
                rows = prepared(values, metric)
                if self.n_neighbors is None:
                    return rows, metric
                near = self._neighbors(rows, metric, self.n_neighbors)
                return sparse_similarity(near), "precomputed"
        if self.n_neighbors is not None:
            raise ValueError(
                f"n_neighbors={self.n_neighbors}: expected None beside {metric=}; similarities "
                "that are given may be sparse."
            )
        given = metric(values) if callable(metric) else values
        if self._takes_lists and is_sparse(given):
            return self._check_lists(sparse_similarity(given, "X")), "precomputed"
        return self._check(given), "precomputed"


class FacilityLocation(_OfSimilarities):
    """Selects ``k`` rows such that all rows are similar to one of them: facility location.

    Of ``"euclidean"`` distances and their squares the reduction is maximized, as in
    ``facility_location_from_distances``; more than 10,000 rows with ``"euclidean"`` need no matrix
    of all distances. Fitting again with data of the same shape does not compile again.

    Args:
        k: Rows to select.
        metric: ``"euclidean"``, ``"sqeuclidean"``, ``"cosine"`` or ``"correlation"`` (both as
            ``(1 + r) / 2``), ``"rbf"`` (``exp(-distance**2 / features)``), ``"precomputed"`` for
            similarities (``[points, items]``, >= 0), of which items are selected, or a function from
            ``X`` to such similarities. Where these are sparse they stay so.
        n_neighbors: How many other rows each row is similar to: the nearest ones. Its similarity
            to all others is 0, and no matrix of all of them is made. Distances are then subtracted
            from the largest one between neighbors. None is for all other rows.
        verbose: Whether to show on standard error how far it is.

    Attributes:
        ranking_: Indices, ``[k]``, best first.
        gains_: The marginal gain of each.
        n_items_: Number of items there were.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> FacilityLocation(2).fit(line).ranking_
        array([1, 2], dtype=int32)
        >>> FacilityLocation(2).fit(line, sample_weight=[0, 0, 1, 3]).ranking_
        array([3, 2], dtype=int32)
    """

    def __init__(
        self,
        k: int,
        metric: Metric = "euclidean",
        n_neighbors: int | None = None,
        verbose: bool = False,
    ):
        self.k = k
        self.metric = metric
        self.n_neighbors = n_neighbors
        self.verbose = verbose

    def fit(
        self, X: Any, y: object = None, sample_weight: ArrayLike | None = None
    ) -> BaseSubsetSelector:
        """Selects the rows.

        Args:
            X: As for all estimators: items ``[items, features]``, or similarities
                ``[points, items]``; dense or sparse.
            y: Ignored.
            sample_weight: How much it counts that each row of ``X`` is represented, >= 0 and not
                all 0; by default 1.

        Returns:
            Itself.

        Raises:
            ValueError: If a setting is out of range, ``k`` exceeds the items, or ``X`` does not
                suit the function.
        """
        values = self._validated(X)
        weights = sample_weight
        if weights is not None:
            weights = as_non_negative("sample_weight", weights, "points")
            if weights.shape[0] != values.shape[0]:
                raise ValueError(
                    f"sample_weight: expected {values.shape[0]} weights, got {weights.shape[0]}."
                )
            if not np.asarray(weights).any():
                raise ValueError("sample_weight: expected a weight above zero, got only zeros.")
        return self._select(_facility_location(*self._rows(values), weights))

    def _check(self, similarity: ArrayLike) -> Array:
        return as_non_negative("X", similarity, "points items")


@partial(jax.jit, static_argnums=1)
def _facility_location(rows: Any, metric: str, weights: Array | None) -> SetFunction:
    if metric == "euclidean" and rows.shape[0] > _MATRIX:
        return facility_location_from_features(rows, weights=weights)
    if metric == "euclidean":
        return facility_location_from_distances(pairwise_distances(rows), weights)
    if metric == "sqeuclidean":
        return facility_location_from_distances(pairwise_distances(rows) ** 2, weights)
    return facility_location(similarities(rows, metric), weights)


class SaturatedCoverage(_OfSimilarities):
    """Selects ``k`` rows to which every row is similar enough in sum: saturated coverage.

    Args:
        k: Rows to select.
        saturation: The share of a row's similarity to all rows beyond which it counts no more,
            >= 0.
        metric: As for ``FacilityLocation``, where distances are subtracted from the largest one.
        n_neighbors: As for ``FacilityLocation``.
        verbose: Whether to show on standard error how far it is.

    Attributes:
        ranking_: Indices, ``[k]``, best first.
        gains_: The marginal gain of each.
        n_items_: Number of items there were.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> SaturatedCoverage(2, saturation=0.3).fit(line).ranking_
        array([1, 2], dtype=int32)
    """

    def __init__(
        self,
        k: int,
        saturation: float = 0.1,
        metric: Metric = "euclidean",
        n_neighbors: int | None = None,
        verbose: bool = False,
    ):
        self.k = k
        self.saturation = saturation
        self.metric = metric
        self.n_neighbors = n_neighbors
        self.verbose = verbose

    def _function(self, values: Any) -> SetFunction:
        checks.non_negative("saturation", self.saturation)
        return _saturated_coverage(*self._rows(values), self.saturation)

    def _check(self, similarity: ArrayLike) -> Array:
        return as_non_negative("X", similarity, "points items")


@partial(jax.jit, static_argnums=1)
def _saturated_coverage(rows: Any, metric: str, saturation: Number) -> SetFunction:
    return saturated_coverage(similarities(rows, metric), saturation)


class GraphCut(_OfSimilarities):
    """Selects ``k`` rows that are similar to all rows but not to each other: graph cut.

    Args:
        k: Rows to select.
        tradeoff: Weight of the similarity to all rows against that within the set, >= 0. Greedy has
            a guarantee from 2 on, where the function is monotone.
        metric: As for ``FacilityLocation``, where distances are subtracted from the largest one;
            similarities that are given are symmetric.
        n_neighbors: As for ``FacilityLocation``; two rows are similar if one is among the nearest
            of the other.
        verbose: Whether to show on standard error how far it is.

    Attributes:
        ranking_: Indices, ``[k]``, best first.
        gains_: The marginal gain of each.
        n_items_: Number of items there were.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> GraphCut(2).fit(line).ranking_
        array([1, 2], dtype=int32)
    """

    def __init__(
        self,
        k: int,
        tradeoff: float = 2.0,
        metric: Metric = "euclidean",
        n_neighbors: int | None = None,
        verbose: bool = False,
    ):
        self.k = k
        self.tradeoff = tradeoff
        self.metric = metric
        self.n_neighbors = n_neighbors
        self.verbose = verbose

    def _function(self, values: Any) -> SetFunction:
        checks.non_negative("tradeoff", self.tradeoff)
        return _graph_cut(*self._rows(values), self.tradeoff)

    def _check(self, similarity: ArrayLike) -> Array:
        return as_symmetric("X", similarity)

    def _check_lists(self, similarity: SparseSimilarity) -> SparseSimilarity:
        check_symmetric("X", similarity)
        return similarity

    def _neighbors(self, rows: NDArray[Any], metric: str, count: int) -> Any:
        near = neighbor_similarities(rows, metric, count)
        return near.maximum(near.T)


@partial(jax.jit, static_argnums=1)
def _graph_cut(rows: Any, metric: str, tradeoff: Number) -> SetFunction:
    return graph_cut(similarities(rows, metric), tradeoff)


class LogDet(_OfSimilarities):
    """Selects ``k`` rows that differ, as ``submodular.LogDet``.

    Args:
        k: Rows to select.
        metric: ``"rbf"``, ``"cosine"``, ``"correlation"``, ``"precomputed"`` or a function, as for
            ``FacilityLocation``; a matrix that is given is positive semi-definite.
        verbose: Whether to show on standard error how far it is.

    Attributes:
        ranking_: Indices, ``[k]``, best first.
        gains_: The marginal gain of each.
        n_items_: Number of items there were.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [0.1], [10.0], [10.1]])
        >>> LogDet(2).fit(line).ranking_
        array([0, 2], dtype=int32)
    """

    _metrics = KERNELS
    _takes_lists = False

    def __init__(self, k: int, metric: Metric = "rbf", verbose: bool = False):
        self.k = k
        self.metric = metric
        self.verbose = verbose

    def _function(self, values: Any) -> SetFunction:
        return _log_det(*self._rows(values))

    def _check(self, similarity: ArrayLike) -> Array:
        return as_kernel("X", similarity)


@partial(jax.jit, static_argnums=1)
def _log_det(rows: Array, metric: str) -> SetFunction:
    return diversity.LogDet(similarities(rows, metric))
