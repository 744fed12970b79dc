"""Estimators of functions of similarities between rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.submodular import log_det
from fedjax_fair.submodular.checked_arrays import as_non_negative, as_symmetric
from fedjax_fair.submodular.coverage import saturated_coverage
from fedjax_fair.submodular.estimators.base_estimator import BaseSubsetSelector
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
)
from fedjax_fair.submodular.facility_location_from_features import facility_location_from_features
from fedjax_fair.submodular.graph_cut import graph_cut
from fedjax_fair.submodular.set_function import SetFunction
from fedjax_fair.submodular.sparse import (
    check_symmetric,
    is_sparse,
    sparse_similarity,
)
from fedjax_fair.utils import checks

__all__ = ["FacilityLocation", "GraphCut", "LogDet", "SaturatedCoverage"]

Metric = str | Callable[[NDArray[Any]], ArrayLike]

# Largest number of items for which a matrix of all distances is made, of 400 MB.
_MATRIX = 10_000


class _SimilaritySelector(BaseSubsetSelector):
    metric: Metric
    n_neighbors: int | None = None
    _metrics: tuple[str, ...] = METRICS
    _keeps_sparse = True
    _is_symmetric = False  # Whether the function needs symmetric similarities.

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    def _check(self, similarity: ArrayLike) -> Array:
        if self._is_symmetric:
            return as_symmetric("X", similarity)
        return as_non_negative("X", similarity, "points items")

    def _rows(self, values: Any) -> tuple[Any, str]:
        """Returns prepared rows and their metric, or similarities and ``"precomputed"``."""
        metric = self.metric
        if not callable(metric):
            checks.one_of("metric", metric, (*self._metrics, "precomputed"))
            if metric != "precomputed":
                rows = prepared(values, metric)
                if self.n_neighbors is None:
                    return rows, metric
                near = neighbor_similarities(rows, metric, self.n_neighbors)
                near = near.maximum(near.T) if self._is_symmetric else near
                return sparse_similarity(near), "precomputed"
        if self.n_neighbors is not None:
            raise ValueError(
                f"n_neighbors={self.n_neighbors}: expected None with {metric=}; pass sparse "
                "similarities instead."
            )
        given = metric(values) if callable(metric) else values
        if self._keeps_sparse and is_sparse(given):
            given = sparse_similarity(given, "X")
            if self._is_symmetric:
                check_symmetric("X", given)
            return given, "precomputed"
        return self._check(given), "precomputed"


@partial(jax.jit, static_argnums=(0, 2))
def _build(make: Callable[..., SetFunction], rows: Any, metric: str, *settings: Any) -> SetFunction:
    return make(similarities(rows, metric), *settings)


@dataclass(eq=False, repr=False)
class FacilityLocation(_SimilaritySelector):
    """Selects ``k`` rows such that every row is similar to one of them: facility location.

    For ``"euclidean"`` and ``"sqeuclidean"`` it maximizes the reduction of distances, as
    ``facility_location_from_distances``; with ``"euclidean"`` more than 10,000 rows need no matrix
    of all distances. Fitting data of the same shape again does not recompile.

    Args:
        k: Number of rows.
        metric: ``"euclidean"``, ``"sqeuclidean"``, ``"cosine"`` or ``"correlation"`` (both as
            ``(1 + r) / 2``), ``"rbf"`` (``exp(-distance**2 / features)``), ``"precomputed"`` for
            similarities, ``[points, items]``, >= 0, dense or sparse, or a function from ``X`` to
            them.
        n_neighbors: Number of nearest other rows to which a row is similar; other similarities are
            0, and no dense matrix is made. None for all rows.
        verbose: Shows a progress bar.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> FacilityLocation(2).fit(line).ranking_
        array([1, 2], dtype=int32)
        >>> FacilityLocation(2).fit(line, sample_weight=[0, 0, 1, 3]).ranking_
        array([3, 2], dtype=int32)
    """

    k: int
    metric: Metric = "euclidean"
    n_neighbors: int | None = None
    verbose: bool = False

    def fit(
        self, X: Any, y: object = None, sample_weight: ArrayLike | None = None
    ) -> BaseSubsetSelector:
        """Selects the rows.

        Args:
            X: As for `BaseSubsetSelector.fit`.
            y: Ignored.
            sample_weight: Weight of each row of ``X`` as one to be represented, >= 0, not all 0; by
                default 1.

        Returns:
            The estimator.

        Raises:
            ValueError: As `BaseSubsetSelector.fit`, or if a weight is invalid.
        """
        values, weights = self._validated(X), sample_weight
        if weights is not None:
            weights = as_non_negative("sample_weight", weights, "weights", values.shape[0])
            if not np.asarray(weights).any():
                raise ValueError(
                    "sample_weight: expected a weight above zero, got only zeros; pass None for "
                    "equal weights."
                )
        return self._select(_facility_location(*self._rows(values), weights))


@partial(jax.jit, static_argnums=1)
def _facility_location(rows: Any, metric: str, weights: Array | None) -> SetFunction:
    if metric == "euclidean" and rows.shape[0] > _MATRIX:
        return facility_location_from_features(rows, weights=weights)
    if metric == "euclidean":
        return facility_location_from_distances(pairwise_distances(rows), weights)
    if metric == "sqeuclidean":
        return facility_location_from_distances(pairwise_distances(rows) ** 2, weights)
    return facility_location(similarities(rows, metric), weights)


@dataclass(eq=False, repr=False)
class SaturatedCoverage(_SimilaritySelector):
    """Selects ``k`` rows whose total similarity to every row is high: saturated coverage.

    Args:
        k: Number of rows.
        saturation: Share of a row's total similarity beyond which it counts no more, >= 0.
        metric: As for ``FacilityLocation``; distances are subtracted from the largest one.
        n_neighbors: As for ``FacilityLocation``.
        verbose: Shows a progress bar.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> SaturatedCoverage(2, saturation=0.3).fit(line).ranking_
        array([1, 2], dtype=int32)
    """

    k: int
    saturation: float = 0.1
    metric: Metric = "euclidean"
    n_neighbors: int | None = None
    verbose: bool = False

    def _function(self, values: Any) -> SetFunction:
        checks.non_negative("saturation", self.saturation)
        return _build(saturated_coverage, *self._rows(values), self.saturation)


@dataclass(eq=False, repr=False)
class GraphCut(_SimilaritySelector):
    """Selects ``k`` rows that are similar to all rows but not to each other: graph cut.

    Args:
        k: Number of rows.
        tradeoff: Weight of the similarity to all rows relative to that within the set, >= 0. Greedy
            has a guarantee from 2 on.
        metric: As for ``SaturatedCoverage``; similarities have to be symmetric.
        n_neighbors: As for ``FacilityLocation``; neighbors are similar in both directions.
        verbose: Shows a progress bar.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> GraphCut(2).fit(line).ranking_
        array([1, 2], dtype=int32)
    """

    _is_symmetric = True

    k: int
    tradeoff: float = 2.0
    metric: Metric = "euclidean"
    n_neighbors: int | None = None
    verbose: bool = False

    def _function(self, values: Any) -> SetFunction:
        checks.non_negative("tradeoff", self.tradeoff)
        return _build(graph_cut, *self._rows(values), self.tradeoff)


@dataclass(eq=False, repr=False)
class LogDet(_SimilaritySelector):
    """Selects ``k`` rows that differ, as ``submodular.LogDet``.

    Args:
        k: Number of rows.
        metric: ``"rbf"``, ``"cosine"``, ``"correlation"``, ``"precomputed"`` or a function, as for
            ``FacilityLocation``; similarities have to be positive semi-definite.
        verbose: Shows a progress bar.

    Examples:
        >>> import numpy as np
        >>> line = np.array([[0.0], [0.1], [10.0], [10.1]])
        >>> LogDet(2).fit(line).ranking_
        array([0, 2], dtype=int32)
    """

    _metrics = KERNELS
    _keeps_sparse = False

    k: int
    metric: Metric = "rbf"
    verbose: bool = False

    def _function(self, values: Any) -> SetFunction:
        return _build(log_det.LogDet, *self._rows(values))

    def _check(self, similarity: ArrayLike) -> Array:
        return log_det.as_kernel("X", similarity)
