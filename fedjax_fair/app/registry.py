"""Where a configuration becomes functions, and nowhere else.

A method joins by one entry in ``METHODS``: a line for people, and the roles in which it differs
from federated averaging. Methods that differ in different roles combine: ``divfl+equitable``
selects as one and aggregates as the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import Mesh

from fedjax_fair import aggregators, checks, data, models, selectors, simulate, solvers
from fedjax_fair.app.config import Config, ModelConfig
from fedjax_fair.app.settings import lookup, override
from fedjax_fair.base import Aggregator, Model, Selector, Solver
from fedjax_fair.data import FederatedData, Partitioner
from fedjax_fair.parallel.cores import cores_if_any
from fedjax_fair.parallel.mesh import client_mesh
from fedjax_fair.simulate import Round
from fedjax_fair.training.centralized import make_centralized

__all__ = [
    "METHODS",
    "MODELS",
    "PARTITIONERS",
    "Experiment",
    "Method",
    "build",
    "method_round",
]


class Method(NamedTuple):
    """A federated method: the roles in which it differs from federated averaging.

    Attributes:
        summary: One line for people.
        selector: Makes its selector from a configuration, or None for uniform draws.
        solver: Makes its local solver, or None for SGD.
        aggregator: Makes its aggregator, or None for a mean.
        whole: Makes its round from a configuration and a model, for one that is no federation.
    """

    summary: str
    selector: Callable[[Config], Selector] | None = None
    solver: Callable[[Config], Solver] | None = None
    aggregator: Callable[[Config], Aggregator] | None = None
    whole: Callable[[Config, Model], Round] | None = None


class Experiment(NamedTuple):
    """A configuration turned into data and functions.

    Attributes:
        config: What it was made from.
        data: The federation that all methods share.
        rounds: The round of each method, in the order asked for.
        mesh: The devices to run on, or None for a single one.
    """

    config: Config
    data: FederatedData
    rounds: dict[str, Round]
    mesh: Mesh | None = None


def _uniform(config: Config) -> Selector:
    return selectors.uniform(config.selector.cohort_size)


def _power_of_choice(config: Config) -> Selector:
    cohort_size, clients = config.selector.cohort_size, config.data.clients
    pool = config.selector.pool or min(2 * cohort_size, clients or 2 * cohort_size)
    return selectors.power_of_choice(cohort_size, pool, variant=config.selector.variant)


def _representatives(
    factory: Callable[..., Selector], *settings: str
) -> Callable[[Config], Selector]:
    """Makes a selector of the DivFL family from its own settings and those they share."""

    def make(config: Config) -> Selector:
        section: Any = config.selector
        own = {name: getattr(section, name) for name in settings}
        candidates = None if section.pool else section.cohort_size
        return factory(
            section.cohort_size,
            candidates=section.candidates or candidates,
            pool=section.pool,
            info=section.info,
            scale=section.scale,
            **own,
        )

    return make


def _drfa(config: Config) -> Selector:
    checks.positive_int("solver.steps", config.solver.steps)
    section = config.selector
    return selectors.agnostic(section.step, section.cohort_size, config.solver.steps)


def _sgd(config: Config, prox: float = 0.0) -> Solver:
    solver: Any = config.solver  # Resolved: what may be None no longer is.
    return solvers.sgd(
        solver.learning_rate,
        solver.batch_size,
        steps=solver.steps,
        epochs=solver.epochs,
        momentum=solver.momentum,
        weight_decay=solver.weight_decay,
        prox=prox if solver.prox is None else solver.prox,
    )


def _mean(config: Config) -> Aggregator:
    return aggregators.mean(config.aggregator.weights)


def _q_fedavg(config: Config) -> Aggregator:
    learning_rate: Any = config.solver.learning_rate
    return aggregators.q_fedavg(config.aggregator.q, learning_rate)


def _equitable(config: Config) -> Aggregator:
    section = config.aggregator
    return aggregators.equitable(
        section.num_clusters,
        groups=section.groups,
        layer=section.layer,
        model=section.model,
        examples=section.examples,
        center=section.center,
        cosine=section.cosine,
    )


def _centralized(config: Config, model: Model) -> Round:
    return make_centralized(model, _sgd(replace(config, solver=replace(config.solver, prox=0.0))))


METHODS: dict[str, Method] = {
    "fedavg": Method("Random clients, local SGD, averaged models (McMahan et al., 2017)"),
    "power_of_choice": Method(
        "The clients of a random pool with the highest losses (Cho et al., 2020)",
        selector=_power_of_choice,
    ),
    "divfl": Method(
        "Clients whose gradients represent everybody's (Balakrishnan et al., 2022)",
        selector=_representatives(selectors.divfl),
    ),
    "subtrunc": Method(
        "DivFL with a truncated bonus for high losses (Castillo et al., 2024)",
        selector=_representatives(selectors.subtrunc, "lam", "b", "phi"),
    ),
    "unionfl": Method(
        "DivFL with a penalty for those chosen lately (Castillo et al., 2024)",
        selector=_representatives(selectors.unionfl, "mu", "window"),
    ),
    "clustered_by_size": Method(
        "One client from each of several strata of equal mass (Fraboni et al., 2021)",
        selector=lambda config: selectors.clustered_by_size(config.selector.cohort_size),
    ),
    "clustered_by_similarity": Method(
        "One client from each cluster of similar updates (Fraboni et al., 2021)",
        selector=lambda config: selectors.clustered_by_similarity(
            config.selector.cohort_size, measure=config.selector.measure
        ),
    ),
    "full": Method("All clients in every round", selector=lambda config: selectors.full()),
    "round_robin": Method(
        "Clients in turn",
        selector=lambda config: selectors.round_robin(config.selector.cohort_size),
    ),
    "agnostic": Method(
        "All clients, weighed by the mixture that is worst for the model (Mohri et al., 2019)",
        selector=lambda config: selectors.agnostic(config.selector.step),
        aggregator=lambda config: aggregators.mean("cohort"),
    ),
    "drfa": Method(
        "Clients drawn from the mixture that is worst for the model (Deng et al., 2020)",
        selector=_drfa,
        aggregator=lambda config: aggregators.mean("uniform"),
    ),
    "fedprox": Method(
        "FedAvg whose clients are pulled towards the global model (Li et al., 2020)",
        solver=lambda config: _sgd(config, prox=1.0),
    ),
    "equitable": Method(
        "Equal weight for clusters of clients with similar activations (Equitable-FL)",
        aggregator=_equitable,
    ),
    "fairfed": Method(
        "Less weight for clients far from the mean accuracy (Ezzeldin et al., 2023)",
        aggregator=lambda config: aggregators.fairfed(config.aggregator.beta),
    ),
    "gifair": Method(
        "A price on differences between the losses of groups (Yue et al., 2022)",
        aggregator=lambda config: aggregators.gifair(config.aggregator.strength),
    ),
    "q_fedavg": Method(
        "More weight for clients with high losses, by a power (Li et al., 2020)",
        aggregator=_q_fedavg,
    ),
    "tilted": Method(
        "More weight for clients with high losses, by an exponential (Li et al., 2021)",
        aggregator=lambda config: aggregators.tilted(
            config.aggregator.tilt, config.aggregator.weights
        ),
    ),
    "centralized": Method(
        "No federation: SGD on everybody's examples in one place, as a reference",
        whole=_centralized,
    ),
}
"""Every method by name; ``fedjax-fair run --methods NAME ...`` runs them."""


MODELS: dict[str, Callable[[ModelConfig, int], Model]] = {
    "logistic": lambda config, classes: models.logistic(classes),
    "mlp": lambda config, classes: models.mlp(classes, hidden=config.hidden),
    "lenet": lambda config, classes: models.lenet(classes),
    "cifar_cnn": lambda config, classes: models.cifar_cnn(classes),
    "cifar100_cnn": lambda config, classes: models.cifar100_cnn(classes),
    "femnist_cnn": lambda config, classes: models.femnist_cnn(classes),
    "resnet18": lambda config, classes: models.resnet18(classes),
}
"""Every network by name, from its section of the configuration and the number of classes."""


PARTITIONERS: dict[str, Callable[[Any], Partitioner]] = {
    "iid": lambda config: data.iid(config.clients),
    "classes_per_client": lambda config: data.classes_per_client(
        config.clients, config.classes_per_client
    ),
    "shards": lambda config: data.shards(config.clients, config.shards_per_client),
    "dirichlet": lambda config: data.dirichlet(config.clients, config.alpha, config.min_size),
    "quantity_skew": lambda config: data.quantity_skew(
        config.clients, config.law, skew=config.skew, min_size=config.min_size
    ),
    "planted_clusters": lambda config: data.planted_clusters(config.clusters),
}
"""Every way to deal examples, from the section ``data`` of the configuration."""


def build(config: Config, federation: FederatedData | None = None) -> Experiment:
    """Turns a configuration into data and functions, or says which setting is wrong.

    Args:
        config: A resolved configuration.
        federation: Its data, if that is there already; by default it is read.

    Returns:
        An ``Experiment`` that is ready to run.

    Raises:
        ValueError: If a setting is out of range or names nothing.
        FileNotFoundError: If the data is not there.
    """
    _check(config)
    mesh = _mesh(config.devices)
    for name in config.methods:  # Before data is read, which can take long.
        method, own = _variant(config, name)
        lookup("model.name", str(own.model.name), MODELS)
        if method.whole is not None and config.devices not in (1, "auto"):
            raise ValueError(f"devices={config.devices!r}: expected 1 for {name}.")
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)(config.data)
    seed: Any = config.data.seed
    if config.data.per_run:
        seed = tuple(config.data.seed + run for run in config.training.seeds)
    if federation is None:
        federation = data.load(config.data.name, partition, seed=seed, data_dir=config.data.dir)
    rounds = {name: method_round(config, name, federation.num_classes) for name in config.methods}
    for method in rounds.values():
        jax.eval_shape(method.init, jax.random.key(0), federation.partition(0))
    return Experiment(config, federation, rounds, mesh)


def method_round(config: Config, name: str, num_classes: int) -> Round:
    """The round of one method.

    Args:
        config: A resolved configuration, in which numbers that roles take as traced may be tracers.
        name: The method, as in ``config.methods``.
        num_classes: Classes of the data.

    Raises:
        ValueError: As ``build``.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> round = method_round(presets.resolve(Config()), "fedprox:prox=0.1", num_classes=10)
        >>> round._fields
        ('model', 'init', 'step')
    """
    method, own = _variant(config, name)
    model = lookup("model.name", str(own.model.name), MODELS)(own.model, num_classes)
    if own.model.compute == "bfloat16":
        model = models.in_bfloat16(model)
    return _round(method, own, model)


def _variant(config: Config, name: str) -> tuple[Method, Config]:
    """Roles and configuration of a name such as ``subtrunc+equitable:lam=0.25``."""
    names, _, settings = name.partition(":")
    own = override(config, settings) if settings else config
    first, *others = (lookup("method", part, METHODS) for part in names.split("+"))
    for other in others:
        first = _combined(names, first, other)
    return first, own


def _combined(names: str, one: Method, other: Method) -> Method:
    """Both methods in one, if no role is taken twice."""
    roles = [{} if method.whole else _roles(method) for method in (one, other)]
    twice = sorted(roles[0].keys() & roles[1].keys())
    if twice or not all(roles):
        reason = f"with one {twice[0]}" if twice else "that each differ from fedavg in a role"
        raise ValueError(f"method={names!r}: expected methods {reason}.")
    return Method("", **roles[0], **roles[1])


def _roles(method: Method) -> dict[str, Any]:
    """The roles in which a method differs from federated averaging."""
    return {name: role for name, role in method._asdict().items() if callable(role)}


def _round(method: Method, config: Config, model: Model) -> Round:
    if method.whole is not None:
        return method.whole(config, model)
    return simulate.make_round(
        model,
        (method.selector or _uniform)(config),
        (method.solver or _sgd)(config),
        (method.aggregator or _mean)(config),
        clients_per_batch=config.training.clients_per_batch,
    )


def _check(config: Config) -> None:
    """Judges what would otherwise be noticed only once the run has begun."""
    training = config.training
    if not config.methods:
        raise ValueError("methods=(): expected one or more.")
    checks.positive_int("training.rounds", training.rounds)
    checks.positive_int("training.eval_every", training.eval_every)
    checks.seeds("training.seeds", training.seeds)
    if config.distributed and config.devices != "all":
        raise ValueError(f"devices={config.devices!r}: expected 'all' with distributed.")
    if config.data.per_run and config.devices not in (1, "auto"):
        raise ValueError(f"devices={config.devices!r}: expected 1 or 'auto' with data.per_run.")


def _mesh(devices: int | Literal["auto", "all"]) -> Mesh | None:
    if devices == "auto":
        return cores_if_any()
    return None if devices == 1 else client_mesh(devices)
