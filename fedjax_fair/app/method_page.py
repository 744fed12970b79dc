"""The tables of methods of docs/methods.md, from docstrings of roles and traced rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedjax_fair import models, timing
from fedjax_fair.app.build import build, method_round, server_view
from fedjax_fair.app.experiment_data import Experiment
from fedjax_fair.app.settings import presets, registry
from fedjax_fair.app.settings.config import SelectorConfig, SolverConfig
from fedjax_fair.app.settings.constructors import class_names
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.communication import DifferentialPrivacy, TopK
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Model
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import Round
from fedjax_fair.rounds.round_state import RoundInfo, RoundState

__all__ = ["tables"]

_COLUMNS = (
    "method",
    "classes",
    "summary",
    "weights",
    "up",
    "down",
    "state",
    "server view",
    "source",
)

_TITLES = {
    "selection": "Client selection",
    "weighting": "Fair weights and directions",
    "group fairness": "Group fairness",
    "server": "Server optimizers",
    "drift": "Drift correction",
    "personalized": "Personalized models",
    "adapters": "Low-rank adapters",
    "asynchronous": "Asynchronous aggregation",
    "robust": "Robust aggregation",
    "reference": "References",
}

_CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "secure sums": {"aggregation": "secure"},
    "compression": {"compression": TopK(0.1)},
    "privacy": {"privacy": DifferentialPrivacy(1.0, 1.0)},
}

_NORMALIZED = ("fedbn",)
"""Methods for networks with batch normalization."""

_REASONS = {
    "needs vectors of single clients": "Secure sums hide the vectors of single clients that the "
    "method reads.",
    "requires equal weights": "The privacy guarantee is that of a mean with equal weights; "
    "`--aggregator.weights uniform` gives them where `aggregators.Mean` has weights by examples.",
    "the solver also sends": "Clients send more than an update, and compression and clipping are "
    "defined for updates.",
    "models with running statistics": "Noise would corrupt the running statistics of the network.",
    "sends a part of the update": "Clients send a part of the update, and compression and noise "
    "would change the rest.",
    "guarantee is known for arrivals": "No guarantee is known for arrivals that depend on the "
    "clients' speeds.",
}
"""Reasons of refusals by a part of their message."""


def tables() -> str:
    """Returns tables of methods by group, and of refused conditions, as Markdown."""
    experiment = _experiment()
    parts = []
    for group, methods in registry.GROUPS.items():
        rows = [_row(name, method, experiment) for name, method in methods.items()]
        parts.append(f"## {_TITLES.get(group, group.capitalize())}\n\n{_markdown(_COLUMNS, rows)}")
    return "\n\n".join([*parts, _refusals(experiment)]) + "\n"


def _experiment() -> Experiment:
    """Returns rounds of all methods, with the groups, steps, cohort and network that some need."""
    others = {*_NORMALIZED, *registry.GROUPS["adapters"], *registry.GROUPS["asynchronous"]}
    methods = tuple(name for name in registry.METHODS if name not in others)
    config = replace(
        presets.PRESETS["equitable"].config,
        methods=methods,
        solver=SolverConfig(steps=5),
        selector=SelectorConfig(),
    )
    fedavg = drop_unused_settings(presets.resolve(replace(config, methods=("fedavg",))))
    plain = build(fedavg)
    experiment = build(presets.resolve(config), _with_people(plain.data))
    classes, clients = experiment.data.num_classes, experiment.data.num_clients
    networks: dict[str, Model | None] = dict.fromkeys(
        _NORMALIZED, models.resnet18(classes, norm="batch")
    )
    networks |= dict.fromkeys(registry.GROUPS["adapters"], _adapted(experiment.data))
    networks |= dict.fromkeys(registry.GROUPS["asynchronous"], None)
    for name, network in networks.items():
        config = replace(experiment.config, methods=(name,))
        schedule = registry.METHODS[name].schedule
        times = None if schedule is None else timing.lognormal(1.0, 0.0, clients)
        experiment.rounds[name] = method_round(
            config, name, classes, model=network, num_clients=clients, times=times
        )
    return experiment


def _adapted(data: FederatedData) -> Model:
    network = models.mlp(data.num_classes)
    variables = network.init(jax.random.key(0), data.train.features[:1])
    return models.lora(network, variables, rank=4)


def _with_people(data: FederatedData) -> FederatedData:
    """Adds a sensitive feature and validation examples, for methods of group fairness."""

    def with_codes(part: ClientExamples) -> ClientExamples:
        codes: Any = np.zeros((len(part.labels), 1), np.int32)
        return part._replace(sensitive_features=codes)

    names = (SensitiveFeature("feature", ("first", "second")),)
    validated = data._replace(validation=data.test)
    return validated.map_parts(with_codes)._replace(sensitive_names=names)


def _row(name: str, method: Method, experiment: Experiment) -> tuple[str, ...]:
    round = experiment.rounds[name]
    costs = ("", "", "")
    if isinstance(round, Round):
        state, info = _trace(round, experiment)
        shared = round.model.bind_state is not None
        model = tree_bytes(state.variables.params if shared else state.variables)
        kept = tree_bytes(state.clients) / experiment.data.num_clients
        costs = tuple(
            bound + _multiple(size / model)
            for bound, size in (
                ("" if info.bytes_up is None else "≤ ", info.traffic.up),
                ("" if info.bytes_down is None else "≤ ", info.traffic.down),
                ("", kept),
            )
        )
    roles = [*(method.roles() or registry.role_classes(method)).values(), method.centralized_fn]
    names = [name for role in roles if role is not None for name in class_names(role)]
    classes = ", ".join(f"`{name.removeprefix('fedjax_fair.')}`" for name in names)
    return (
        f"`{name}`",
        classes,
        method.describe(),
        method.weights_of_mean,
        *costs,
        server_view(method),
        method.source(),
    )


def _trace(round: BaseRound, experiment: Experiment) -> tuple[RoundState, RoundInfo]:
    """Returns shapes of the state after one round, and of its info."""
    key = jax.random.key(0)
    state = jax.eval_shape(round.init, key, experiment.data)
    return jax.eval_shape(round.step, state, experiment.data)


def _multiple(ratio: float) -> str:
    return "0" if ratio == 0 else f"{ratio:.3g}"


def _refusals(experiment: Experiment) -> str:
    """Returns the table of the conditions under which methods are refused."""
    rows = []
    for name, round in experiment.rounds.items():
        if isinstance(round, Round):
            numbers = [_refusal(round, settings, experiment) for settings in _CONDITIONS.values()]
            rows.append((f"`{name}`", *numbers))
    reasons = "\n".join(f"{i}. {reason}" for i, reason in enumerate(_REASONS.values(), 1))
    return f"## Communication settings\n\n{_markdown(('method', *_CONDITIONS), rows)}\n\n{reasons}"


def _refusal(round: Round, settings: Mapping[str, Any], experiment: Experiment) -> str:
    """Returns the number of the reason, or "yes"."""
    try:
        round = round.replace(**settings)  # Refuses secure sums.
        if round.aggregation == "plain":
            _trace(round, experiment)
    except ValueError as error:
        (number,) = [i for i, part in enumerate(_REASONS, 1) if part in str(error)]
        return f"no ({number})"
    return "yes"


def _markdown(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
