"""Methods, networks and partitions by name; adding one is one entry here.

An entry names classes. Their settings, types and defaults are read from their fields
(`fedjax_fair.app.signatures`) and not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fedjax_fair import aggregators, data, models, selectors, solvers
from fedjax_fair.app import plugins
from fedjax_fair.app.method import Method
from fedjax_fair.base import Aggregator, Model
from fedjax_fair.data import Partitioner
from fedjax_fair.training import Centralized

__all__ = ["METHODS", "MODELS", "PARTITIONERS", "role_classes"]


def _mean_by_mixture() -> Aggregator:
    return aggregators.Mean("selector")


def _uniform_mean() -> Aggregator:
    return aggregators.Mean("uniform")


METHODS: dict[str, Method] = {
    "fedavg": Method("Random clients, local SGD, averaged models (McMahan et al., 2017)"),
    "power_of_choice": Method(
        "The clients of a random pool with the highest losses (Cho et al., 2020)",
        selector=selectors.PowerOfChoice,
        weighting="uniform",
    ),
    "divfl": Method(
        "Clients whose gradients represent those of all clients (Balakrishnan et al., 2022)",
        selector=selectors.DivFL,
    ),
    "subtrunc": Method(
        "DivFL with a truncated bonus for high losses (Castillo et al., 2024)",
        selector=selectors.SubTrunc,
        weighting="uniform",
    ),
    "unionfl": Method(
        "DivFL with a penalty for recently selected clients (Castillo et al., 2024)",
        selector=selectors.UnionFL,
        weighting="uniform",
    ),
    "clustered_by_size": Method(
        "One client from each of several strata of equal mass (Fraboni et al., 2021)",
        selector=selectors.ClusteredBySize,
        weighting="uniform",
    ),
    "clustered_by_similarity": Method(
        "One client from each cluster of similar updates (Fraboni et al., 2021)",
        selector=selectors.ClusteredBySimilarity,
        weighting="uniform",
    ),
    "full": Method("All clients in every round", selector=selectors.Full),
    "round_robin": Method("Clients in turn", selector=selectors.RoundRobin),
    "agnostic": Method(
        "All clients, weighted by the mixture that is worst for the model (Mohri et al., 2019)",
        selector=selectors.Agnostic,
        aggregator=_mean_by_mixture,
    ),
    "drfa": Method(
        "Clients drawn from the mixture that is worst for the model (Deng et al., 2020)",
        selector=selectors.DRFA,
        aggregator=_uniform_mean,
        from_solver={"local_steps": "steps"},
    ),
    "fedprox": Method(
        "FedAvg whose clients are pulled towards the global model (Li et al., 2020)",
        solver=partial(solvers.SGD, prox=1.0),
    ),
    "equitable": Method(
        "Equal weight for clusters of clients with similar activations (Equitable-FL)",
        aggregator=aggregators.Equitable,
    ),
    "fairfed": Method(
        "Less weight for clients far from the mean accuracy (Ezzeldin et al., 2023)",
        aggregator=aggregators.FairFed,
    ),
    "gifair": Method(
        "A penalty on differences between the losses of groups, of random clients (Yue et al., 2022)",
        aggregator=aggregators.GIFAIR,
    ),
    "q_fedavg": Method(
        "More weight for clients with high losses, by a power (Li et al., 2020)",
        aggregator=aggregators.QFedAvg,
        from_solver={"learning_rate": "learning_rate"},
    ),
    "tilted": Method(
        "More weight for clients with high losses, by an exponential (Li et al., 2021)",
        aggregator=aggregators.Tilted,
    ),
    "median": Method(
        "The median of every coordinate, robust to Byzantine clients (Yin et al., 2018)",
        aggregator=aggregators.Median,
    ),
    "trimmed_mean": Method(
        "The mean of every coordinate without its extremes (Yin et al., 2018)",
        aggregator=aggregators.TrimmedMean,
    ),
    "krum": Method(
        "The updates with the closest neighbors (Blanchard et al., 2017)",
        aggregator=aggregators.Krum,
    ),
    "geometric_median": Method(
        "The point with the smallest sum of distances to the updates (Pillutla et al., 2022)",
        aggregator=aggregators.GeometricMedian,
    ),
    "norm_clipping": Method(
        "The mean of norm-clipped updates (Sun et al., 2019)",
        aggregator=aggregators.NormClipping,
    ),
    "centered_clipping": Method(
        "The mean of updates clipped around the last one (Karimireddy et al., 2021)",
        aggregator=aggregators.CenteredClipping,
    ),
    "centralized": Method(
        "No federation: SGD on the examples of all clients in one place, as a reference",
        centralized_fn=Centralized,
    ),
}
"""Every method by name; ``fedjax-fair run --methods NAME ...`` runs them."""

METHODS.update(plugins.methods(METHODS))


MODELS: dict[str, Callable[..., Model]] = {
    "logistic": models.logistic,
    "mlp": models.mlp,
    "lenet": models.lenet,
    "cifar_cnn": models.cifar_cnn,
    "cifar100_cnn": models.cifar100_cnn,
    "femnist_cnn": models.femnist_cnn,
    "resnet18": models.resnet18,
}
"""Every network by name; each takes ``num_classes`` first."""


PARTITIONERS: dict[str, Callable[..., Partitioner]] = {
    "iid": data.iid,
    "classes_per_client": data.classes_per_client,
    "shards": data.shards,
    "dirichlet": data.dirichlet,
    "quantity_skew": partial(data.quantity_skew, min_partition_size=10),
    "planted_clusters": data.planted_clusters,
}
"""Every way to split examples over clients, by name."""


def role_classes(method: Method) -> dict[str, Callable[..., Any]]:
    """The classes that a method is made of, by role."""
    solver = method.solver or solvers.SGD
    if method.centralized_fn is not None:
        return {"solver": solver}
    return {
        "solver": solver,
        "selector": method.selector or selectors.Uniform,
        "aggregator": method.aggregator or partial(aggregators.Mean, weights=method.weighting),
    }
