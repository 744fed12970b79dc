"""Models, roles and the containers that they exchange."""

from fedjax_fair.roles.context import (
    Client,
    ClientGradients,
    Cohort,
    Context,
    Info,
    LocalResult,
    ServerView,
    Timing,
)
from fedjax_fair.roles.interfaces import (
    Aggregation,
    Aggregator,
    FaultContext,
    Faults,
    Sampling,
    Selector,
    Solver,
)
from fedjax_fair.roles.metric import (
    LABEL_UNIT,
    PERSONALIZED,
    ClientMetric,
    ClientMetrics,
    GroupSums,
    Metric,
    Predictions,
    QuantityValues,
)
from fedjax_fair.roles.model import Model, Task, Variables, is_correct, top_class
from fedjax_fair.utils.tree import Integer, Number, setting

__all__ = [
    "LABEL_UNIT",
    "PERSONALIZED",
    "Aggregation",
    "Aggregator",
    "Client",
    "ClientGradients",
    "ClientMetric",
    "ClientMetrics",
    "Cohort",
    "Context",
    "FaultContext",
    "Faults",
    "GroupSums",
    "Info",
    "Integer",
    "LocalResult",
    "Metric",
    "Model",
    "Number",
    "Predictions",
    "QuantityValues",
    "Sampling",
    "Selector",
    "ServerView",
    "Solver",
    "Task",
    "Timing",
    "Variables",
    "is_correct",
    "setting",
    "top_class",
]
