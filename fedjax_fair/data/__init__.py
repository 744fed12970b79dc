"""Federations: who owns which examples, and where the examples come from."""

from fedjax_fair.data.class_partition import (
    PLANTED,
    Cluster,
    classes_per_client,
    deal_test,
    planted_clusters,
)
from fedjax_fair.data.federated import (
    ClientExamples,
    FederatedData,
    federate,
    from_arrays,
    from_npz,
    validate,
)
from fedjax_fair.data.partition import (
    Partition,
    Partitioner,
    by_column,
    dirichlet,
    explicit,
    iid,
    quantity_skew,
    shards,
)

__all__ = [
    "PLANTED",
    "ClientExamples",
    "Cluster",
    "FederatedData",
    "Partition",
    "Partitioner",
    "by_column",
    "classes_per_client",
    "deal_test",
    "dirichlet",
    "explicit",
    "federate",
    "from_arrays",
    "from_npz",
    "iid",
    "planted_clusters",
    "quantity_skew",
    "shards",
    "validate",
]
