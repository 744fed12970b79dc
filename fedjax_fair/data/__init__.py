"""Federated datasets: examples, their partition over clients, and sources of data."""

from fedjax_fair.data.arrays import federate, from_arrays, from_npz
from fedjax_fair.data.class_partition import (
    PLANTED,
    Cluster,
    classes_per_client,
    planted_clusters,
    split_test,
)
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.concatenation import concatenate
from fedjax_fair.data.device_layout import on_device
from fedjax_fair.data.dirichlet import dirichlet
from fedjax_fair.data.federated import FederatedData, stack, validate
from fedjax_fair.data.label_flip import flip_labels
from fedjax_fair.data.logistic import synthetic
from fedjax_fair.data.partition import (
    assign_by_owner,
    by_column,
    from_indices,
    iid,
    natural,
    quantity_skew,
    shards,
)
from fedjax_fair.data.partitioner import Partition, Partitioner
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.data.source import Examples, Info, Source, Splits
from fedjax_fair.data.sources import (
    SOURCES,
    Description,
    available,
    describe,
    get_source,
    load,
    prepare,
)
from fedjax_fair.data.speeches import from_leaf, read_roles
from fedjax_fair.data.table_encoding import TableEncoding
from fedjax_fair.data.tables import from_table
from fedjax_fair.data.text import characters, decode_text, encode_text, from_text
from fedjax_fair.data.unseen import hold_out_clients
from fedjax_fair.data.validation import hold_out

__all__ = [
    "PLANTED",
    "SOURCES",
    "ClientExamples",
    "Cluster",
    "Description",
    "Examples",
    "FederatedData",
    "Info",
    "Partition",
    "Partitioner",
    "SensitiveFeature",
    "Source",
    "Splits",
    "TableEncoding",
    "assign_by_owner",
    "available",
    "by_column",
    "characters",
    "classes_per_client",
    "concatenate",
    "decode_text",
    "describe",
    "dirichlet",
    "encode_text",
    "federate",
    "flip_labels",
    "from_arrays",
    "from_indices",
    "from_leaf",
    "from_npz",
    "from_table",
    "from_text",
    "get_source",
    "hold_out",
    "hold_out_clients",
    "iid",
    "load",
    "natural",
    "on_device",
    "planted_clusters",
    "prepare",
    "quantity_skew",
    "read_roles",
    "shards",
    "split_test",
    "stack",
    "synthetic",
    "validate",
]
