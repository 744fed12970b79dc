"""Estimators of functions of features, which are amounts rather than coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike, NDArray

from fedjax_fair.submodular import coverage
from fedjax_fair.submodular.checked_arrays import as_mask, as_non_negative
from fedjax_fair.submodular.coverage import Concave
from fedjax_fair.submodular.estimators.base_estimator import BaseSubsetSelector
from fedjax_fair.submodular.set_function import SetFunction

__all__ = ["FeatureBased", "MaxCoverage"]


class _FeatureSelector(BaseSubsetSelector):
    weights: ArrayLike | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def _weights(self, values: NDArray[Any]) -> Any:
        if self.weights is None:
            return None
        return as_non_negative("weights", self.weights, "features", values.shape[1])


@dataclass(eq=False, repr=False)
class FeatureBased(_FeatureSelector):
    """Selects ``k`` rows with large amounts of many features, as ``submodular.FeatureBased``.

    Args:
        k: Number of rows.
        concave: ``"sqrt"``, ``"log1p"``, or a concave increasing function of a JAX array.
        weights: Weight of each feature, ``[features]``, >= 0; by default 1.
        verbose: Shows a progress bar.

    Examples:
        >>> import numpy as np
        >>> FeatureBased(2).fit(np.array([[4.0, 0.0], [0.0, 3.0], [5.0, 0.0]])).ranking_
        array([2, 1], dtype=int32)
    """

    k: int
    concave: str | Concave = "sqrt"
    weights: ArrayLike | None = None
    verbose: bool = False

    def _function(self, values: NDArray[Any]) -> SetFunction:
        features = as_non_negative("X", values, "items features")
        return coverage.FeatureBased(features, self.concave, self._weights(values))


@dataclass(eq=False, repr=False)
class MaxCoverage(_FeatureSelector):
    """Selects ``k`` rows that together have as many features as possible: `submodular.Coverage`.

    Args:
        k: Number of rows.
        weights: Weight of each feature, ``[features]``, >= 0; by default 1.
        verbose: Shows a progress bar.

    Examples:
        >>> import numpy as np
        >>> MaxCoverage(2).fit(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])).ranking_
        array([0, 2], dtype=int32)
    """

    k: int
    weights: ArrayLike | None = None
    verbose: bool = False

    def _function(self, values: NDArray[Any]) -> SetFunction:
        return coverage.Coverage(as_mask("X", values), self._weights(values))
