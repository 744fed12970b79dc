"""Estimators in the style of scikit-learn that select the rows that represent a data set."""

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
