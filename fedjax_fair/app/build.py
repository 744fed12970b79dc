"""Builds data and round functions from a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from fedjax_fair import checks, data, models
from fedjax_fair.app.conditions import make_communication, make_faults
from fedjax_fair.app.config import DATA_NAMES, Config, ModelConfig, SolverConfig
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.memory import MemoryEstimate, check_memory, min_memory
from fedjax_fair.app.method import Method
from fedjax_fair.app.registry import MODELS, PARTITIONERS, role_classes
from fedjax_fair.app.settings import lookup
from fedjax_fair.app.signatures import construct
from fedjax_fair.app.variants import check_unused_settings, resolve_method
from fedjax_fair.base import Model, ServerView
from fedjax_fair.data import FederatedData
from fedjax_fair.parallel.cores import CORES
from fedjax_fair.parallel.mesh import is_run_on_one_device, num_run_groups
from fedjax_fair.simulate import BaseRound, Round
from fedjax_fair.training.memory import total_memory

__all__ = [
    "Experiment",
    "build",
    "load_data",
    "local_steps",
    "memory_of",
    "method_round",
    "server_view",
]

_COHORT_SIZE = 10


class Experiment(NamedTuple):
    """Data and round functions of a configuration.

    Attributes:
        config: The resolved configuration.
        data: The federated dataset of all methods.
        rounds: The round of each method, in order.
        mesh: The devices; None for a single one.
    """

    config: Config
    data: FederatedData
    rounds: dict[str, BaseRound]
    mesh: Mesh | None = None


def build(
    config: Config, federation: FederatedData | None = None, memory: float | None = None
) -> Experiment:
    """Builds data and round functions, and checks all settings.

    Args:
        config: A resolved configuration.
        federation: The federated dataset; by default it is loaded.
        memory: Bytes that a run may take; by default those of the local device.

    Raises:
        ValueError: If a setting is out of range, unknown or not used, or a run exceeds the memory.
        FileNotFoundError: If the data set is missing.
    """
    mesh = mesh_of(config.devices)
    _check(config, mesh)  # Before data is loaded, which can take long.
    if federation is None:
        federation = load_data(config)
    network_settings = {name: resolve_method(config, name)[1].model for name in config.methods}
    networks: dict[ModelConfig, Model] = {}  # Methods with equal networks share compiled functions.
    for part in network_settings.values():
        if part not in networks:
            networks[part] = _make_model(part, federation.num_classes)
            _check_network(str(part.name), networks[part], federation)
    rounds = {
        name: method_round(
            config, name, federation.num_classes, largest_client(federation), networks[part]
        )
        for name, part in network_settings.items()
    }
    experiment = Experiment(config, federation, rounds, mesh)
    limit = total_memory() if memory is None else int(memory)
    for name, estimate in memory_of(experiment).items():
        check_memory(name, estimate, resolve_method(config, name)[1], limit)
    return experiment


def _check(config: Config, mesh: Mesh | None) -> None:
    training = config.training
    if not config.methods or len(set(config.methods)) < len(config.methods):
        raise ValueError(f"methods={config.methods}: expected one or more different methods.")
    make_faults(config)
    make_communication(config)
    checks.positive_int("training.rounds", training.rounds)
    checks.positive_int("training.eval_every", training.eval_every)
    checks.seeds("training.seeds", training.seeds)
    if config.data.validation_fraction is not None:
        checks.unit_interval("data.validation_fraction", config.data.validation_fraction)
    if config.distributed and config.devices != "all":
        raise ValueError(f"devices={config.devices!r}: expected 'all' with distributed.")
    if config.data.partition_per_seed:
        _check_all_clients(mesh, config, "with data.partition_per_seed")
    for name in config.methods:
        method, own = resolve_method(config, name)
        lookup("model.name", str(own.model.name), MODELS)
        if method.centralized_fn is None:
            continue
        _check_all_clients(mesh, config, f"for {name}")
        for section in ("faults", "communication"):
            part = getattr(config, section)
            if part != type(part)():
                raise ValueError(f"{section}: expected none with {name}, which has no clients.")
    check_unused_settings(config)


def _check_all_clients(mesh: Mesh | None, config: Config, why: str) -> None:
    """Checks that each device or core computes all clients."""
    if not (is_run_on_one_device(mesh) or (mesh is not None and mesh.axis_names == (CORES,))):
        raise ValueError(
            f"devices={config.devices!r}: expected 1, 'auto' or 'runs=R,clients=1' {why}."
        )


def _check_network(name: str, model: Model, federation: FederatedData) -> None:
    """Checks that a network takes the features, which may be too small images."""
    shape = federation.train.features.shape[1:]
    try:
        jax.eval_shape(model.init, jax.random.key(0), federation.train.features[:1])
    except ValueError as error:
        raise ValueError(
            f"model.name={name!r}: expected a network for features of shape {shape}: {error}"
        ) from None


def memory_of(experiment: Experiment) -> dict[str, MemoryEstimate]:
    """Returns lower bounds of the memory of each method on a device, without the data."""
    config, data, rounds, mesh = experiment
    runs = -(-len(config.training.seeds) // num_run_groups(mesh))
    return {
        name: min_memory(
            jax.eval_shape(method.init, jax.random.key(0), data.partition(0)),
            resolve_method(config, name)[1].solver,
            runs,
            data,
        )
        for name, method in rounds.items()
    }


def load_data(config: Config) -> FederatedData:
    """Loads the federated dataset of a resolved configuration.

    Raises:
        ValueError: If a setting is out of range or not used.
        FileNotFoundError: If the data set is missing.
    """
    part = config.data
    check_unused_settings(config)
    seed: Any = part.seed
    if part.partition_per_seed:
        seed = tuple(part.seed + run for run in config.training.seeds)
    partition = lookup("data.partition", str(part.partition), PARTITIONERS)
    partitioner = construct(partition, part, DATA_NAMES)
    fraction = part.validation_fraction or 0.0
    return data.load(part.name, partitioner, seed, part.dir, validation_fraction=fraction)


def largest_client(data: FederatedData) -> int:
    """Returns the largest number of training examples of a client."""
    return int(np.max(data.train.sizes))


def method_round(
    config: Config,
    name: str,
    num_classes: int,
    largest_client: int | None = None,
    model: Model | None = None,
) -> BaseRound:
    """Makes the round of one method.

    Args:
        config: A resolved configuration.
        name: The method, as in ``config.methods``.
        num_classes: Number of classes.
        largest_client: Training examples of the largest client. Sampling without replacement has no
            larger batches; their examples are the same.
        model: The network; by default it is made.

    Raises:
        ValueError: If a setting is out of range or unknown.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> method_round(presets.resolve(Config()), "fedprox:prox=0.1", num_classes=10).solver.prox
        0.1
    """
    method, own = resolve_method(config, name)
    if model is None:
        model = _make_model(own.model, num_classes)
    classes = role_classes(method)
    if method.centralized_fn is not None:
        # Pooled training has no global model for a proximal term.
        solver = construct(classes["solver"], replace(own.solver, prox=None))
        return method.centralized_fn(model, solver)
    solver_settings = _limit_batch_size(own.solver, largest_client)
    from_solver = {to: getattr(own.solver, of) for to, of in method.from_solver.items()}
    for to, of in method.from_solver.items():
        if from_solver[to] is None:
            raise ValueError(f"solver.{of}=None: expected a value for {name}.")
    faults, communication = make_faults(config), make_communication(config)
    selector = construct(classes["selector"], own.selector, cohort_size=_COHORT_SIZE, **from_solver)
    solver = construct(classes["solver"], solver_settings)
    aggregator = construct(classes["aggregator"], own.aggregator, **from_solver)
    try:
        return Round(
            model,
            selector,
            solver,
            aggregator,
            faults=faults,
            clients_per_batch=own.training.clients_per_batch,
            **communication,
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _make_model(part: ModelConfig, num_classes: int) -> Model:
    network = lookup("model.name", str(part.name), MODELS)
    model = construct(network, part, num_classes=num_classes)
    return models.in_bfloat16(model) if part.compute == "bfloat16" else model


def _limit_batch_size(solver: SolverConfig, largest_client: int | None) -> SolverConfig:
    if largest_client is None or solver.replacement or solver.batch_size is None:
        return solver
    return replace(solver, batch_size=min(solver.batch_size, largest_client))


def server_view(method: Method) -> str:
    """Returns what the server needs to see of single clients.

    Examples:
        >>> from fedjax_fair.app.registry import METHODS
        >>> server_view(METHODS["fedavg"]), server_view(METHODS["divfl"])
        ('aggregate', 'vectors')
    """
    if method.centralized_fn is not None:
        return "examples"
    classes = role_classes(method)
    placeholders: dict[str, Any] = dict.fromkeys(method.from_solver, 1)
    roles = [
        construct(classes[role], None, cohort_size=_COHORT_SIZE, **placeholders)
        for role in ("selector", "aggregator")
    ]
    return max((role.server_view for role in roles), key=get_args(ServerView).index)


def local_steps(
    config: Config, name: str, sizes: Int[np.ndarray, " clients"]
) -> Int[np.ndarray, " clients"]:
    """Returns the local steps of clients of some sizes in a round of one method.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> config = presets.resolve(Config())
        >>> local_steps(config, "fedavg:batch_size=20,epochs=2", np.array([5, 41])).tolist()
        [2, 6]
    """
    method, own = resolve_method(config, name)
    if own.solver.epochs is None:
        return np.full_like(sizes, own.solver.steps)
    if method.centralized_fn is not None:
        sizes = np.sum(sizes, keepdims=True)
    return own.solver.epochs * -(-sizes // own.solver.batch_size)
