"""Estimators of functions of features, which are amounts rather than coordinates."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from fedjax_fair.submodular import coverage
from fedjax_fair.submodular.arrays import as_mask, as_non_negative
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.coverage import Concave, as_weights
from fedjax_fair.submodular.estimators.base import BaseSubsetSelector

__all__ = ["FeatureBased", "MaxCoverage"]


class _OfFeatures(BaseSubsetSelector):
    weights: ArrayLike | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


class FeatureBased(_OfFeatures):
    """Selects ``k`` rows with much of many features, as ``submodular.FeatureBased``.

    Args:
        k: Rows to select.
        concave: ``"sqrt"``, ``"log1p"``, or any concave increasing function of an array of JAX.
        weights: Weight of each feature, ``[features]``, >= 0; by default 1.
        verbose: Whether to show on standard error how far it is.

    Attributes:
        ranking_: Indices, ``[k]``, best first.
        gains_: The marginal gain of each.
        n_items_: Number of items there were.

    Examples:
        >>> import numpy as np
        >>> FeatureBased(2).fit(np.array([[4.0, 0.0], [0.0, 3.0], [5.0, 0.0]])).ranking_
        array([2, 1], dtype=int32)
    """

    def __init__(
        self,
        k: int,
        concave: str | Concave = "sqrt",
        weights: ArrayLike | None = None,
        verbose: bool = False,
    ):
        self.k = k
        self.concave = concave
        self.weights = weights
        self.verbose = verbose

    def _function(self, values: NDArray[Any]) -> SetFunction:
        features = as_non_negative("X", values, "items features")
        weights = as_weights(self.weights, features.shape[1], "features")
        return coverage.FeatureBased(features, self.concave, weights)


class MaxCoverage(_OfFeatures):
    """Selects ``k`` rows that together have as many features as possible, as ``submodular.Coverage``.

    Args:
        k: Rows to select.
        weights: Weight of each feature, ``[features]``, >= 0; by default 1.
        verbose: Whether to show on standard error how far it is.

    Attributes:
        ranking_: Indices, ``[k]``, best first.
        gains_: The marginal gain of each.
        n_items_: Number of items there were.

    Examples:
        >>> import numpy as np
        >>> MaxCoverage(2).fit(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])).ranking_
        array([0, 2], dtype=int32)
    """

    def __init__(self, k: int, weights: ArrayLike | None = None, verbose: bool = False):
        self.k = k
        self.weights = weights
        self.verbose = verbose

    def _function(self, values: NDArray[Any]) -> SetFunction:
        covers = as_mask("X", values)
        return coverage.Coverage(covers, as_weights(self.weights, covers.shape[1], "features"))
