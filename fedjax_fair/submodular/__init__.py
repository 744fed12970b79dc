"""Submodular functions and how to maximize them, usable on their own."""

from importlib import import_module
from typing import TYPE_CHECKING

from fedjax_fair.submodular.base import Maximized, SetFunction
from fedjax_fair.submodular.combinators import restricted, scaled, sum_of, truncated
from fedjax_fair.submodular.coverage import (
    coverage,
    feature_based,
    probabilistic_coverage,
    saturated_coverage,
)
from fedjax_fair.submodular.disparity import disparity_min, disparity_sum
from fedjax_fair.submodular.diversity import graph_cut, log_det
from fedjax_fair.submodular.facility_location import (
    facility_location,
    facility_location_from_distances,
    facility_location_from_features,
)
from fedjax_fair.submodular.greedi import greedi
from fedjax_fair.submodular.greedy import greedy, lazy_greedy
from fedjax_fair.submodular.information import (
    conditional_gain,
    conditional_mutual_information,
    mutual_information,
)
from fedjax_fair.submodular.modular import modular, truncated_modular, union_penalty
from fedjax_fair.submodular.non_monotone import double_greedy, random_greedy
from fedjax_fair.submodular.partial_enumeration import partial_enumeration
from fedjax_fair.submodular.refine import best_swap, distorted_greedy
from fedjax_fair.submodular.sieve_streaming import sieve_batches, sieve_streaming
from fedjax_fair.submodular.sparse import SparseSimilarity, sparse_similarity
from fedjax_fair.submodular.stochastic_greedy import stochastic_greedy
from fedjax_fair.submodular.threshold_greedy import threshold_greedy

if TYPE_CHECKING:
    from fedjax_fair.submodular.estimators import (
        FacilityLocation,
        FeatureBased,
        GraphCut,
        LogDet,
        MaxCoverage,
        SaturatedCoverage,
    )

__all__ = [
    "FacilityLocation",
    "FeatureBased",
    "GraphCut",
    "LogDet",
    "MaxCoverage",
    "Maximized",
    "SaturatedCoverage",
    "SetFunction",
    "SparseSimilarity",
    "best_swap",
    "conditional_gain",
    "conditional_mutual_information",
    "coverage",
    "disparity_min",
    "disparity_sum",
    "distorted_greedy",
    "double_greedy",
    "facility_location",
    "facility_location_from_distances",
    "facility_location_from_features",
    "feature_based",
    "graph_cut",
    "greedi",
    "greedy",
    "lazy_greedy",
    "log_det",
    "modular",
    "mutual_information",
    "partial_enumeration",
    "probabilistic_coverage",
    "random_greedy",
    "restricted",
    "saturated_coverage",
    "scaled",
    "sieve_batches",
    "sieve_streaming",
    "sparse_similarity",
    "stochastic_greedy",
    "sum_of",
    "threshold_greedy",
    "truncated",
    "truncated_modular",
    "union_penalty",
]


def __getattr__(name: str) -> object:
    """Imports the estimators, the only ones that need scikit-learn, when one is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.estimators"), name)
