"""Models, roles and the containers that they exchange."""

from fedjax_fair.base.context import (
    Client,
    ClientGradients,
    Cohort,
    Context,
    Info,
    LocalResult,
    ServerView,
)
from fedjax_fair.base.metrics import (
    PERSONALIZED,
    ClientMetric,
    ClientMetrics,
    GroupSums,
    Metric,
    Predictions,
)
from fedjax_fair.base.models import Model, Variables, is_correct, top_class
from fedjax_fair.base.roles import (
    Aggregation,
    Aggregator,
    FaultContext,
    Faults,
    Sampling,
    Selector,
    Solver,
)
from fedjax_fair.tree import Integer, Number

__all__ = [
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
    "Sampling",
    "Selector",
    "ServerView",
    "Solver",
    "Variables",
    "is_correct",
    "top_class",
]
