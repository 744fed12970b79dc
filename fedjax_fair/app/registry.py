"""Methods, networks, partitions, faults and communication by name.

An entry names a class or function. Its settings, types and defaults are read from its signature
(`fedjax_fair.app.signatures`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from fedjax_fair import (
    aggregators,
    communication,
    data,
    faults,
    models,
    selectors,
    server_optimizers,
    solvers,
)
from fedjax_fair.app import plugins
from fedjax_fair.app.method import Method
from fedjax_fair.app.ranges import RANGES
from fedjax_fair.app.signatures import REQUIRED, Wrapping, settings_of
from fedjax_fair.data import Partitioner
from fedjax_fair.roles import Model
from fedjax_fair.training import Centralized

__all__ = [
    "COHORT_SIZE",
    "COMMUNICATION",
    "FAULTS",
    "GROUPS",
    "METHODS",
    "MODELS",
    "PARTITIONERS",
    "READERS",
    "role_classes",
]

COHORT_SIZE = 10
"""Default number of clients per round, or all clients if there are fewer."""

_STEPS, _RATE = {"local_steps": "steps"}, {"learning_rate": "learning_rate"}
_EVERYWHERE = "SGD on the pooled examples of all clients, as a reference"

GROUPS: dict[str, dict[str, Method]] = {
    "selection": {
        "fedavg": Method(
            "FedAvg: random clients, local SGD, averaged models (McMahan et al., 2017)"
        ),
        "power_of_choice": Method(selector=selectors.PowerOfChoice, weighting="uniform"),
        "divfl": Method(selector=selectors.DivFL),
        "subtrunc": Method(selector=selectors.SubTrunc, weighting="uniform"),
        "unionfl": Method(selector=selectors.UnionFL, weighting="uniform"),
        "clustered_by_size": Method(selector=selectors.ClusteredBySize, weighting="uniform"),
        "clustered_by_similarity": Method(
            selector=selectors.ClusteredBySimilarity, weighting="uniform"
        ),
        "agnostic": Method(
            selector=selectors.Agnostic, aggregator=partial(aggregators.Mean, "selector")
        ),
        "drfa": Method(
            selector=selectors.DRFA,
            aggregator=partial(aggregators.Mean, "uniform"),
            from_solver=_STEPS,
        ),
        "full": Method(selector=selectors.Full),
        "round_robin": Method(selector=selectors.RoundRobin),
        "oort": Method(selector=selectors.Oort, weighting="uniform"),
        "fedcor": Method(selector=selectors.FedCor, weighting="uniform"),
    },
    "weighting": {
        "equitable": Method(aggregator=aggregators.Equitable),
        "gifair": Method(aggregator=aggregators.GIFAIR),
        "q_fedavg": Method(aggregator=aggregators.QFedAvg, from_solver=_RATE),
        "tilted": Method(aggregator=aggregators.Tilted),
        "propfair": Method(
            "FedAvg on a logarithm of the minibatch loss, for proportional fairness",
            solver=solvers.PropFair,
        ),
        "adafed": Method(aggregator=aggregators.AdaFed),
        "fedmgda": Method(aggregator=aggregators.FedMGDA),
        "fedfv": Method(aggregator=aggregators.FedFV),
        "fedfa": Method(
            "Weights by low accuracy and frequent participation, with momentum of the server",
            aggregator=aggregators.FedFA,
            server_optimizer=server_optimizers.FedAvgM,
        ),
        "aaggff": Method(aggregator=aggregators.AAggFF),
    },
    "group fairness": {
        "fairfed": Method(aggregator=aggregators.FairFed),
        "fedfb": Method(
            "Weights of groups and labels that follow the unfairness of the model",
            solver=solvers.CellWeighted,
            aggregator=aggregators.FedFBMean,
        ),
        "fedminmax": Method(
            "Weights of groups that grow with their loss, for the worst group",
            solver=solvers.CellWeighted,
            aggregator=aggregators.FedMinMaxMean,
        ),
        "reweighing": Method(
            "Weights of examples that make label and group independent",
            solver=solvers.CellWeighted,
            aggregator=aggregators.ReweighingMean,
        ),
        "group_penalty": Method(
            "FedAvg with a local penalty on differences between groups of people",
            solver=solvers.GroupPenalty,
        ),
    },
    "server": {
        "fedavgm": Method(server_optimizer=server_optimizers.FedAvgM),
        "fedadagrad": Method(server_optimizer=server_optimizers.FedAdagrad),
        "fedadam": Method(server_optimizer=server_optimizers.FedAdam),
        "fedyogi": Method(server_optimizer=server_optimizers.FedYogi),
    },
    "drift": {
        "fedprox": Method("FedAvg with a proximal term", solver=partial(solvers.SGD, prox=1.0)),
        "scaffold": Method(
            "SGD with control variates against drift",
            solver=solvers.Scaffold,
            aggregator=aggregators.ScaffoldMean,
        ),
        "fednova": Method(
            "Updates per effective local step, times the mean number of steps",
            solver=solvers.FedNova,
            aggregator=aggregators.FedNovaMean,
        ),
        "feddyn": Method(
            "Dynamic regularization that aligns local optima with the global one",
            solver=solvers.FedDyn,
            aggregator=aggregators.FedDynMean,
        ),
        "mime_lite": Method(
            "Local SGD with the momentum of the server",
            solver=solvers.MimeLite,
            aggregator=aggregators.MimeLiteMean,
        ),
    },
    "personalized": {
        "ditto": Method(
            "FedAvg, and a personalized model of each client that is pulled to the global one",
            solver=solvers.Ditto,
        ),
        "fedper": Method(
            "A shared body, and a head of each client, trained together",
            solver=solvers.FedPer,
        ),
        "fedrep": Method(
            "A shared body, and a head of each client that is trained first",
            solver=solvers.FedRep,
            weighting="uniform",
        ),
        "lg_fedavg": Method(
            "A shared head, and a body of each client",
            solver=solvers.LGFedAvg,
        ),
        "fedbn": Method(
            "FedAvg with batch normalization that stays on each client",
            solver=solvers.FedBN,
            weighting="uniform",
        ),
        "fedbabu": Method(
            "FedAvg of the body with a fixed head, and fine-tuning on each client",
            solver=solvers.FedBABU,
        ),
        "ifca": Method(
            "Several global models, of which each client trains and uses the best one",
            solver=solvers.IFCA,
            aggregator=aggregators.IFCAMean,
        ),
        "fine_tuned": Method(
            "FedAvg, and a personalized model that is fine-tuned from the global one",
            solver=solvers.FineTuned,
        ),
        "per_fedavg": Method(
            "A global model that is good after a local step (first-order MAML)",
            solver=solvers.PerFedAvg,
            weighting="uniform",
        ),
        "pfedme": Method(
            "Personalized models as proximal points of the global one (Moreau envelopes)",
            solver=solvers.PFedMe,
            weighting="uniform",
        ),
        "apfl": Method(
            "A learned mixture of the global and a local model of each client",
            solver=solvers.APFL,
            weighting="uniform",
        ),
    },
    "robust": {
        "median": Method(aggregator=aggregators.Median),
        "trimmed_mean": Method(aggregator=aggregators.TrimmedMean),
        "krum": Method(aggregator=aggregators.Krum),
        "geometric_median": Method(aggregator=aggregators.GeometricMedian),
        "norm_clipping": Method(aggregator=aggregators.NormClipping),
        "centered_clipping": Method(aggregator=aggregators.CenteredClipping),
    },
    "reference": {
        "local": Method(
            "Every client trains a model alone, as a reference of personalized models",
            solver=solvers.Local,
        ),
        "local_converged": Method(
            "Every client trains a model alone in every round, as a reference that can converge",
            selector=selectors.Full,
            solver=solvers.Local,
        ),
        "centralized": Method(_EVERYWHERE, centralized_fn=Centralized),
    },
}
"""Methods by what distinguishes them; docs/methods.md is generated from them."""

METHODS: dict[str, Method] = {
    name: method._replace(ranges={**RANGES.get(name, {}), **method.ranges})
    for methods in GROUPS.values()
    for name, method in methods.items()
}
"""Methods of ``fedjax-fair run --methods``, and those of plugins."""

if _of_plugins := plugins.methods(METHODS):
    GROUPS["plugin"] = dict(_of_plugins)
    METHODS.update(_of_plugins)
data.SOURCES.update(plugins.sources(data.SOURCES))


MODELS: dict[str, Callable[..., Model]] = {
    "logistic": models.logistic,
    "mlp": models.mlp,
    "lenet": models.lenet,
    "cifar_cnn": models.cifar_cnn,
    "cifar100_cnn": models.cifar100_cnn,
    "femnist_cnn": models.femnist_cnn,
    "resnet18": models.resnet18,
    "char_lstm": models.char_lstm,
    "char_transformer": models.char_transformer,
}
"""Networks; each takes ``num_classes`` first."""


PARTITIONERS: dict[str, Callable[..., Partitioner]] = {
    "iid": data.iid,
    "classes_per_client": data.classes_per_client,
    "shards": data.shards,
    "dirichlet": data.dirichlet,
    "quantity_skew": partial(data.quantity_skew, min_partition_size=10),
    "planted_clusters": data.planted_clusters,
    "by_column": data.by_column,
    "natural": data.natural,
}
"""Ways to split examples over clients."""


READERS: dict[str, Callable[..., Any]] = {
    name: source.read for name, source in data.SOURCES.items() if source.settings
}
"""Functions that read the data sets that have settings (``Source.settings``)."""


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
    # Without noise updates are only clipped.
    "clipping_norm": (partial(communication.DifferentialPrivacy, noise_multiplier=0.0), {}),
    "target_unclipped_quantile": (
        communication.AdaptiveClipping,
        {"initial_clipping_norm": "clipping_norm"},
    ),
}
"""Communication, as `FAULTS`."""


def role_classes(method: Method) -> dict[str, Callable[..., Any]]:
    """Returns the classes of a method by role."""
    solver = _around_sgd(method.solver or solvers.SGD)
    if method.centralized_fn is not None:
        return {"solver": solver}
    roles = {
        "solver": solver,
        "selector": _with_cohort_size(method.selector or selectors.Uniform),
        "aggregator": method.aggregator or partial(aggregators.Mean, weights=method.weighting),
    }
    if method.server_optimizer is not None:
        roles["server_optimizer"] = method.server_optimizer
    return roles


@cache
def _around_sgd(solver: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the settings of SGD to a solver that wraps another one."""
    parameter = inspect.signature(solver).parameters.get("solver")
    if parameter is None or parameter.default is not REQUIRED:
        return solver
    return Wrapping(solver, solvers.SGD, "solver")


@cache
def _with_cohort_size(selector: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a default cohort size to a selector that requires one."""
    size = settings_of(selector).get("cohort_size")
    if size is None or size.default is not REQUIRED:
        return selector
    return partial(selector, cohort_size=COHORT_SIZE)
