"""Federated datasets: examples, their partition over clients, and sources of data."""

from fedjax_fair.data.arrays import federate, from_arrays, with_central_test
from fedjax_fair.data.bias_description import describe_bias
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.device_layout import on_device
from fedjax_fair.data.federated import FederatedData, stack, validate
from fedjax_fair.data.federated_tables import from_table
from fedjax_fair.data.label_changes import flip_labels, inject_label_bias
from fedjax_fair.data.npz_layouts import from_npz
from fedjax_fair.data.partitions.biased import biased
from fedjax_fair.data.partitions.class_partition import (
    PLANTED,
    Cluster,
    classes_per_client,
    planted_clusters,
    split_test,
)
from fedjax_fair.data.partitions.dirichlet import dirichlet
from fedjax_fair.data.partitions.partition import (
    assign_by_owner,
    by_column,
    from_indices,
    iid,
    natural,
    quantity_skew,
    shards,
)
from fedjax_fair.data.partitions.partitioner import BiasRequest, Partition, Partitioner
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.data.sources.census_survey import acs
from fedjax_fair.data.sources.logistic import synthetic
from fedjax_fair.data.sources.named_sources import (
    SOURCES,
    Description,
    available,
    describe,
    get_source,
    load,
    prepare,
)
from fedjax_fair.data.sources.shakespeare import read_roles
from fedjax_fair.data.sources.source import Examples, Info, Source, Splits
from fedjax_fair.data.tables.table_encoding import TableEncoding
from fedjax_fair.data.text.leaf import from_leaf
from fedjax_fair.data.text.windows import characters, decode_text, encode_text, from_text
from fedjax_fair.data.text.words import count_words
from fedjax_fair.data.transforms import concatenate, hold_out, hold_out_clients

__all__ = [
    "PLANTED",
    "SOURCES",
    "BiasRequest",
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
    "acs",
    "assign_by_owner",
    "available",
    "biased",
    "by_column",
    "characters",
    "classes_per_client",
    "concatenate",
    "count_words",
    "decode_text",
    "describe",
    "describe_bias",
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
    "inject_label_bias",
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
    "with_central_test",
]
