"""Submodular functions and their maximizers, independent of the rest of the package.

An argument that is not of the stated shape or range raises a ``ValueError`` with its name before
compilation; ``Raises`` lists other reasons. Traced values are not checked.
"""

from fedjax_fair.submodular.combinators import Restricted, Scaled, Sum, Truncated
from fedjax_fair.submodular.coverage import (
    Coverage,
    FeatureBased,
    ProbabilisticCoverage,
    SaturatedCoverage,
    saturated_coverage,
)
from fedjax_fair.submodular.disparity import DisparityMin, DisparitySum
from fedjax_fair.submodular.facility_location import (
    FacilityLocation,
    facility_location,
    facility_location_from_distances,
)
from fedjax_fair.submodular.facility_location_from_features import facility_location_from_features
from fedjax_fair.submodular.graph_cut import GraphCut, SparseGraphCut, graph_cut
from fedjax_fair.submodular.greedi import greedi
from fedjax_fair.submodular.greedy import greedy, lazy_greedy
from fedjax_fair.submodular.information import (
    ConditionalGain,
    ConditionalMutualInformation,
    MutualInformation,
)
from fedjax_fair.submodular.local_search import best_swap, distorted_greedy
from fedjax_fair.submodular.log_det import LogDet
from fedjax_fair.submodular.modular import Modular, truncated_modular, union_penalty
from fedjax_fair.submodular.non_monotone import double_greedy, random_greedy
from fedjax_fair.submodular.partial_enumeration import partial_enumeration
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.submodular.sieve_streaming import sieve_batches, sieve_streaming
from fedjax_fair.submodular.sparse import SparseSimilarity, sparse_similarity
from fedjax_fair.submodular.sparse_functions import (
    SparseFacilityLocation,
    SparseSaturatedCoverage,
)
from fedjax_fair.submodular.stochastic_greedy import stochastic_greedy
from fedjax_fair.submodular.threshold_greedy import threshold_greedy

__all__ = [
    "ConditionalGain",
    "ConditionalMutualInformation",
    "Coverage",
    "DisparityMin",
    "DisparitySum",
    "FacilityLocation",
    "FeatureBased",
    "GraphCut",
    "LogDet",
    "MaximizationResult",
    "Modular",
    "MutualInformation",
    "ProbabilisticCoverage",
    "Restricted",
    "SaturatedCoverage",
    "Scaled",
    "SetFunction",
    "SparseFacilityLocation",
    "SparseGraphCut",
    "SparseSaturatedCoverage",
    "SparseSimilarity",
    "Sum",
    "Truncated",
    "best_swap",
    "distorted_greedy",
    "double_greedy",
    "facility_location",
    "facility_location_from_distances",
    "facility_location_from_features",
    "graph_cut",
    "greedi",
    "greedy",
    "lazy_greedy",
    "partial_enumeration",
    "random_greedy",
    "saturated_coverage",
    "sieve_batches",
    "sieve_streaming",
    "sparse_similarity",
    "stochastic_greedy",
    "threshold_greedy",
    "truncated_modular",
    "union_penalty",
]
