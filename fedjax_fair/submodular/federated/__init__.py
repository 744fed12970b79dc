"""Sums of private submodular functions, maximised by a server that sees only aggregates."""

from fedjax_fair.submodular.federated.custom import custom
from fedjax_fair.submodular.federated.facility_location import facility_location
from fedjax_fair.submodular.federated.feature_selection import feature_selection
from fedjax_fair.submodular.federated.max_coverage import max_coverage
from fedjax_fair.submodular.federated.problem import ClientFunction, Gains, Problem
from fedjax_fair.submodular.federated.public_projects import combinatorial_public_projects
from fedjax_fair.submodular.federated.secure import Messages, secure_aggregate
from fedjax_fair.submodular.federated.sparse import SparseScores, sparse_scores
from fedjax_fair.submodular.federated.welfare import welfare

__all__ = [
    "ClientFunction",
    "Gains",
    "Messages",
    "Problem",
    "SparseScores",
    "combinatorial_public_projects",
    "custom",
    "facility_location",
    "feature_selection",
    "max_coverage",
    "secure_aggregate",
    "sparse_scores",
    "welfare",
]
