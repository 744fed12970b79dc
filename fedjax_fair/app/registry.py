"""Methods, networks, partitions, faults and communication by name.

An entry names a class or function. Its settings, types and defaults are read from its signature
(`fedjax_fair.app.signatures`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedjax_fair import aggregators, communication, data, faults, models, selectors, solvers
from fedjax_fair.app import plugins
from fedjax_fair.app.method import Method
from fedjax_fair.base import Model
from fedjax_fair.data import Partitioner
from fedjax_fair.training import Centralized

__all__ = ["COMMUNICATION", "FAULTS", "METHODS", "MODELS", "PARTITIONERS", "role_classes"]


def _mean_by_mixture() -> aggregators.Mean:
    return aggregators.Mean("selector")


def _uniform_mean() -> aggregators.Mean:
    return aggregators.Mean("uniform")


_STEPS, _RATE = {"local_steps": "steps"}, {"learning_rate": "learning_rate"}
_EVERYWHERE = "SGD on the pooled examples of all clients, as a reference"

METHODS: dict[str, Method] = {
    "fedavg": Method("FedAvg: random clients, local SGD, averaged models (McMahan et al., 2017)"),
    "power_of_choice": Method(selector=selectors.PowerOfChoice, weighting="uniform"),
    "divfl": Method(selector=selectors.DivFL),
    "subtrunc": Method(selector=selectors.SubTrunc, weighting="uniform"),
    "unionfl": Method(selector=selectors.UnionFL, weighting="uniform"),
    "clustered_by_size": Method(selector=selectors.ClusteredBySize, weighting="uniform"),
    "clustered_by_similarity": Method(
        selector=selectors.ClusteredBySimilarity, weighting="uniform"
    ),
    "full": Method(selector=selectors.Full),
    "round_robin": Method(selector=selectors.RoundRobin),
    "agnostic": Method(selector=selectors.Agnostic, aggregator=_mean_by_mixture),
    "drfa": Method(selector=selectors.DRFA, aggregator=_uniform_mean, from_solver=_STEPS),
    "fedprox": Method("FedAvg with a proximal term", solver=partial(solvers.SGD, prox=1.0)),
    "equitable": Method(aggregator=aggregators.Equitable),
    "fairfed": Method(aggregator=aggregators.FairFed),
    "gifair": Method(aggregator=aggregators.GIFAIR),
    "q_fedavg": Method(aggregator=aggregators.QFedAvg, from_solver=_RATE),
    "tilted": Method(aggregator=aggregators.Tilted),
    "median": Method(aggregator=aggregators.Median),
    "trimmed_mean": Method(aggregator=aggregators.TrimmedMean),
    "krum": Method(aggregator=aggregators.Krum),
    "geometric_median": Method(aggregator=aggregators.GeometricMedian),
    "norm_clipping": Method(aggregator=aggregators.NormClipping),
    "centered_clipping": Method(aggregator=aggregators.CenteredClipping),
    "centralized": Method(_EVERYWHERE, centralized_fn=Centralized),
}
"""Methods of ``fedjax-fair run --methods``; docs/methods.md has their sources."""

METHODS.update(plugins.methods(METHODS))
data.SOURCES.update(plugins.sources(data.SOURCES))


MODELS: dict[str, Callable[..., Model]] = {
    "logistic": models.logistic,
    "mlp": models.mlp,
    "lenet": models.lenet,
    "cifar_cnn": models.cifar_cnn,
    "cifar100_cnn": models.cifar100_cnn,
    "femnist_cnn": models.femnist_cnn,
    "resnet18": models.resnet18,
}
"""Networks; each takes ``num_classes`` first."""


PARTITIONERS: dict[str, Callable[..., Partitioner]] = {
    "iid": data.iid,
    "classes_per_client": data.classes_per_client,
    "shards": data.shards,
    "dirichlet": data.dirichlet,
    "quantity_skew": partial(data.quantity_skew, min_partition_size=10),
    "planted_clusters": data.planted_clusters,
}
"""Ways to split examples over clients."""


FAULTS: dict[str, tuple[Callable[..., Any], Mapping[str, str]]] = {
    "dropout": (faults.Dropout, {"probability": "dropout"}),
    "stragglers": (faults.Stragglers, {"probability": "stragglers"}),
    "staleness": (faults.Staleness, {"probability": "staleness"}),
    "byzantine": (faults.Byzantine, {"clients": "byzantine"}),
    "period": (faults.Diurnal, {}),
}
"""Faults by the setting that enables them, with settings whose parameters have another name."""


COMMUNICATION: dict[str, tuple[Callable[..., Any], Mapping[str, str]]] = {
    "aggregation": (communication.SecureAggregation, {}),
    "top_k": (communication.TopK, {"fraction": "top_k"}),
    "bits": (communication.StochasticQuantization, {}),
    "clipping_norm": (communication.DifferentialPrivacy, {}),
    "target_unclipped_quantile": (
        communication.AdaptiveClipping,
        {"initial_clipping_norm": "clipping_norm"},
    ),
}
"""Communication, as `FAULTS`."""


def role_classes(method: Method) -> dict[str, Callable[..., Any]]:
    """Returns the classes of a method by role."""
    solver = method.solver or solvers.SGD
    if method.centralized_fn is not None:
        return {"solver": solver}
    return {
        "solver": solver,
        "selector": method.selector or selectors.Uniform,
        "aggregator": method.aggregator or partial(aggregators.Mean, weights=method.weighting),
    }
