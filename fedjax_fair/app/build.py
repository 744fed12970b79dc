"""Where a configuration becomes data and functions, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from fedjax_fair import checks, data, models
from fedjax_fair.app.conditions import communication_of, faults_of
from fedjax_fair.app.config import DATA_NAMES, Config, ModelConfig
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.memory import MemoryEstimate, check_memory, min_memory, total_memory
from fedjax_fair.app.method import Method
from fedjax_fair.app.registry import MODELS, PARTITIONERS, role_classes
from fedjax_fair.app.settings import lookup
from fedjax_fair.app.signatures import settings_of
from fedjax_fair.app.variants import check_unused_settings, resolve_method
from fedjax_fair.base import Model, ServerView
from fedjax_fair.data import FederatedData
from fedjax_fair.parallel.cores import CORES
from fedjax_fair.parallel.mesh import is_run_on_one_device, num_run_groups
from fedjax_fair.simulate import BaseRound, Round

__all__ = [
    "Experiment",
    "batch_size",
    "build",
    "load_data",
    "local_steps",
    "memory_of",
    "method_round",
    "server_view",
]

_COHORT_SIZE = 10


class Experiment(NamedTuple):
    """A configuration turned into data and functions.

    Attributes:
        config: What it was made from.
        data: The federation that all methods share.
        rounds: The round of each method, in the order of ``config.methods``.
        mesh: The devices to run on, or None for a single one.
    """

    config: Config
    data: FederatedData
    rounds: dict[str, BaseRound]
    mesh: Mesh | None = None


def build(
    config: Config, federation: FederatedData | None = None, memory: float | None = None
) -> Experiment:
    """Turns a configuration into data and functions, or says which setting is wrong.

    Args:
        config: A resolved configuration.
        federation: Its data, if that is there already; by default it is read.
        memory: Bytes that a run may take at most; by default all of the device at hand.

    Returns:
        An ``Experiment`` that is ready to run.

    Raises:
        ValueError: If a setting is out of range, names nothing, or is read by nothing in the run,
            or if the run is larger than all memory.
        FileNotFoundError: If the data is not there.
    """
    _check(config)
    mesh = mesh_of(config.devices)
    if config.data.partition_per_seed:
        _check_all_clients(mesh, config, "with data.partition_per_seed")
    for name in config.methods:  # Before data is read, which can take long.
        method, own = resolve_method(config, name)
        lookup("model.name", str(own.model.name), MODELS)
        if method.centralized_fn is not None:
            _check_all_clients(mesh, config, f"for {name}")
        if method.centralized_fn is not None and config.faults != type(config.faults)():
            raise ValueError(f"faults: expected none with {name}, which has no clients.")
        if (
            method.centralized_fn is not None
            and config.communication != type(config.communication)()
        ):
            raise ValueError(f"communication: expected none with {name}, which has no clients.")
    check_unused_settings(config)
    if federation is None:
        federation = load_data(config)
    classes, largest = federation.num_classes, largest_client(federation)
    settings_of_models = {name: resolve_method(config, name)[1].model for name in config.methods}
    shared: dict[ModelConfig, Model] = {}  # Most methods have one, and with it programs.
    for own in settings_of_models.values():
        if own not in shared:
            shared[own] = _model(own, classes)
            _check_network(str(own.name), shared[own], federation)
    rounds = {
        name: method_round(config, name, classes, largest, shared[own])
        for name, own in settings_of_models.items()
    }
    experiment = Experiment(config, federation, rounds, mesh)
    limit = total_memory() if memory is None else int(memory)
    for name, least in memory_of(experiment).items():
        check_memory(name, least, resolve_method(config, name)[1].solver, config.training, limit)
    return experiment


def memory_of(experiment: Experiment) -> dict[str, MemoryEstimate]:
    """What each method needs of a device at least, besides the data."""
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
    """The federation that a resolved configuration describes.

    Raises:
        ValueError: If a setting is out of range, or nothing in the run reads one.
        FileNotFoundError: If the data is not there.
    """
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    check_unused_settings(config)
    seed: Any = config.data.seed
    if config.data.partition_per_seed:
        seed = tuple(config.data.seed + run for run in config.training.seeds)
    partitioner = _make(partition, config.data, names=DATA_NAMES)
    own = config.data
    return data.load(
        own.name, partitioner, seed, own.dir, validation_fraction=own.validation_fraction or 0.0
    )


def _check_network(name: str, model: Model, federation: FederatedData) -> None:
    """Requires that a network takes the data, such as images as small as they are."""
    shape = federation.train.features.shape[1:]
    try:
        jax.eval_shape(model.init, jax.random.key(0), federation.train.features[:1])
    except ValueError as error:
        raise ValueError(
            f"model.name={name!r}: expected a network for features of shape {shape}: {error}"
        ) from None


def largest_client(data: FederatedData) -> int:
    """Most training examples that a client has."""
    return int(np.max(data.train.sizes))


def method_round(
    config: Config,
    name: str,
    num_classes: int,
    largest_client: int | None = None,
    model: Model | None = None,
) -> BaseRound:
    """The round of one method.

    Args:
        config: A resolved configuration.
        name: The method, as in ``config.methods``.
        num_classes: Classes of the data.
        largest_client: Most training examples of a client. Minibatches without replacement that
            would be larger are of this size; the examples in them are the same.
        model: The model, if it is there already.

    Raises:
        ValueError: As ``build``.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> round = method_round(presets.resolve(Config()), "fedprox:prox=0.1", num_classes=10)
        >>> round.solver.prox
        0.1
    """
    method, own = resolve_method(config, name)
    if model is None:
        model = _model(own.model, num_classes)
    made_of = role_classes(method)
    if method.centralized_fn is not None:
        # What all examples train has no global model to be pulled to.
        return method.centralized_fn(
            model, _make(made_of["solver"], replace(own.solver, prox=None))
        )
    if largest_client is not None:
        own = replace(own, solver=_fitting(own.solver, largest_client))
    borrowed = {to: getattr(own.solver, of) for to, of in method.from_solver.items()}
    for missing in (of for to, of in method.from_solver.items() if borrowed[to] is None):
        raise ValueError(f"solver.{missing}=None: expected a value for {name}, which needs it.")
    roles = (
        _make(made_of["selector"], own.selector, cohort_size=_COHORT_SIZE, **borrowed),
        _make(made_of["solver"], own.solver),
        _make(made_of["aggregator"], own.aggregator, **borrowed),
    )
    faults, settings = faults_of(config), communication_of(config)
    try:
        return Round(
            model,
            *roles,
            faults=faults,
            clients_per_batch=own.training.clients_per_batch,
            **settings,
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _model(settings: ModelConfig, num_classes: int) -> Model:
    network = lookup("model.name", str(settings.name), MODELS)
    model = _make(network, settings, num_classes=num_classes)
    return models.in_bfloat16(model) if settings.compute == "bfloat16" else model


def server_view(method: Method) -> str:
    """What the server needs to see of one client, in a word.

    Examples:
        >>> from fedjax_fair.app.registry import METHODS
        >>> server_view(METHODS["fedavg"]), server_view(METHODS["divfl"])
        ('aggregate', 'vectors')
    """
    if method.centralized_fn is not None:
        return "examples"
    made_of = role_classes(method)
    needed: dict[str, Any] = dict.fromkeys(method.from_solver, 1)
    roles = [
        _make(made_of[role], None, cohort_size=_COHORT_SIZE, **needed)
        for role in ("selector", "aggregator")
    ]
    return max((role.server_view for role in roles), key=get_args(ServerView).index)


def batch_size(config: Config, name: str) -> int | None:
    """Examples of a full minibatch of one method.

    Args:
        config: A resolved configuration.
        name: The method, as in ``config.methods``.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> batch_size(presets.resolve(Config()), "fedavg:batch_size=20")
        20
    """
    return resolve_method(config, name)[1].solver.batch_size


def local_steps(
    config: Config, name: str, sizes: Int[np.ndarray, " clients"]
) -> Int[np.ndarray, " clients"]:
    """Local steps that clients take in a round of one method.

    Args:
        config: A resolved configuration.
        name: The method, as in ``config.methods``.
        sizes: Examples of each client.

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


def _fitting(solver: Any, largest_client: int) -> Any:
    """The settings of a solver whose minibatches are not larger than the largest client."""
    if solver.replacement or solver.batch_size is None or solver.batch_size <= largest_client:
        return solver
    return replace(solver, batch_size=largest_client)


def _make(
    constructor: Callable[..., Any], part: Any, names: Mapping[str, str] | None = None, **extra: Any
) -> Any:
    """Calls a constructor with what its section gives, and with what of the rest it has."""
    names = names or {}
    readable = settings_of(constructor)
    given = {name: getattr(part, names.get(name, name), None) for name in readable}
    given = {name: value for name, value in given.items() if value is not None}
    others = {name: value for name, value in extra.items() if name in readable}
    return constructor(**others | given)


def _check(config: Config) -> None:
    """Judges what would otherwise be noticed only once the run has begun."""
    training = config.training
    if not config.methods or len(set(config.methods)) < len(config.methods):
        raise ValueError(f"methods={config.methods}: expected one or more different methods.")
    faults_of(config)
    communication_of(config)
    checks.positive_int("training.rounds", training.rounds)
    checks.positive_int("training.eval_every", training.eval_every)
    checks.seeds("training.seeds", training.seeds)
    if config.data.validation_fraction is not None:
        checks.unit_interval("data.validation_fraction", config.data.validation_fraction)
    if config.distributed and config.devices != "all":
        raise ValueError(f"devices={config.devices!r}: expected 'all' with distributed.")


def _check_all_clients(mesh: Mesh | None, config: Config, why: str) -> None:
    """Requires devices or cores that can each compute all clients."""
    if not (is_run_on_one_device(mesh) or (mesh is not None and mesh.axis_names == (CORES,))):
        raise ValueError(
            f"devices={config.devices!r}: expected 1, 'auto' or 'runs=R,clients=1' {why}."
        )
