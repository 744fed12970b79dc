"""Methods, networks, partitions, faults and communication by name.

An entry names a class or function. Its settings, types and defaults are read from its signature
(`fedjax_fair.app.settings.constructors`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from fedjax_fair.app.overview import STORED
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.constructors import (
    LazyModule,
    Reference,
    Renamed,
    Wrapping,
    describe,
    settings_of,
)
from fedjax_fair.app.settings.method import Method, Range
from fedjax_fair.app.settings.setting import REQUIRED, Setting

if TYPE_CHECKING:
    from fedjax_fair import (
        aggregators,
        communication,
        data,
        faults,
        models,
        schedules,
        selectors,
        server_optimizers,
        solvers,
        training,
    )
    from fedjax_fair.data import Partitioner
    from fedjax_fair.roles import ClientMetric, Model
else:  # Attributes are names, so that a command imports only the classes that it calls.
    aggregators, communication, data = map(LazyModule, ("aggregators", "communication", "data"))
    faults, models, schedules = map(LazyModule, ("faults", "models", "schedules"))
    selectors, server_optimizers = map(LazyModule, ("selectors", "server_optimizers"))
    solvers, training = map(LazyModule, ("solvers", "training"))

__all__ = [
    "COHORT_SIZE",
    "COMMUNICATION",
    "CONCURRENCY",
    "FAULTS",
    "GROUPS",
    "METHODS",
    "METRICS",
    "MODELS",
    "PARTITIONERS",
    "RANGES",
    "READERS",
    "SCHEDULES",
    "SYNTHETIC",
    "TIMING",
    "role_classes",
]

COHORT_SIZE = 10
"""Default number of clients per round, or all clients if there are fewer."""

# Three results are an update in the setting of ``fedjax-fair run speed``.
_BUFFERED = partial(schedules.Asynchronous, buffer_size=3)


def _with_factor(aggregator: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the exponent of the factor of staleness."""
    return Wrapping(aggregator, aggregators.Polynomial, "staleness")


def _with_global_rate(aggregator: Callable[..., Any]) -> Callable[..., Any]:
    """Distinguishes the learning rate of an aggregator from that of the clients."""
    names = {"learning_rate": "global_learning_rate", "weights": "buffer_weights"}
    return Renamed(aggregator, names)


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
            linked_settings={"local_steps": "solver.steps"},
        ),
        "full": Method(selector=selectors.Full),
        "round_robin": Method(selector=selectors.RoundRobin),
        "rotation": Method(selector=selectors.Rotation, weighting="uniform"),
        "oort": Method(selector=selectors.Oort, weighting="uniform"),
        "fedcor": Method(selector=selectors.FedCor, weighting="uniform"),
    },
    "weighting": {
        "equitable": Method(aggregator=aggregators.Equitable),
        "gifair": Method(aggregator=aggregators.GIFAIR),
        "q_fedavg": Method(
            aggregator=aggregators.QFedAvg,
            linked_settings={"learning_rate": "solver.learning_rate"},
        ),
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
        "loss_gap": Method(aggregator=aggregators.LossGap),
        "shapfed": Method(aggregator=aggregators.ShapFed),
        "fedpw": Method(selector=selectors.Full, aggregator=aggregators.FedPW),
        "fedlf": Method(aggregator=aggregators.FedLF),
        "fedmdfg": Method(aggregator=aggregators.FedMDFG),
        "fedheal": Method(aggregator=aggregators.FedHEAL),
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
            "FedAvg with a local penalty on differences between sensitive groups",
            solver=solvers.GroupPenalty,
        ),
        "pfedfair": Method(
            "Personalized models that are fair to groups, near an accurate global one",
            solver=solvers.PFedFair,
            weighting="uniform",
        ),
        "fair_fate": Method(
            aggregator=aggregators.FairFATE, linked_settings={"num_rounds": "training.rounds"}
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
            "A shared body, and a head of each client, trained together", solver=solvers.FedPer
        ),
        "fedrep": Method(
            "A shared body, and a head of each client that is trained first",
            solver=solvers.FedRep,
            weighting="uniform",
        ),
        "lg_fedavg": Method("A shared head, and a body of each client", solver=solvers.LGFedAvg),
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
    "adapters": {
        "fedit": Method(aggregator=aggregators.FedIT),
        "ffa_lora": Method(
            "FedAvg of the factors B of low-rank adapters, whose factors A are fixed",
            network=models.with_fixed_a,
        ),
        "fedsa_lora": Method(
            "Shared factors A of low-rank adapters, and factors B of each client",
            solver=solvers.FedSALoRA,
        ),
        "rolora": Method(
            "One factor of low-rank adapters is trained in even rounds, the other in odd ones",
            solver=solvers.RoLoRA,
        ),
        "fedex_lora": Method(aggregator=aggregators.FedEx, network=models.with_residual),
        "lora_fair": Method(aggregator=aggregators.LoRAFair),
        "flexlora": Method(solver=solvers.RankLimited, aggregator=aggregators.FlexLoRA),
        "hetlora": Method(
            "Low-rank adapters of a rank that each client lowers, weighted by their norms",
            solver=solvers.HetLoRA,
            aggregator=aggregators.HetLoRAMean,
        ),
    },
    "asynchronous": {
        "fedasync": Method(
            aggregator=_with_factor(aggregators.FedAsync),
            schedule=partial(schedules.Asynchronous, buffer_size=1),
        ),
        "fedbuff": Method(
            aggregator=_with_factor(_with_global_rate(aggregators.FedBuff)), schedule=_BUFFERED
        ),
        "ca2fl": Method(aggregator=_with_global_rate(aggregators.CA2FL), schedule=_BUFFERED),
        "fed_stale_weight": Method(
            aggregator=_with_global_rate(aggregators.FedStaleWeight), schedule=_BUFFERED
        ),
        "area": Method(aggregator=aggregators.AREA, schedule=_BUFFERED),
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
        "centralized": Method(
            "SGD on the pooled examples of all clients, as a reference",
            centralized_fn=training.Centralized,
        ),
    },
}
"""Methods by what distinguishes them; docs/methods.md is generated from them."""

# Half-decades from 10^-2.5 to 10 (Reddi et al., 2021, arXiv:2003.00295), for all four optimizers.
_SERVER_RATES = Range(0.003, 10.0)

RANGES: Mapping[str, Mapping[str, Range]] = {
    "subtrunc": {"lam": Range(0.05, 5.0)},
    "unionfl": {"mu": Range(0.1, 10.0)},
    "agnostic": {"mixture_learning_rate": Range(0.001, 1.0)},
    "drfa": {"mixture_learning_rate": Range(0.001, 1.0)},
    "oort": {"exploration": Range(0.3, 0.95, "linear")},
    "fedcor": {"annealing": Range(0.5, 0.99, "linear")},
    "gifair": {"aggregator.strength": Range(0.1, 0.9, "linear")},
    # The grid of q-FFL (Li et al., 2020, arXiv:1905.10497).
    "q_fedavg": {"q": Range(0.001, 15.0)},
    # The grid of TERM (Li et al., 2021, arXiv:2007.01162), with 0.01 for images of ten classes.
    "tilted": {"tilt": Range(0.01, 10.0)},
    "propfair": {"baseline": Range(2.0, 5.0, "linear")},
    "adafed": {"gamma": Range(0.01, 5.0)},
    "fedmgda": {"epsilon": Range(0.01, 1.0)},
    "fedfv": {"keep_fraction": Range(0.1, 0.67, "linear")},
    "fedfa": {"beta": Range(0.1, 0.9, "linear")},
    "loss_gap": {"aggregator.strength": Range(0.3, 10.0)},
    "shapfed": {"memory": Range(0.1, 0.95, "linear")},
    "fedpw": {"beta": Range(0.1, 0.9, "linear"), "drop_rate": Range(0.1, 0.9, "linear")},
    "fedmdfg": {"max_angle": Range(5.0, 45.0, "linear")},
    "fedheal": {
        "min_consistency": Range(0.1, 0.9, "linear"),
        "beta": Range(0.1, 0.9, "linear"),
    },
    "fairfed": {"beta": Range(0.01, 5.0)},
    "fedfb": {"aggregator.alpha": Range(0.001, 2.0)},
    "fedminmax": {"step_size": Range(0.001, 1.0)},
    "group_penalty": {"solver.strength": Range(0.1, 10.0)},
    "pfedfair": {"solver.strength": Range(0.1, 10.0), "personal_prox": Range(0.1, 10.0)},
    "fedavgm": {"server_learning_rate": _SERVER_RATES, "beta1": Range(0.5, 0.97, "linear")},
    "fedadagrad": {"server_learning_rate": _SERVER_RATES, "tau": Range(1e-5, 0.1)},
    "fedadam": {"server_learning_rate": _SERVER_RATES, "tau": Range(1e-5, 0.1)},
    "fedyogi": {"server_learning_rate": _SERVER_RATES, "tau": Range(1e-5, 0.1)},
    "fedprox": {"prox": Range(0.001, 1.0)},
    "feddyn": {"solver.alpha": Range(0.001, 0.1)},
    "mime_lite": {"beta": Range(0.5, 0.99, "linear")},
    "ditto": {"personal_prox": Range(0.05, 2.0)},
    "per_fedavg": {"inner_learning_rate": Range(0.001, 0.1)},
    "pfedme": {"personal_prox": Range(5.0, 30.0), "inner_learning_rate": Range(0.005, 0.1)},
    "apfl": {"mixing_weight": Range(0.1, 0.9, "linear")},
    "lora_fair": {"aggregator.strength": Range(0.001, 1.0)},
    "hetlora": {"solver.strength": Range(1e-4, 0.1)},
    "fedasync": {"mixing": Range(0.1, 0.9, "linear"), "exponent": Range(0.1, 2.0)},
    "fedbuff": {"global_learning_rate": _SERVER_RATES, "exponent": Range(0.1, 2.0)},
    "ca2fl": {"global_learning_rate": _SERVER_RATES},
    "fed_stale_weight": {"global_learning_rate": _SERVER_RATES},
    "trimmed_mean": {"trim": Range(0.05, 0.4, "linear")},
    "norm_clipping": {"bound": Range(0.1, 10.0)},
    "centered_clipping": {"bound": Range(0.1, 10.0)},
}
"""Ranges by method and setting that a benchmark tunes in addition to the learning rate.

They contain the default of the setting and the grids of the papers, and exclude zero, which would
change what is compiled.
"""

METHODS: dict[str, Method] = {
    name: method._replace(ranges=RANGES.get(name, {}))
    for methods in GROUPS.values()
    for name, method in methods.items()
}
"""Methods of ``fedjax-fair run --methods``, and those of plugins."""

if _of_plugins := plugins.collect("methods", METHODS):
    GROUPS["plugin"] = dict(_of_plugins)
    METHODS.update(_of_plugins)
_sources = plugins.add_sources()

MODELS: dict[str, Callable[..., Model]] = {
    name: Reference(f"models.{name}")
    for name in (
        *("logistic", "mlp", "lenet", "cifar_cnn", "cifar100_cnn", "femnist_cnn"),
        *("resnet18", "char_lstm", "char_transformer"),
    )
}
"""Networks; each takes ``num_classes`` first."""


PARTITIONERS: dict[str, Callable[..., Partitioner]] = {
    name: Renamed(
        partitioner,
        {"num_clients": "clients", "classes": "classes_per_client", "column": "client"},
    )
    for name, partitioner in {
        "iid": data.iid,
        "classes_per_client": data.classes_per_client,
        "shards": data.shards,
        "dirichlet": data.dirichlet,
        "quantity_skew": partial(data.quantity_skew, min_partition_size=10),
        "planted_clusters": data.planted_clusters,
        "biased": data.biased,
        "by_column": data.by_column,
        "natural": data.natural,
    }.items()
}
"""Ways to split examples over clients."""


METRICS: dict[str, Callable[..., ClientMetric]] = {
    name: Reference(f"metrics.predictions.{name}") for name in STORED["metrics"]
}
"""Metrics of clients; some take ``num_classes``."""


READERS: dict[str, Callable[..., Any]] = {
    "shakespeare": Reference("data.sources.shakespeare.read_shakespeare"),
    **{name: source.read for name, source in _sources.items() if source.settings},
}
"""Functions that read the data sets that have settings (``Source.settings``)."""


FAULTS: dict[str, Callable[..., Any]] = {
    "dropout": Renamed(faults.Dropout, {"probability": "dropout"}),
    "stragglers": Renamed(faults.Stragglers, {"probability": "stragglers"}),
    "staleness": Renamed(faults.Staleness, {"probability": "staleness"}),
    "byzantine": Renamed(faults.Byzantine, {"clients": "byzantine"}),
    "period": faults.Diurnal,
}
"""Faults by the setting that enables them."""


COMMUNICATION: dict[str, Callable[..., Any]] = {
    "aggregation": communication.SecureAggregation,
    "top_k": Renamed(communication.TopK, {"fraction": "top_k"}),
    "bits": communication.StochasticQuantization,
    # Without noise updates are only clipped.
    "clipping_norm": partial(communication.DifferentialPrivacy, noise_multiplier=0.0),
    "target_unclipped_quantile": Renamed(
        communication.AdaptiveClipping, {"initial_clipping_norm": "clipping_norm"}
    ),
}
"""Communication, as `FAULTS`."""


SCHEDULES: dict[str, Callable[..., Any]] = {
    "synchronous": schedules.Synchronous,
    "asynchronous": schedules.Asynchronous,
}
"""Schedules of rounds by kind; each takes times of clients first."""

TIMING = Reference("app.timing_files.read_times")
"""Reads times of clients."""

SYNTHETIC = "synthetic"
"""Name of the table in the package, whose speeds are made up."""

CONCURRENCY = Setting(
    *("concurrency", int, None, False),
    "Clients that train at the same time with an asynchronous method.",
)
"""The cohort size of asynchronous methods."""


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
        roles["server_optimizer"] = _with_server_rate(method.server_optimizer)
    if method.schedule is not None:
        roles["schedule"] = method.schedule
    return roles


@cache
def _around_sgd(solver: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the settings of SGD to a solver that wraps another one."""
    if not describe(solver).wraps_solver:
        return solver
    return Wrapping(solver, solvers.SGD, "solver")


@cache
def _with_server_rate(optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """Distinguishes the learning rate of the server from that of the clients."""
    return Renamed(optimizer, {"learning_rate": "server_learning_rate"})


@cache
def _with_cohort_size(selector: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a default cohort size to a selector that requires one."""
    size = settings_of(selector).get("cohort_size")
    if size is None or size.default is not REQUIRED:
        return selector
    return partial(selector, cohort_size=COHORT_SIZE)
