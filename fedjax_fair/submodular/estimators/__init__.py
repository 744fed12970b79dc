"""Estimators in the style of scikit-learn that select the rows that represent a data set.

A fitted estimator has ``ranking_``, the selected indices, ``[k]``, best first; ``gains_``, the
marginal gain of each; and ``n_items_``, the number of items.
"""

from fedjax_fair.submodular.estimators.features import FeatureBased, MaxCoverage
from fedjax_fair.submodular.estimators.similarities import (
    FacilityLocation,
    GraphCut,
    LogDet,
    SaturatedCoverage,
)

__all__ = [
    "FacilityLocation",
    "FeatureBased",
    "GraphCut",
    "LogDet",
    "MaxCoverage",
    "SaturatedCoverage",
]
