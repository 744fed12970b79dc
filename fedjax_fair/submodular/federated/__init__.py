"""Sums of private submodular functions, maximized by a server that sees only aggregates.

References:
    Rafiey, *Decomposable Submodular Maximization in Federated Setting*, ICML 2024
"""

from fedjax_fair.numerics.secure_sum import SecureAggregation
from fedjax_fair.submodular.federated.centralized_baselines import (
    centralized_continuous_greedy,
    centralized_greedy,
    random_base,
    top_singletons,
)
from fedjax_fair.submodular.federated.custom import custom
from fedjax_fair.submodular.federated.discrete_greedy import (
    discrete_greedy,
    kappa_for_responses,
    sufficient_kappa,
)
from fedjax_fair.submodular.federated.facility_location_of_clients import (
    FacilityLocation,
    facility_location,
)
from fedjax_fair.submodular.federated.feature_selection import feature_selection
from fedjax_fair.submodular.federated.fedcg import fedcg
from fedjax_fair.submodular.federated.fedcg_plus import fedcg_plus
from fedjax_fair.submodular.federated.importance_factors import importance_factors
from fedjax_fair.submodular.federated.max_coverage import max_coverage
from fedjax_fair.submodular.federated.problem import (
    ClientFunction,
    DenseProblem,
    Extensions,
    Gains,
    Problem,
)
from fedjax_fair.submodular.federated.public_projects import combinatorial_public_projects
from fedjax_fair.submodular.federated.secure import Messages, Protocol, secure_aggregate
from fedjax_fair.submodular.federated.sparse_scores import SparseScores, sparse_scores
from fedjax_fair.submodular.federated.trajectory import (
    Communication,
    ContinuousRun,
    GreedyRun,
    to_dataset,
)
from fedjax_fair.submodular.federated.welfare import Welfare

__all__ = [
    "ClientFunction",
    "Communication",
    "ContinuousRun",
    "DenseProblem",
    "Extensions",
    "FacilityLocation",
    "Gains",
    "GreedyRun",
    "Messages",
    "Problem",
    "Protocol",
    "SecureAggregation",
    "SparseScores",
    "Welfare",
    "centralized_continuous_greedy",
    "centralized_greedy",
    "combinatorial_public_projects",
    "custom",
    "discrete_greedy",
    "facility_location",
    "feature_selection",
    "fedcg",
    "fedcg_plus",
    "importance_factors",
    "kappa_for_responses",
    "max_coverage",
    "random_base",
    "secure_aggregate",
    "sparse_scores",
    "sufficient_kappa",
    "to_dataset",
    "top_singletons",
]
