"""Representatives of a data set, as an estimator in the manner of scikit-learn."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedjax_fair import checks
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.submodular.base import Maximized
from fedjax_fair.submodular.facility_location import (
    facility_location,
    facility_location_from_distances,
    facility_location_from_features,
)
from fedjax_fair.submodular.greedy import greedy

__all__ = ["FacilityLocation"]

# Items up to which a matrix of all distances is made: 400 MB of them.
_MATRIX = 10_000


class FacilityLocation:
    """Picks ``k`` rows that represent all of them, in the manner of scikit-learn and apricot.

    Greedy facility location, on Euclidean distances or given similarities. Fitting again with data
    of the same shape does not compile again.

    Args:
        k: Rows to pick.
        metric: ``"euclidean"`` for rows of features, ``"precomputed"`` for similarities (``[points,
            items]``, >= 0), of which items are picked.

    Attributes:
        ranking_: Indices, ``[k]``, best first.
        gains_: The marginal gain of each.

    Raises:
        ValueError: If ``k`` is not positive, or (in ``fit``) exceeds the rows.

    Examples:
        >>> line = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> FacilityLocation(2).fit(line).ranking_
        array([1, 2], dtype=int32)
    """

    ranking_: NDArray[np.int32]
    gains_: NDArray[np.floating[Any]]

    def __init__(self, k: int, metric: Literal["euclidean", "precomputed"] = "euclidean"):
        checks.positive_int("k", k)
        checks.one_of("metric", metric, ("euclidean", "precomputed"))
        self.k = k
        self.metric = metric

    def fit(self, X: ArrayLike, y: object = None) -> FacilityLocation:
        """Picks the rows.

        Args:
            X: Features ``[items, width]``, or similarities ``[points, items]``.
            y: Ignored.

        Returns:
            Itself.
        """
        euclidean = self.metric == "euclidean"
        values = np.asarray(X, np.float64 if euclidean else np.float32)
        if values.ndim != 2 or values.size == 0:
            raise ValueError(f"X: expected a matrix, got shape {values.shape}.")
        low, high = values.min(), values.max()
        if not np.isfinite([low, high]).all():
            raise ValueError(f"X: expected finite numbers, got some from {low} to {high}.")
        checks.positive_int("k", self.k, at_most=values.shape[0 if euclidean else 1])
        if euclidean:
            # Far from the origin single precision would not tell rows apart. Differences from a row
            # are exact for whole numbers, those from the mean are not.
            values = values - values[0]
        elif low < 0:
            raise ValueError(f"X: expected similarities >= 0, got {low}.")
        chosen = _rank(values.astype(np.float32), k=self.k, metric=self.metric)
        self.ranking_ = np.asarray(chosen.items)
        self.gains_ = np.asarray(chosen.gains)
        return self

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """The rows picked, in order."""
        return np.asarray(X)[self.ranking_]

    def fit_transform(self, X: ArrayLike, y: object = None) -> NDArray[Any]:
        """Picks rows and returns them."""
        return self.fit(X).transform(X)


@partial(jax.jit, static_argnames=("k", "metric"))
def _rank(values: jax.Array, *, k: int, metric: str) -> Maximized:
    if metric == "precomputed":
        return greedy(facility_location(values), k)
    if values.shape[0] <= _MATRIX:
        return greedy(facility_location_from_distances(pairwise_distances(values)), k)
    return greedy(facility_location_from_features(jnp.asarray(values)), k)
