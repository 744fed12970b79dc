"""Configurations: trees of frozen dataclasses of scalars and strings.

Sections for methods, networks, partitions, faults and communication have the settings of their
constructors as fields. None stands for the constructor's default, or for that of the data set
(`fedjax_fair.app.settings.presets.resolve`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal, NamedTuple

from typing_extensions import Doc

from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.registry import (
    COMMUNICATION,
    CONCURRENCY,
    FAULTS,
    METHODS,
    METRICS,
    MODELS,
    PARTITIONERS,
    READERS,
    SCHEDULES,
    TIMING,
    role_classes,
)
from fedjax_fair.app.settings.setting import REQUIRED, Setting, default_hint

__all__ = [
    "AggregatorConfig",
    "CommunicationConfig",
    "Config",
    "DataConfig",
    "FaultsConfig",
    "Maximize",
    "MaximizeExemplars",
    "MaximizeFeatures",
    "MaximizeMovielens",
    "MaximizeScores",
    "ModelConfig",
    "PartConfig",
    "Preset",
    "RatingsConfig",
    "ScheduleConfig",
    "SelectorConfig",
    "ServerOptimizerConfig",
    "SolverConfig",
    "TimingConfig",
    "TrainingConfig",
]

_MAX_READERS = 7

_OF_DATA = default_hint("that of the data set")
_TFDS = default_hint("$TFDS_DATA_DIR or ~/tensorflow_datasets")
# The data, the run or the solver determines these parameters.
_DETERMINED = ("num_classes", "num_rounds", "local_steps", "learning_rate")


def _role(role: str) -> dict[str, Callable[..., Any]]:
    """Returns the class of a role by method."""
    classes = {name: role_classes(method) for name, method in METHODS.items()}
    return {name: by_role[role] for name, by_role in classes.items() if role in by_role}


def _section(
    constructors: Mapping[str, Callable[..., Any]],
    fixed: type = object,
    *,
    hidden: Sequence[str] = (),
) -> Any:
    """Makes the base class of a section of a configuration, whose fields are None by default.

    Args:
        constructors: Constructors by the name that selects them.
        fixed: A frozen dataclass of other fields.
        hidden: Parameters that do not become fields.
    """
    users: dict[str, dict[str, Setting]] = {}
    for selected, constructor in constructors.items():
        for name, setting in settings_of(constructor).items():
            if name not in hidden:
                users.setdefault(name, {})[selected] = setting
    generated = []
    for key, settings in users.items():
        kind, *others = {str(setting.type): setting.type for setting in settings.values()}.values()
        if others:
            raise TypeError(f"{key}: {kind}, {others}; expected one type for all constructors.")
        annotation = Annotated[
            kind | None, Doc(_help(settings, len(constructors))), default_hint(_defaults(settings))
        ]
        generated.append((key, annotation, field(default=None)))
    return make_dataclass("Section", generated, bases=(fixed,), frozen=True)


def _help(users: Mapping[str, Setting], num_constructors: int) -> str:
    """Returns the description of a field and, of several names, those that use it."""
    text = next((s.help for s in users.values() if not s.help.startswith("As for")), "")
    if num_constructors == 1:
        return text
    readers = ", ".join(users) if len(users) <= _MAX_READERS else "most methods"
    return f"{text.rstrip('.')} ({readers})."


def _defaults(users: Mapping[str, Setting]) -> str:
    """Returns the default of a field, or its defaults with the names that use each but the most."""
    names: dict[str, list[str]] = {}
    for name, setting in users.items():
        if setting.default not in (None, REQUIRED):
            value = setting.default
            text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            names.setdefault(text, []).append(name)
    first, *others = sorted(names, key=lambda text: -len(names[text])) or [""]
    return "; ".join([first, *(f"{text} for {', '.join(names[text])}" for text in others)])


@dataclass(frozen=True)
class _Data:
    """Settings of data sets and files that are not of their partition.

    Attributes:
        name: Data set; `fedjax-fair data list` lists them.
        dir: Folder of prepared tensorflow-datasets sets, tables or shakespeare.jsonl.gz, or of the
            original files of MNIST or CIFAR.
        file: File instead of a data set: a table, .csv, .tsv, .parquet or .feather; arrays, .npz;
            LEAF's .json; or a folder of .parquet, .json or .npz files (docs/data.md).
        label: Column of a table to predict; several for regression or multi_label.
        target: What the label of a file is: a class, numbers, or several labels of 0 and 1.
        label_unit: Unit of the label of a regression, such as years, for tables, plots and reports.
        central_test: Table, .npz file or LEAF's .json of test examples of no client, on which the
            global models are measured too; of an .npz file with test examples these.
        shape: Shape of a sample in LEAF's .json, such as 28 28 1 of FEMNIST's 784 pixels.
        features: Column of images or lists of numbers in a table, which are the only features.
        sensitive_features: Columns of a table that are sensitive features, such as sex and race.
        exclude: Columns of a table that are not features of the model.
        partition: Partition of examples over clients: iid, classes_per_client, shards, dirichlet,
            quantity_skew, planted_clusters, biased, by_column or natural.
        seed: Seed of the partition.
        validation_fraction: Fraction of each client's training examples held out for validation,
            in [0, 1). A sweep ranks configurations by it.
        partition_per_seed: Whether each run has another partition, with the sum of both seeds.
        unseen_fraction: Fraction of the clients that are held out of training, in [0, 1). The
            trained models are evaluated on them, before and after local steps.
        unknown_clients: What clients of a file's test examples are that have no training examples:
            an error, or unseen clients, on which the trained models are evaluated.
    """

    name: str = "digits"
    dir: Annotated[str | None, _TFDS] = None
    file: Annotated[str | None, default_hint()] = None
    label: Annotated[str | tuple[str, ...] | None, default_hint()] = None
    target: Annotated[
        Literal["classification", "regression", "multi_label"] | None,
        default_hint("classification, unless the label has many different numbers"),
    ] = None
    label_unit: Annotated[str | None, default_hint("unit of the label")] = None
    central_test: Annotated[str | None, default_hint("none")] = None
    shape: Annotated[tuple[int, ...] | None, default_hint("that in the file")] = None
    features: Annotated[str | None, default_hint("all other columns")] = None
    sensitive_features: Annotated[tuple[str, ...] | None, default_hint("none")] = None
    exclude: Annotated[tuple[str, ...] | None, default_hint("none")] = None
    partition: Annotated[str | None, _OF_DATA] = None
    seed: int = 0
    validation_fraction: Annotated[float | None, default_hint("0; 0.1 in a sweep")] = None
    partition_per_seed: bool = False
    unseen_fraction: Annotated[float | None, default_hint("0")] = None
    unknown_clients: Annotated[Literal["error", "unseen"] | None, default_hint("error")] = None


@dataclass(frozen=True)
class PartConfig:
    """Initial parameters and the trained part of a network.

    Attributes:
        weights: Initial parameters: an .npz or .safetensors file, or RUN/METHOD/SEED of a run.
        weights_names: JSON file with the name, in the file of weights, of the array of each path;
            or a list of name and axes to transpose it.
        trainable: Parameters that are trained and sent, by regular expressions of their paths, such
            as head or body/Dense_0/kernel. All others are frozen, without weights at random values
            that seeds share.
        fresh: Start the trained parameters at random, of any number of classes.
        lora: Rank of the low-rank adapters (LoRA) of frozen kernels.
        lora_alpha: Scale of adapters times their rank.
        lora_targets: Kernels that have adapters, as in trainable.
    """

    weights: Annotated[str | None, default_hint("random, of each seed")] = None
    weights_names: Annotated[str | None, default_hint("names are paths")] = None
    trainable: Annotated[tuple[str, ...] | None, default_hint("all")] = None
    fresh: Annotated[bool | None, default_hint("False")] = None
    lora: Annotated[int | None, default_hint("no adapters")] = None
    lora_alpha: Annotated[float | None, default_hint("the rank")] = None
    lora_targets: Annotated[tuple[str, ...] | None, default_hint("all frozen kernels")] = None


@dataclass(frozen=True)
class _Model(PartConfig):
    """Settings of every network.

    Attributes:
        name: Network: logistic, mlp, lenet, cifar_cnn, cifar100_cnn, femnist_cnn, resnet18,
            char_lstm or char_transformer.
        compute: Precision of layers; parameters are float32.
    """

    name: Annotated[str | None, _OF_DATA] = None
    compute: Literal["float32", "bfloat16"] = "float32"


class DataConfig(_section({**PARTITIONERS, **READERS}, _Data)):
    """Data set and partition."""


class ModelConfig(_section(MODELS, _Model, hidden=_DETERMINED)):
    """Network."""


class SolverConfig(_section(_role("solver"))):
    """Local training."""


class SelectorConfig(_section(_role("selector"), hidden=_DETERMINED)):
    """Client selection."""


class AggregatorConfig(_section(_role("aggregator"), hidden=_DETERMINED)):
    """Aggregation."""


class ServerOptimizerConfig(_section(_role("server_optimizer"))):
    """Optimizer of the server."""


class FaultsConfig(_section(FAULTS, hidden=("seed",))):
    """Client faults."""


@dataclass(frozen=True)
class _Communication:
    """Settings of communication that are not of one of its kinds.

    Attributes:
        aggregation: Whether the server sees single updates or only their masked sum.
        delta: Probability in (0, 1) at which epsilon of differential privacy is computed.
    """

    aggregation: Literal["plain", "secure"] = "plain"
    delta: Annotated[float | None, default_hint("1 / number of clients")] = None


class CommunicationConfig(
    _section(COMMUNICATION, _Communication, hidden=("learning_rate", "clipped_count_stddev"))
):
    """Messages of clients and what the server sees of them."""


class TimingConfig(_section({"table": TIMING})):
    """Virtual time: how long clients take for a task, and when they are online."""


@dataclass(frozen=True)
class _Schedule:
    """Settings of runs in virtual time that are not of their schedules.

    Attributes:
        until_seconds: Virtual seconds after which runs end, at their next evaluation.
    """

    until_seconds: Annotated[float | None, default_hint("after all rounds")] = None
    concurrency: Annotated[
        int | None, Doc(CONCURRENCY.help), default_hint("--selector.cohort-size")
    ] = None


class ScheduleConfig(_section(SCHEDULES, _Schedule)):
    """Rounds in virtual time."""


@dataclass(frozen=True)
class TrainingConfig:
    """Rounds, evaluations and seeds.

    Attributes:
        rounds: Number of rounds.
        eval_every: Rounds between evaluations.
        seeds: Seeds of the runs, which determine initial models, cohorts and minibatches.
        on_nonfinite: How to handle non-finite updates.
        clients_per_batch: Clients that train in parallel.
        client_state_dtype: Type to which stored states of clients are rounded; bfloat16 halves
            their memory.
    """

    rounds: Annotated[int | None, _OF_DATA] = None
    eval_every: Annotated[int | None, default_hint("a tenth of the rounds")] = None
    seeds: tuple[int, ...] = (0, 1, 2)
    metrics: Annotated[
        tuple[str, ...] | None,
        default_hint("those of the task, such as the accuracy"),
        Doc(f"Metrics to measure clients by, the most important one first: {', '.join(METRICS)}."),
    ] = None
    on_nonfinite: Annotated[
        Literal["raise", "drop_client", "skip_round"] | None,
        default_hint("raise; skip_round in a sweep"),
    ] = None
    clients_per_batch: Annotated[
        int | None, default_hint("all on a GPU, fewer on a TPU or CPU")
    ] = None
    client_state_dtype: Annotated[Literal["bfloat16"] | None, default_hint("float32")] = None


@dataclass(frozen=True)
class Config:
    """Trains methods on one federated dataset and compares them.

    Defaults depend on the data set.

    Attributes:
        methods: Methods to compare; `fedjax-fair methods` lists them. A method may have settings:
            subtrunc:lam=0.25 or fedprox:prox=0.1,steps=5.
        output: Folder in which the run folder is created.
        devices: Number of devices that share the clients, or all. runs=2,clients=4: two groups of
            four devices; groups share the runs, devices in a group share the clients. auto is one
            device, or all cores of a CPU.
        distributed: Whether this is one of several processes of one run (docs/scaling.md).
    """

    methods: tuple[str, ...] = ("fedavg", "power_of_choice", "divfl", "subtrunc", "unionfl")
    output: str = "runs"
    devices: int | str = "auto"
    distributed: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    aggregator: AggregatorConfig = field(default_factory=AggregatorConfig)
    server_optimizer: ServerOptimizerConfig = field(default_factory=ServerOptimizerConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


class Preset(NamedTuple):
    """A configuration, in which None stands for the default of the data set."""

    summary: str
    config: Config


@dataclass(frozen=True)
class Maximize:
    """Settings of every comparison of maximizers.

    Attributes:
        k: Number of items to select.
        methods: Methods beside centralized greedy and popular; all by default.
        matroid: Constraint: uniform (k items), partition (per_class items of each class), laminar
            (both), or a JSON file such as {"graphic": {"edges": [[0, 1], [1, 2]]}}.
        per_class: Largest number of items of a class (partition, laminar).
        rounds: Rounds of fedcg, and total local steps of a client of fedcg+.
        step: Step size of fedcg; a round of fedcg+ takes local_steps times more.
        local_steps: Local steps per round (fedcg+).
        local: Local steps of 1 / local_steps, clipped at 1, or of step / local_steps (fedcg+).
        sigma: Largest error of sampled gradients, relative to a client's best item (fedcg+).
        cohort_size: Clients per round; for discrete greedy the expected number.
        epsilon: Error of discrete greedy in theorem 5.1, which determines the clients that respond.
        rounding: How a point of fedcg becomes a set: its largest coordinates, or at random.
        client_weights: Weights of clients: equal, or in proportion to their examples.
        seeds: Seeds of the runs of every method.
        output: Folder in which the run folder is created.
    """

    k: int = 10
    methods: tuple[str, ...] = ()
    matroid: str = "uniform"
    per_class: int = 1
    rounds: int = 20
    step: Annotated[float | None, default_hint("1 / rounds")] = None
    local_steps: int = 4
    local: Literal["clip", "scaled"] = "clip"
    sigma: Annotated[float | None, default_hint("exact gradients")] = None
    cohort_size: int | Literal["all"] = 10
    epsilon: Annotated[float | None, default_hint("cohort_size")] = None
    rounding: Literal["greedy", "swap", "pipage"] = "greedy"
    client_weights: Literal["equal", "size"] = "equal"
    seeds: tuple[int, ...] = (0, 1, 2)
    output: str = "runs"


@dataclass(frozen=True)
class MaximizeExemplars(Maximize):
    """Selects public images of digits that represent the private images of all clients.

    Attributes:
        clients: Number of clients; each holds three digits.
    """

    clients: int = 50


@dataclass(frozen=True)
class MaximizeScores(Maximize):
    """Selects columns of a table with the scores of clients: facility location or coverage.

    Attributes:
        file: Table with a row per client and a column per item, CSV or Parquet.
        objective: Best selected score, positive scores that are covered, or items given to clients.
    """

    file: Annotated[str | None, default_hint()] = None
    objective: Literal["facility_location", "coverage", "welfare"] = "facility_location"


@dataclass(frozen=True)
class MaximizeFeatures(Maximize):
    """Selects features that inform most about the label, on every client.

    Attributes:
        file: Table of examples, CSV or Parquet.
        label: Column to predict.
        client: Column whose values are the clients.
        bins: Values of a numeric column.
        clients: Number of clients without a file; each holds three digits.
    """

    file: Annotated[str | None, default_hint("pixels of digits")] = None
    label: Annotated[str | None, default_hint()] = None
    client: Annotated[str | None, default_hint()] = None
    bins: int = 4
    clients: int = 10
    sigma: float | None = 0.5
    cohort_size: int | Literal["all"] = "all"


@dataclass(frozen=True)
class RatingsConfig:
    """Ratings.

    Attributes:
        name: Data set of tensorflow-datasets, such as movielens/1m-ratings.
        dir: Folder of prepared tensorflow-datasets sets.
    """

    name: str = "movielens/100k-ratings"
    dir: Annotated[str | None, _TFDS] = None


@dataclass(frozen=True)
class MaximizeMovielens(Maximize):
    """Selects movies so that every user likes one of them.

    Attributes:
        k: Number of movies to select.
        cohort_size: Users per round; for discrete greedy the expected number.
    """

    data: RatingsConfig = field(default_factory=RatingsConfig)
    k: int = 20
    rounds: int = 50
    local_steps: int = 5
    cohort_size: int | Literal["all"] = 100
