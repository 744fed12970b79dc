"""Builds data and round functions from a configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_fair import aggregators
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.experiment_data import Experiment, load_data
from fedjax_fair.app.memory import check_memory, min_memory
from fedjax_fair.app.model_files import read_fitted
from fedjax_fair.app.networks import make_network, with_parameters
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config, DataConfig, ModelConfig
from fedjax_fair.app.settings.constructors import class_of, construct, settings_of
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.named_methods import method_identity, resolve_method
from fedjax_fair.app.settings.names import option_of, values_of
from fedjax_fair.app.settings.registry import (
    COHORT_SIZE,
    METRICS,
    MODELS,
    SCHEDULES,
    role_classes,
)
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.app.settings.usage import check_unused_settings, make_communication, make_faults
from fedjax_fair.app.timing_files import check_files, make_times
from fedjax_fair.app.weights import read_weights
from fedjax_fair.data import FederatedData
from fedjax_fair.data.text.leaf_users import is_leaf
from fedjax_fair.metrics import predictions
from fedjax_fair.parallel.cores import CORES
from fedjax_fair.parallel.mesh import is_run_on_one_device
from fedjax_fair.roles import ClientMetric, Model, ServerView, Variables
from fedjax_fair.roles.role_errors import explain_errors
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import Round
from fedjax_fair.timing import ClientTimes
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.memory_estimate import total_memory
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import error_prefix

__all__ = [
    "build",
    "load_model",
    "make_model",
    "method_round",
    "metrics_of",
    "round_maker",
    "server_view",
]


def build(
    config: Config, federation: FederatedData | None = None, memory: float | None = None
) -> Experiment:
    """Builds data and rounds of a resolved configuration, and checks all settings.

    Args:
        config: The configuration.
        federation: The clients that train; by default data is loaded and unseen clients held out.
        memory: Bytes that a run may take; by default those of the local device.

    Raises:
        ValueError: If a setting is missing, out of range, unknown or not used, or a run exceeds the
            memory.
        FileNotFoundError: If the data set is missing.
    """
    mesh = mesh_of(config.devices)
    _check(config, mesh)  # Before data is loaded, which can take long.
    unseen = None
    if federation is None:
        federation, unseen = load_data(config)
    make_round = round_maker(federation, config.data)
    rounds = {name: make_round(config, name) for name in config.methods}
    limit, seeds = total_memory() if memory is None else int(memory), config.training.seeds
    for name, method in rounds.items():
        _, method_config = resolve_method(config, name)
        check_memory(name, min_memory(method, method_config, len(seeds), federation, mesh), limit)
    return Experiment(config, federation, rounds, mesh, unseen)


def _check(config: Config, mesh: Mesh | None) -> None:
    training, resolved = config.training, values_of(presets.resolve(config))
    for key, value in sorted(values_of(config).items()):
        if value is None and resolved[key] is not None:
            raise ValueError(f"{'.'.join(key)}=None: expected a value, such as {resolved[key]!r}.")
    identities = {method_identity(config, name) for name in config.methods}
    if not config.methods or len(identities) < len(config.methods):
        raise ValueError(
            f"methods={config.methods}: expected one or more different methods; name each once."
        )
    make_faults(config)
    make_communication(config)
    metrics_of(config, 2)
    checks.positive_int("training.rounds", training.rounds, at_most=checks.MAX_INT)
    checks.positive_int("training.eval_every", training.eval_every, at_most=checks.MAX_INT)
    checks.seeds("training.seeds", training.seeds)
    if (seconds := config.schedule.until_seconds) is not None:
        checks.positive("schedule.until_seconds", seconds)
    checks.unit_interval("data.validation_fraction", config.data.validation_fraction or 0.0)
    checks.unit_interval("data.unseen_fraction", config.data.unseen_fraction or 0.0)
    if config.distributed and config.devices != "all":
        raise ValueError(f"devices={config.devices!r}: expected 'all' with distributed.")
    if config.data.partition_per_seed:
        _check_all_clients(mesh, config, "with data.partition_per_seed")
    for name in config.methods:
        method, method_config = resolve_method(config, name)
        lookup("model.name", str(method_config.model.name), MODELS)
        check_files(method_config.timing)
        if method.schedule is not None and method_config.timing.table is None:
            raise ValueError(
                f"{name} needs the times of clients; add --timing.table FILE, or see "
                "`fedjax-fair run speed`."
            )
        if method.centralized_fn is None:
            continue
        if method_config.timing.table is not None:
            raise ValueError(f"{name}: centralized training has no clients; remove --timing.")
        _check_all_clients(mesh, config, f"for {name}")
        for section in ("faults", "communication"):
            settings = getattr(config, section)
            if settings != type(settings)():
                raise ValueError(f"{section}: expected none with {name}, which has no clients.")
    check_unused_settings(config)


def _check_all_clients(mesh: Mesh | None, config: Config, why: str) -> None:
    """Checks that no device computes only some clients."""
    if not (is_run_on_one_device(mesh) or (mesh is not None and mesh.axis_names == (CORES,))):
        raise ValueError(
            f"devices={config.devices!r}: expected 1, 'auto' or 'runs=R,clients=1' {why}."
        )


def make_model(
    settings: ModelConfig, data: FederatedData, data_config: DataConfig | None = None
) -> Model:
    """Makes the network of the section ``model``, with its initial and frozen parameters.

    Raises:
        ValueError: If a setting is out of range, or the network does not take the features.
    """
    data_config = data_config or DataConfig()
    network = make_network(settings, data.num_classes, data_config.target)
    _check_network(str(settings.name), network, data, data_config.file)
    return _adapt(network, settings, data.train.features[:1])


def _check_network(name: str, model: Model, federation: FederatedData, file: str | None) -> None:
    """Checks that a network takes features of this shape."""
    shape = federation.train.features.shape[1:]
    try:
        jax.eval_shape(model.init, jax.random.key(0), federation.train.features[:1])
    except ValueError as error:
        hint = (
            " Or give samples the shape of images, such as --data.shape 28 28 1 for 784 numbers."
            if len(shape) == 1 and file is not None and is_leaf(file)
            else ""
        )
        raise ValueError(
            f"model.name={name!r}: expected a network for features of shape {shape}: {error}{hint}"
        ) from None


def round_maker(data: FederatedData, data_config: DataConfig) -> Callable[[Config, str], BaseRound]:
    """Returns a function that makes the round of a method on a federated dataset.

    Methods with equal networks share compiled functions.
    """
    model_of = cache(partial(make_model, data=data, data_config=data_config))
    times_of = cache(partial(make_times, data=data))

    def make_round(config: Config, name: str) -> BaseRound:
        _, method_config = resolve_method(config, name)
        return method_round(
            config,
            name,
            data.num_classes,
            largest_client(data),
            model_of(method_config.model),
            num_clients=data.num_clients,
            times=times_of(method_config.timing),
        )

    return make_round


def largest_client(data: FederatedData) -> int:
    """Returns the largest number of training examples of a client."""
    return int(np.max(data.train.sizes))


def method_round(
    config: Config,
    name: str,
    num_classes: int,
    largest_client: int | None = None,
    model: Model | None = None,
    num_clients: int = COHORT_SIZE,
    times: ClientTimes | None = None,
) -> BaseRound:
    """Makes the round of one method of a resolved configuration.

    Args:
        config: The configuration.
        name: The method, as in ``config.methods``.
        num_classes: Number of classes.
        largest_client: Training examples of the largest client, which limit batches that are
            sampled without replacement.
        model: The network; by default it is made.
        num_clients: Number of clients, which limits the default cohort.
        times: Times of clients, with which rounds have a schedule.

    Raises:
        ValueError: If a setting is out of range or unknown.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> method_round(presets.resolve(Config()), "fedprox:prox=0.1", num_classes=10).solver.prox
        0.1
    """
    method, method_config = resolve_method(config, name)
    if model is None:
        network = make_network(method_config.model, num_classes, config.data.target)
        model = _adapt(network, method_config.model)
    classes, solver_settings = role_classes(method), method_config.solver
    if method.centralized_fn is not None:
        # Pooled training has no global model for a proximal term.
        solver = construct(classes["solver"], replace(solver_settings, prox=None))
        with explain_errors(name):
            pooled = method.centralized_fn(model, solver)
        checks.instance(f"{name}: centralized_fn", pooled, BaseRound, "Centralized(model, solver)")
        return pooled
    linked = {}
    for to, setting in method.linked_settings.items():
        section, of = setting.split(".")
        linked[to] = getattr(getattr(method_config, section), of)
        if linked[to] is None and section in classes:
            meaning = settings_of(classes[section])[of].help.partition(".")[0].casefold()
            option = option_of(section, of)
            raise ValueError(f"{name} needs {option} ({meaning}), e.g. {option} 10.")
    batch_size = solver_settings.batch_size
    if largest_client is not None and batch_size is not None and not solver_settings.replacement:
        solver_settings = replace(solver_settings, batch_size=min(batch_size, largest_client))
    defaults = {"cohort_size": min(COHORT_SIZE, num_clients), **linked}
    selector_settings, concurrency = method_config.selector, method_config.schedule.concurrency
    if method.schedule is not None and concurrency is not None:
        checks.positive_int("schedule.concurrency", concurrency)
        if concurrency > num_clients:
            raise ValueError(
                f"schedule.concurrency={concurrency}: expected at most {num_clients}, the number "
                "of clients."
            )
        selector_settings = replace(selector_settings, cohort_size=concurrency)
    selector = construct(classes["selector"], selector_settings, **defaults)
    solver = construct(classes["solver"], solver_settings)
    aggregator = construct(classes["aggregator"], method_config.aggregator, **linked)
    if method.server_optimizer is not None:
        optimizer = construct(classes["server_optimizer"], method_config.server_optimizer)
        aggregator = aggregators.WithServerOptimizer(aggregator, optimizer)
    schedule = None
    if times is not None:
        kind = classes.get("schedule", SCHEDULES["synchronous"])
        schedule = construct(kind, method_config.schedule, times)
    with error_prefix(f"{name}: "):
        return Round(
            model if method.network is None else class_of(method.network)(model),
            selector,
            solver,
            aggregator,
            faults=make_faults(config),
            clients_per_batch=method_config.training.clients_per_batch,
            client_state_dtype=method_config.training.client_state_dtype,
            schedule=schedule,
            **make_communication(config),
        )


def metrics_of(config: Config, num_classes: int) -> list[ClientMetric]:
    """Makes the metrics of clients that a configuration names.

    Raises:
        ValueError: If one is unknown, repeated, or of another task.
    """
    names, target = config.training.metrics or (), config.data.target or "classification"
    made = []
    for name in names:
        factory = class_of(lookup("training.metrics", name, METRICS))
        is_of_labels = factory in (predictions.label_f1, predictions.label_accuracy)
        is_of_classes = "num_classes" in inspect.signature(factory).parameters
        if (is_of_labels and target != "multi_label") or (
            (is_of_classes or name == "calibration_error") and target != "classification"
        ):
            raise ValueError(
                f"training.metrics={name!r}: expected a metric for data.target={target!r}, such "
                f"as {'mean_absolute_error' if target == 'regression' else 'label_f1'}."
                if target != "classification"
                else f"training.metrics={name!r}: expected a metric of classes, such as macro_f1; "
                "--data.target multi_label has several labels."
            )
        made.append(factory(num_classes) if is_of_classes else factory())
    if len(set(names)) < len(names):
        raise ValueError(f"training.metrics={names}: expected each once; remove the copies.")
    return made


def _adapt(network: Model, settings: ModelConfig, example: Any = None) -> Model:
    """Returns a network with the initial and the frozen parameters of a configuration.

    Args:
        network: The network.
        settings: The section ``model``.
        example: Features ``[1, ...]``, for frozen parameters without a file.
    """
    if settings.weights is not None:
        files = settings.weights, settings.weights_names
        variables = _weights(*files, _last_change(*files))
    elif settings.trainable is None and settings.lora is None:
        return network
    elif example is None:
        raise ValueError("model.weights=None: expected weights, of which a part is frozen.")
    else:
        variables = jax.device_get(network.init(jax.random.key(0), example))
    return with_parameters(network, settings, variables, example)


def _last_change(*files: str | None) -> float:
    """Returns the time of the last change of files, or of the run that they are in."""
    paths = [Path(file) for file in files if file is not None]
    existing = [path for each in paths for path in (each, *each.parents[:2]) if path.exists()]
    return max(path.stat().st_mtime for path in existing)


# All methods and configurations of a sweep share the arrays.
@lru_cache(maxsize=1)
def _weights(weights: str, names: str | None, last_change: float) -> Variables:
    """Reads the variables of a network from a file, or of a method and a seed of a run."""
    path = Path(weights)
    runs = [folder for folder in (path, *path.parents) if (folder / "config.json").is_file()]
    if path.is_file() or not runs:
        return read_weights(weights, names)
    method, seed = [*path.relative_to(runs[0]).parts, "", ""][:2]
    if not seed.isdecimal() or names is not None:
        raise ValueError(
            f"model.weights={weights!r}: expected RUN/METHOD/SEED, such as "
            f"{str(runs[0] / 'fedavg' / '0')!r}, and no names of arrays."
        )
    return load_model(runs[0], method, int(seed)).variables_for(int(seed), merged=True)


def load_model(
    folder: str | Path, method: str, seed: int | None = None, client: int | str | None = None
) -> FitResult:
    """Reads results and trained models of a method from a run folder.

    Models of a table also predict for tables, whose columns are encoded as in training.

    Args:
        folder: The folder.
        method: The method.
        seed: The seed; by default all.
        client: Id or name of a client, whose personalized models are the result's variables; by
            default these are the global models.

    Raises:
        ValueError: If there is no such run, method, seed or personalized model, or the files are
            damaged.
    """

    def make_model(config: Config, base: Path | None, num_outputs: int) -> Model:
        settings = resolve_method(config, method)[1].model
        network = make_network(settings, num_outputs, config.data.target)
        weights = None if base is None else str(base)
        model = _adapt(network, replace(settings, weights=weights, weights_names=None))
        return method_round(config, method, num_outputs, model=model).model

    return read_fitted(folder, method, seed, client, make_model)


def server_view(method: Method) -> str:
    """Returns what the server needs to see of single clients.

    Examples:
        >>> from fedjax_fair.app.settings.registry import METHODS
        >>> server_view(METHODS["fedavg"]), server_view(METHODS["divfl"])
        ('aggregate', 'vectors')
    """
    if method.centralized_fn is not None:
        return "examples"
    classes = role_classes(method)
    placeholders: dict[str, Any] = dict.fromkeys(method.linked_settings, 1)
    roles = [construct(classes[role], None, **placeholders) for role in ("selector", "aggregator")]
    views = get_args(ServerView)
    for role in roles:
        checks.one_of(f"{type(role).__name__}.server_view", role.server_view, views)
    return max((role.server_view for role in roles), key=views.index)
