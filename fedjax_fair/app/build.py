"""Where a configuration becomes functions, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from fedjax_fair import checks, data, faults, models, simulate, uploads
from fedjax_fair.app.config import DATA_NAMES, Config, ModelConfig
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.memory import Least, least_memory, require_memory, total_memory
from fedjax_fair.app.method import Method
from fedjax_fair.app.registry import METHODS, MODELS, PARTITIONERS, factories
from fedjax_fair.app.settings import closest, lookup, override, unknown_method
from fedjax_fair.app.signatures import Setting, settings_of
from fedjax_fair.base import Faults, Model, Sees
from fedjax_fair.data import FederatedData
from fedjax_fair.parallel.cores import CORES
from fedjax_fair.parallel.mesh import is_run_on_one_device, num_run_groups
from fedjax_fair.simulate import Round

__all__ = [
    "Experiment",
    "batch_size",
    "build",
    "load_data",
    "local_steps",
    "memory_of",
    "method_round",
    "method_settings",
    "relevant",
    "server_sees",
]

_COHORT_SIZE = 10
_ROLES = ("solver", "selector", "aggregator")


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
    rounds: dict[str, Round]
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
    if config.data.per_run:
        _require_all_clients(mesh, config, "with data.per_run")
    for name in config.methods:  # Before data is read, which can take long.
        method, own = _variant(config, name)
        lookup("model.name", str(own.model.name), MODELS)
        if method.pooled is not None:
            _require_all_clients(mesh, config, f"for {name}")
        if method.pooled is not None and config.faults != type(config.faults)():
            raise ValueError(f"faults: expected none with {name}, which has no clients.")
        if method.pooled is not None and config.upload != type(config.upload)():
            raise ValueError(f"upload: expected none with {name}, which has no clients.")
    _check_all_read(config)
    if federation is None:
        federation = load_data(config)
    classes, largest = federation.num_classes, largest_client(federation)
    settings_of_models = {name: _variant(config, name)[1].model for name in config.methods}
    shared: dict[ModelConfig, Model] = {}  # Most methods have one, and with it programs.
    for own in settings_of_models.values():
        if own not in shared:
            shared[own] = _model(own, classes)
            _require_network(str(own.name), shared[own], federation)
    rounds = {
        name: method_round(config, name, classes, largest, shared[own])
        for name, own in settings_of_models.items()
    }
    experiment = Experiment(config, federation, rounds, mesh)
    limit = total_memory() if memory is None else int(memory)
    for name, least in memory_of(experiment).items():
        require_memory(name, least, _variant(config, name)[1].solver, config.training, limit)
    return experiment


def memory_of(experiment: Experiment) -> dict[str, Least]:
    """What each method needs of a device at least, besides the data."""
    config, data, rounds, mesh = experiment
    runs = -(-len(config.training.seeds) // num_run_groups(mesh))
    return {
        name: least_memory(
            jax.eval_shape(method.init, jax.random.key(0), data.partition(0)),
            _variant(config, name)[1].solver,
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
    _check_all_read(config)
    seed: Any = config.data.seed
    if config.data.per_run:
        seed = tuple(config.data.seed + run for run in config.training.seeds)
    partitioner = _make(partition, config.data, names=DATA_NAMES)
    own = config.data
    return data.load(own.name, partitioner, seed, own.dir, validation=own.validation or 0.0)


def _require_network(name: str, model: Model, federation: FederatedData) -> None:
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
) -> Round:
    """The round of one method.

    Args:
        config: A resolved configuration, in which numbers that roles take as traced may be tracers.
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
        >>> round._fields
        ('model', 'init', 'step', 'pooled', 'bytes_up')
    """
    method, own = _variant(config, name)
    if model is None:
        model = _model(own.model, num_classes)
    made_of = factories(method)
    if method.pooled is not None:
        # What all examples train has no global model to be pulled to.
        return method.pooled(model, _make(made_of["solver"], replace(own.solver, prox=None)))
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
    faults, settings = _faults(config), _uploads(config)
    try:
        return simulate.make_round(
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


def server_sees(method: Method) -> str:
    """What the server needs to see of one client, in a word.

    Examples:
        >>> server_sees(METHODS["fedavg"]), server_sees(METHODS["divfl"])
        ('sum', 'vectors')
    """
    if method.pooled is not None:
        return "examples"
    made_of = factories(method)
    needed: dict[str, Any] = dict.fromkeys(method.from_solver, 1)
    roles = [
        _make(made_of[role], None, cohort_size=_COHORT_SIZE, **needed)
        for role in ("selector", "aggregator")
    ]
    return max((role.sees for role in roles), key=get_args(Sees).index)


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
    return _variant(config, name)[1].solver.batch_size


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
    method, own = _variant(config, name)
    if own.solver.epochs is None:
        return np.full_like(sizes, own.solver.steps)
    if method.pooled is not None:
        sizes = np.sum(sizes, keepdims=True)
    return own.solver.epochs * -(-sizes // own.solver.batch_size)


def _faults(config: Config) -> list[Faults]:
    """What goes wrong, as the settings say.

    Raises:
        ValueError: If a setting is out of range, is missing, or changes nothing.
    """
    own, found = config.faults, []
    for name in ("dropout", "stragglers", "late", "byzantine"):
        checks.probability(f"faults.{name}", getattr(own, name))
    if own.dropout:
        found.append(faults.dropout(own.dropout))
    needed = {"deadline_steps": "stragglers", "late_rounds": "late", "attack": "byzantine"}
    for name, of in needed.items():
        amount = getattr(own, of)
        if bool(amount) != (getattr(own, name) is not None):
            raise ValueError(
                f"faults.{name}={getattr(own, name)!r}: expected it together with faults.{of}, "
                f"got {amount!r}."
            )
    if own.strength is not None and not own.byzantine:
        raise ValueError(f"faults.strength={own.strength!r}: expected faults.byzantine above 0.")
    if own.deadline_steps is not None:
        found.append(faults.stragglers(own.stragglers, deadline_steps=own.deadline_steps))
    if own.late_rounds is not None:
        found.append(_named("faults.late_rounds", faults.late, own.late, rounds=own.late_rounds))
    if own.attack is not None:
        found.append(faults.byzantine(own.byzantine, own.attack, own.strength))
    if own.period is not None:
        found.append(faults.diurnal(own.period))
    return found


def _uploads(config: Config) -> dict[str, Any]:
    """What members send, as arguments of ``make_round``.

    Raises:
        ValueError: If a setting is out of range, or changes nothing.
    """
    own = config.upload
    if own.limit is not None and own.aggregation != "secure":
        raise ValueError(f"upload.limit={own.limit!r}: expected upload.aggregation='secure'.")
    given: dict[str, Any] = {"aggregation": own.aggregation}
    if own.limit is not None:
        given["aggregation"] = uploads.secure(own.limit)
    if own.top_k is not None and own.bits is not None:
        raise ValueError(f"upload.top_k={own.top_k!r}: expected it without upload.bits.")
    if own.top_k is not None:
        given["compression"] = _named("upload.top_k", uploads.top_k, own.top_k)
    if own.bits is not None:
        given["compression"] = uploads.quantized(own.bits)
    for name in ("noise_multiplier", "clip_quantile"):
        if getattr(own, name) is not None and own.clip is None:
            raise ValueError(f"upload.{name}={getattr(own, name)!r}: expected upload.clip.")
    if own.clip is not None:
        noise = 0.0 if own.noise_multiplier is None else own.noise_multiplier
        if own.clip_quantile is None:
            given["privacy"] = uploads.privacy(own.clip, noise)
        else:
            given["privacy"] = _named(
                "upload.clip with upload.clip_quantile",
                uploads.adaptive_privacy,
                noise,
                initial_clip=own.clip,
                quantile=own.clip_quantile,
            )
    return given


def _named(setting: str, factory: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """What a factory makes; an error begins with the setting, which the factory calls otherwise."""
    try:
        return factory(*given, **more)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def _fitting(solver: Any, largest_client: int) -> Any:
    """The settings of a solver whose minibatches are not larger than the largest client."""
    if solver.replacement or solver.batch_size is None or solver.batch_size <= largest_client:
        return solver
    return replace(solver, batch_size=largest_client)


def method_settings(config: Config, name: str) -> dict[str, dict[str, Setting]]:
    """The settings that one method reads, by section and name, those in its own name aside.

    Args:
        config: A resolved configuration.
        name: The method, as in ``config.methods``.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> config = presets.resolve(Config())
        >>> list(method_settings(config, "unionfl:mu=2")["selector"])
        ['cohort_size', 'window', 'candidates', 'pool', 'points', 'gradients', 'scale']
    """
    method, own = _variant(config, name)
    in_name = name.partition(":")[2].split(",")
    written = {item.partition("=")[0].strip().rpartition(".")[2] for item in in_name}
    return {
        section: {key: setting for key, setting in read.items() if key not in written}
        for section, read in _settings(method, own).items()
    }


def relevant(config: Config, base: Config | None = None) -> Config:
    """The same run without settings that nothing in it reads.

    For a configuration that was made for more methods, or other data, than it is used with.

    Args:
        config: A resolved configuration.
        base: What it was made from; a setting that differs from it was meant, and is kept.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> planted = presets.resolve(presets.PRESETS["equitable"].config)
        >>> relevant(replace(planted, methods=("fedavg",))).aggregator.num_clusters
    """
    for section, name in list(_unread(config)):
        part = getattr(config, section)
        if base is not None and getattr(part, name) != getattr(getattr(base, section), name):
            continue
        part = replace(part, **{name: None})
        config = replace(config, **{section: part})
    return config


def _make(
    factory: Callable[..., Any], part: Any, names: Mapping[str, str] | None = None, **extra: Any
) -> Any:
    """Calls a factory with what its section gives, and with what of the rest it has."""
    names = names or {}
    readable = settings_of(factory)
    given = {name: getattr(part, names.get(name, name), None) for name in readable}
    given = {name: value for name, value in given.items() if value is not None}
    others = {name: value for name, value in extra.items() if name in readable}
    return factory(**others | given)


def _combination(name: str) -> Method:
    """The method of a name such as ``subtrunc+equitable:lam=0.25``."""
    names = name.partition(":")[0]
    first, *others = map(_known, names.split("+"))
    for other in others:
        first = _combined(names, first, other)
    return first


def _known(name: str) -> Method:
    try:
        return lookup("method", name, METHODS)
    except ValueError as error:
        if closest(name, METHODS) is not None:
            raise
        raise ValueError(f"{error} {unknown_method(name)}.") from None


def _variant(config: Config, name: str) -> tuple[Method, Config]:
    """A method and its own configuration, in which the settings of its name hold."""
    method = _combination(name)
    _, _, written = name.partition(":")
    if not written:
        return method, config
    # A network's settings are those of the one that the name chooses.
    return method, override(config, written, lambda config: _settings(method, config), name)


def _settings(method: Method, config: Config) -> dict[str, dict[str, Setting]]:
    """What a method reads, by section."""
    made_of = factories(method)
    settings = {role: dict(settings_of(made_of[role])) for role in _ROLES if role in made_of}
    for role in ("selector", "aggregator"):
        for borrowed in method.from_solver:
            settings.get(role, {}).pop(borrowed, None)
    if method.pooled is not None:
        del settings["solver"]["prox"]
    network = dict(settings_of(lookup("model.name", str(config.model.name), MODELS)))
    del network["num_classes"]
    return settings | {"model": network}


def _combined(names: str, one: Method, other: Method) -> Method:
    """Both methods in one, if no role is taken twice."""
    roles = [{} if method.pooled else _roles(method) for method in (one, other)]
    twice = sorted(roles[0].keys() & roles[1].keys())
    if twice or not all(roles):
        reason = f"with one {twice[0]}" if twice else "that each differ from fedavg in a role"
        raise ValueError(f"method={names!r}: expected methods {reason}.")
    borrowed = {**one.from_solver, **other.from_solver}
    average = other.average if "selector" in roles[1] else one.average
    return Method("", **roles[0], **roles[1], average=average, from_solver=borrowed)


def _roles(method: Method) -> dict[str, Any]:
    """The roles in which a method differs from federated averaging."""
    return {name: role for name, role in method._asdict().items() if callable(role)}


def _unread(config: Config) -> Iterable[tuple[str, str]]:
    """Settings that are given and that nothing in the run reads: section and field."""
    read: dict[str, set[str]] = {
        "data": {"name", "dir", "partition", "seed", "validation", "per_run"}
    }
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    read["data"] |= {DATA_NAMES.get(name, name) for name in settings_of(partition)}
    read |= {"model": {"name", "compute"}, **{role: set() for role in _ROLES}}
    for name in config.methods:
        method, own = _variant(config, name)
        for section, settings in _settings(method, own).items():
            read[section] |= settings.keys()
    for section, names in read.items():
        part = getattr(config, section)
        for item in fields(part):
            if item.name not in names and getattr(part, item.name) is not None:
                yield section, item.name


def _check_all_read(config: Config) -> None:
    for section, name in _unread(config):
        value = getattr(getattr(config, section), name)
        readers = {
            "data": f"data.partition={config.data.partition!r}",
            "model": f"model.name={config.model.name!r}",
        }.get(section, f"methods {', '.join(config.methods)}")
        raise ValueError(
            f"{section}.{name}={value!r}: nothing in this run reads it; expected only settings of "
            f"{readers}."
        )


def _check(config: Config) -> None:
    """Judges what would otherwise be noticed only once the run has begun."""
    training = config.training
    if not config.methods or len(set(config.methods)) < len(config.methods):
        raise ValueError(f"methods={config.methods}: expected one or more different methods.")
    _faults(config)
    _uploads(config)
    checks.positive_int("training.rounds", training.rounds)
    checks.positive_int("training.eval_every", training.eval_every)
    checks.seeds("training.seeds", training.seeds)
    if config.data.validation is not None:
        checks.unit_interval("data.validation", config.data.validation)
    if config.distributed and config.devices != "all":
        raise ValueError(f"devices={config.devices!r}: expected 'all' with distributed.")


def _require_all_clients(mesh: Mesh | None, config: Config, why: str) -> None:
    """Requires devices or cores that can each compute all clients."""
    if not (is_run_on_one_device(mesh) or (mesh is not None and mesh.axis_names == (CORES,))):
        raise ValueError(
            f"devices={config.devices!r}: expected 1, 'auto' or 'runs=R,clients=1' {why}."
        )
