"""Rows that represent a data set, as estimators of scikit-learn."""

from fedjax_fair.submodular.estimators.of_features import FeatureBased, MaxCoverage
from fedjax_fair.submodular.estimators.of_similarities import (
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
