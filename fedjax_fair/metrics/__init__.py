"""Metrics of accuracy, fairness and communication, and statistics to compare runs.

`SUMMARIES` are part of every evaluation, `CLIENT_GROUP_SUMMARIES` additional ones where
ground-truth groups of clients are known, `SEQUENCE_SUMMARIES` where examples have sequences of
labels, `CENTRAL_SUMMARIES` those of a central test set, and `SENSITIVE_GROUP_SUMMARIES` those of
data with sensitive features. `predictions` has metrics on request, `thresholds` makes rates of
sensitive groups equal after training, `local_global_thresholds` at each client and over all people,
`paired` compares runs, `speed` has metrics of virtual time, and `noise` estimates the effect of
finite test sets.

Examples:
    >>> from fedjax_fair.metrics import SUMMARIES
    >>> [metric.name for metric in SUMMARIES if metric.weighting == "examples"]
    ['accuracy_mean_examples', 'test_loss_mean_examples', 'train_loss_mean_examples']
"""

from fedjax_fair.metrics import (
    class_based,
    client_groups,
    clustering,
    communication,
    fairness,
    group_fairness,
    local_global_thresholds,
    noise,
    paired,
    performance,
    predictions,
    quantities,
    speed,
    thresholds,
)
from fedjax_fair.metrics.clustering import adjusted_rand_index, normalized_mutual_information
from fedjax_fair.metrics.communication import bytes_per_round
from fedjax_fair.metrics.sensitive_group_metrics import SENSITIVE_GROUP_SUMMARIES
from fedjax_fair.metrics.summaries import (
    ALL_SUMMARIES,
    BY_NAME,
    CENTRAL_SUMMARIES,
    CLIENT_GROUP_SUMMARIES,
    COMPARED,
    OF_TESTS,
    SEQUENCE_SUMMARIES,
    SUMMARIES,
    central_summaries,
    summaries_of,
)

__all__ = [
    "ALL_SUMMARIES",
    "BY_NAME",
    "CENTRAL_SUMMARIES",
    "CLIENT_GROUP_SUMMARIES",
    "COMPARED",
    "OF_TESTS",
    "SENSITIVE_GROUP_SUMMARIES",
    "SEQUENCE_SUMMARIES",
    "SUMMARIES",
    "adjusted_rand_index",
    "bytes_per_round",
    "central_summaries",
    "class_based",
    "client_groups",
    "clustering",
    "communication",
    "fairness",
    "group_fairness",
    "local_global_thresholds",
    "noise",
    "normalized_mutual_information",
    "paired",
    "performance",
    "predictions",
    "quantities",
    "speed",
    "summaries_of",
    "thresholds",
]
