"""Where a configuration becomes functions, and nowhere else.

A method joins by one entry in ``METHODS``: a line for people, and a function that builds its round.
Most differ from federated averaging in one role only, which ``federated`` expresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_fair import aggregators, checks, data, models, selectors, simulate, solvers
from fedjax_fair.base import Aggregator, Model, Selector, Solver
from fedjax_fair.centralised import make_centralised
from fedjax_fair.config import Config, ModelConfig, lookup, override
from fedjax_fair.data import FederatedData, Partitioner
from fedjax_fair.simulate import Round

__all__ = ["METHODS", "MODELS", "PARTITIONERS", "Experiment", "Method", "build", "federated"]

BuildRound = Callable[[Config, Model], Round]


class Method(NamedTuple):
    """A federated method, by name.

    Attributes:
        summary: One line for people.
        build: ``build(config, model) -> Round``.
    """

    summary: str
    build: BuildRound


class Experiment(NamedTuple):
    """A configuration turned into data and functions.

    Attributes:
        config: What it was made from.
        data: The federation that all methods share.
        rounds: The round of each method, in the order asked for.
    """

    config: Config
    data: FederatedData
    rounds: dict[str, Round]


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
        return factory(
            section.cohort_size,
            candidates=section.candidates or section.cohort_size,
            info=section.info,
            scale=section.scale,
            **own,
        )

    return make


def _sgd(config: Config, prox: float = 0.0) -> Solver:
    solver: Any = config.solver  # Resolved: what may be None no longer is.
    return solvers.sgd(
        solver.learning_rate,
        solver.batch_size,
        steps=solver.steps,
        epochs=solver.epochs,
        momentum=solver.momentum,
        weight_decay=solver.weight_decay,
        prox=prox,
    )


def _mean(config: Config) -> Aggregator:
    return aggregators.mean(config.aggregator.weights)


def federated(
    selector: Callable[[Config], Selector] = _uniform,
    solver: Callable[[Config], Solver] = _sgd,
    aggregator: Callable[[Config], Aggregator] = _mean,
) -> BuildRound:
    """Describes a method by the roles in which it differs from federated averaging.

    Args:
        selector: Makes the selector from a configuration; by default clients are drawn uniformly.
        solver: Makes the local solver; by default plain SGD.
        aggregator: Makes the aggregator; by default a mean.

    Returns:
        What ``Method.build`` asks for.

    Examples:
        >>> from fedjax_fair.config import SelectorConfig
        >>> by_size = federated(lambda config: selectors.by_size(config.selector.cohort_size))
        >>> by_size(Config(selector=SelectorConfig(cohort_size=0)), models.logistic(10))
        Traceback (most recent call last):
        ValueError: cohort_size=0: expected an integer >= 1.
    """

    def build(config: Config, model: Model) -> Round:
        return simulate.make_round(
            model,
            selector(config),
            solver(config),
            aggregator(config),
            clients_per_batch=config.training.clients_per_batch,
        )

    return build


METHODS: dict[str, Method] = {
    "fedavg": Method(
        "Random clients, local SGD, averaged models (McMahan et al., 2017)", federated()
    ),
    "power_of_choice": Method(
        "The clients of a random pool with the highest losses (Cho et al., 2020)",
        federated(_power_of_choice),
    ),
    "divfl": Method(
        "Clients whose gradients represent everybody's (Balakrishnan et al., 2022)",
        federated(_representatives(selectors.divfl)),
    ),
    "subtrunc": Method(
        "DivFL with a truncated bonus for high losses (Castillo et al., 2024)",
        federated(_representatives(selectors.subtrunc, "lam", "b", "phi")),
    ),
    "unionfl": Method(
        "DivFL with a penalty for those chosen lately (Castillo et al., 2024)",
        federated(_representatives(selectors.unionfl, "mu", "window")),
    ),
    "clustered_by_size": Method(
        "One client from each of several strata of equal mass (Fraboni et al., 2021)",
        federated(lambda config: selectors.clustered_by_size(config.selector.cohort_size)),
    ),
    "clustered_by_similarity": Method(
        "One client from each cluster of similar updates (Fraboni et al., 2021)",
        federated(
            lambda config: selectors.clustered_by_similarity(
                config.selector.cohort_size, measure=config.selector.measure
            )
        ),
    ),
    "full": Method("All clients in every round", federated(lambda config: selectors.full())),
    "round_robin": Method(
        "Clients in turn", federated(lambda c: selectors.round_robin(c.selector.cohort_size))
    ),
    "fedprox": Method(
        "FedAvg whose clients are pulled towards the global model (Li et al., 2020)",
        federated(solver=lambda config: _sgd(config, prox=config.solver.prox)),
    ),
    "centralised": Method(
        "No federation: SGD on everybody's examples in one place, as a reference",
        lambda config, model: make_centralised(model, _sgd(config)),
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


def build(config: Config) -> Experiment:
    """Turns a configuration into data and functions, or says which setting is wrong.

    Args:
        config: A resolved configuration.

    Returns:
        An ``Experiment`` that is ready to run.

    Raises:
        ValueError: If a setting is out of range or names nothing.
        FileNotFoundError: If the data is not there.
    """
    _check(config)
    chosen = {name: _variant(config, name) for name in config.methods}
    make_model = lookup("model.name", str(config.model.name), MODELS)
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)(config.data)
    seed: Any = config.data.seed
    if config.data.per_run:
        seed = tuple(config.data.seed + run for run in config.training.seeds)
    federation = data.load(config.data.name, partition, seed=seed, data_dir=config.data.dir)
    model = make_model(config.model, federation.num_classes)
    rounds = {name: method.build(own, model) for name, (method, own) in chosen.items()}
    for method in rounds.values():
        jax.eval_shape(method.init, jax.random.key(0), federation.partition(0))
    return Experiment(config, federation, rounds)


def _variant(config: Config, name: str) -> tuple[Method, Config]:
    """A method and its own configuration, from a name such as ``subtrunc:lam=0.25``."""
    name, _, settings = name.partition(":")
    own = override(config, settings) if settings else config
    return lookup("method", name, METHODS), own


def _check(config: Config) -> None:
    """Judges what would otherwise be noticed only once the run has begun."""
    training = config.training
    if not config.methods:
        raise ValueError("methods=(): expected one or more.")
    checks.positive_int("training.rounds", training.rounds)
    checks.positive_int("training.eval_every", training.eval_every)
    checks.seeds("training.seeds", training.seeds)
