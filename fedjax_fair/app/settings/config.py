"""Configurations: trees of frozen dataclasses of scalars and strings.

Sections for methods, networks, partitions, faults and communication have the settings of their
constructors as fields. None stands for the constructor's default, or for that of the data set
(`fedjax_fair.app.settings.presets.resolve`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from typing_extensions import Doc

from fedjax_fair.app.settings.fields import default_hint, section
from fedjax_fair.app.settings.registry import (
    COMMUNICATION,
    FAULTS,
    METHODS,
    METRICS,
    MODELS,
    PARTITIONERS,
    READERS,
    role_classes,
)

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
    "Preset",
    "RatingsConfig",
    "SelectorConfig",
    "ServerOptimizerConfig",
    "SolverConfig",
    "TrainingConfig",
]

_OF_DATA = default_hint("that of the data set")
_TFDS = default_hint("$TFDS_DATA_DIR or ~/tensorflow_datasets")
# The data or the solver determines these parameters.
_DETERMINED = ("num_classes", "local_steps", "learning_rate")


def _role(role: str) -> dict[str, Callable[..., Any]]:
    """Returns the class of a role by method."""
    classes = {name: role_classes(method) for name, method in METHODS.items()}
    return {name: by_role[role] for name, by_role in classes.items() if role in by_role}


@dataclass(frozen=True)
class _Data:
    name: str = "digits"
    """Data set; `fedjax-fair data list` lists them."""

    dir: Annotated[
        str | None,
        _TFDS,
        Doc(
            "Folder of prepared tensorflow-datasets sets, tables or shakespeare.jsonl.gz, or of "
            "the original files of MNIST or CIFAR."
        ),
    ] = None

    file: Annotated[
        str | None,
        default_hint(),
        Doc(
            "File instead of a data set: a table, .csv, .tsv, .parquet or .feather; arrays, .npz; "
            "LEAF's .json; or a folder of .parquet, .json or .npz files (docs/data.md)."
        ),
    ] = None

    label: Annotated[
        str | tuple[str, ...] | None,
        default_hint(),
        Doc("Column of a table to predict; several for regression or multi_label."),
    ] = None

    target: Annotated[
        Literal["classification", "regression", "multi_label"] | None,
        default_hint("classification, unless the label has many different numbers"),
        Doc("What the label of a file is: a class, numbers, or several labels of 0 and 1."),
    ] = None

    label_unit: Annotated[
        str | None,
        default_hint("unit of the label"),
        Doc("Unit of the label of a regression, such as years, for tables, plots and reports."),
    ] = None

    central_test: Annotated[
        str | None,
        default_hint("none"),
        Doc(
            "Table, .npz file or LEAF's .json of test examples of no client, on which the global "
            "models are measured too; of an .npz file with test examples these."
        ),
    ] = None

    shape: Annotated[
        tuple[int, ...] | None,
        default_hint("that in the file"),
        Doc("Shape of a sample in LEAF's .json, such as 28 28 1 of FEMNIST's 784 pixels."),
    ] = None

    features: Annotated[
        str | None,
        default_hint("all other columns"),
        Doc("Column of images or lists of numbers in a table, which are the only features."),
    ] = None

    sensitive_features: Annotated[
        tuple[str, ...] | None,
        default_hint("none"),
        Doc("Columns of a table that are sensitive features, such as sex and race."),
    ] = None

    exclude: Annotated[
        tuple[str, ...] | None,
        default_hint("none"),
        Doc("Columns of a table that are not features of the model."),
    ] = None

    partition: Annotated[
        str | None,
        _OF_DATA,
        Doc(
            "Partition of examples over clients: iid, classes_per_client, shards, dirichlet, "
            "quantity_skew, planted_clusters, by_column or natural."
        ),
    ] = None

    seed: int = 0
    """Seed of the partition."""

    validation_fraction: Annotated[
        float | None,
        default_hint("0; 0.1 in a sweep"),
        Doc(
            "Fraction of each client's training examples held out for validation, in [0, 1). A "
            "sweep ranks configurations by it."
        ),
    ] = None

    partition_per_seed: bool = False
    """Whether each run has another partition, with the sum of both seeds."""

    unseen_fraction: Annotated[
        float | None,
        default_hint("0"),
        Doc(
            "Fraction of the clients that are held out of training, in [0, 1). The trained models "
            "are evaluated on them, before and after local steps."
        ),
    ] = None

    unknown_clients: Annotated[
        Literal["error", "unseen"] | None,
        default_hint("error"),
        Doc(
            "What clients of a file's test examples are that have no training examples: an error, "
            "or unseen clients, on which the trained models are evaluated."
        ),
    ] = None


@dataclass(frozen=True)
class _Model:
    name: Annotated[
        str | None,
        _OF_DATA,
        Doc(
            "Network: logistic, mlp, lenet, cifar_cnn, cifar100_cnn, femnist_cnn, resnet18, "
            "char_lstm or char_transformer."
        ),
    ] = None

    compute: Literal["float32", "bfloat16"] = "float32"
    """Precision of layers; parameters are float32."""


class DataConfig(section({**PARTITIONERS, **READERS}, _Data)):
    """Data set and partition."""


class ModelConfig(section(MODELS, _Model, hidden=_DETERMINED)):
    """Network."""


class SolverConfig(section(_role("solver"))):
    """Local training."""


class SelectorConfig(section(_role("selector"), hidden=_DETERMINED)):
    """Client selection."""


class AggregatorConfig(section(_role("aggregator"), hidden=_DETERMINED)):
    """Aggregation."""


class ServerOptimizerConfig(section(_role("server_optimizer"))):
    """Optimizer of the server."""


class FaultsConfig(section(FAULTS, hidden=("seed",))):
    """Client faults."""


@dataclass(frozen=True)
class _Communication:
    aggregation: Literal["plain", "secure"] = "plain"
    """Whether the server sees single updates or only their masked sum."""

    delta: Annotated[float | None, default_hint("1 / number of clients")] = None
    """Probability in (0, 1) at which epsilon of differential privacy is computed."""


class CommunicationConfig(
    section(COMMUNICATION, _Communication, hidden=("learning_rate", "clipped_count_stddev"))
):
    """Messages of clients and what the server sees of them."""


@dataclass(frozen=True)
class TrainingConfig:
    """Rounds, evaluations and seeds."""

    rounds: Annotated[int | None, _OF_DATA] = None
    """Number of rounds."""

    eval_every: Annotated[int | None, default_hint("a tenth of the rounds")] = None
    """Rounds between evaluations."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs, which determine initial models, cohorts and minibatches."""

    metrics: Annotated[
        tuple[str, ...] | None,
        default_hint("those of the task, such as the accuracy"),
        Doc(f"Metrics to measure clients by, the most important one first: {', '.join(METRICS)}."),
    ] = None

    on_nonfinite: Annotated[
        Literal["raise", "drop_client", "skip_round"] | None,
        default_hint("raise; skip_round in a sweep"),
    ] = None
    """How to handle non-finite updates."""

    clients_per_batch: Annotated[
        int | None, default_hint("all on a GPU, fewer on a TPU or CPU")
    ] = None
    """Clients that train in parallel."""

    client_state_dtype: Annotated[Literal["bfloat16"] | None, default_hint("float32")] = None
    """Type to which stored states of clients are rounded; bfloat16 halves their memory."""


@dataclass(frozen=True)
class Config:
    """Trains methods on one federated dataset and compares them.

    Defaults depend on the data set.
    """

    methods: Annotated[
        tuple[str, ...],
        Doc(
            "Methods to compare; `fedjax-fair methods` lists them. A method may have settings: "
            "subtrunc:lam=0.25 or fedprox:prox=0.1,steps=5."
        ),
    ] = ("fedavg", "power_of_choice", "divfl", "subtrunc", "unionfl")

    output: str = "runs"
    """Folder in which the run folder is created."""

    devices: Annotated[
        int | str,
        Doc(
            "Number of devices that share the clients, or all. runs=2,clients=4: two groups of "
            "four devices; groups share the runs, devices in a group share the clients. auto is "
            "one device, or all cores of a CPU."
        ),
    ] = "auto"

    distributed: bool = False
    """Whether this is one of several processes of one run (docs/scaling.md)."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    aggregator: AggregatorConfig = field(default_factory=AggregatorConfig)
    server_optimizer: ServerOptimizerConfig = field(default_factory=ServerOptimizerConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


class Preset(NamedTuple):
    """A configuration, in which None stands for the default of the data set."""

    summary: str
    config: Config


@dataclass(frozen=True)
class Maximize:
    """Settings of every comparison of maximizers."""

    k: int = 10
    """Number of items to select."""

    methods: tuple[str, ...] = ()
    """Methods beside centralized greedy and popular; all by default."""

    matroid: Annotated[
        str,
        Doc(
            "Constraint: uniform (k items), partition (per_class items of each class), laminar "
            '(both), or a JSON file such as {"graphic": {"edges": [[0, 1], [1, 2]]}}.'
        ),
    ] = "uniform"

    per_class: int = 1
    """Largest number of items of a class (partition, laminar)."""

    rounds: int = 20
    """Rounds of fedcg, and total local steps of a client of fedcg+."""

    step: Annotated[float | None, default_hint("1 / rounds")] = None
    """Step size of fedcg; a round of fedcg+ takes local_steps times more."""

    local_steps: int = 4
    """Local steps per round (fedcg+)."""

    local: Literal["clip", "scaled"] = "clip"
    """Local steps of 1 / local_steps, clipped at 1, or of step / local_steps (fedcg+)."""

    sigma: Annotated[float | None, default_hint("exact gradients")] = None
    """Largest error of sampled gradients, relative to a client's best item (fedcg+)."""

    cohort_size: int | Literal["all"] = 10
    """Clients per round; for discrete greedy the expected number."""

    epsilon: Annotated[float | None, default_hint("cohort_size")] = None
    """Error of discrete greedy in theorem 5.1, which determines the clients that respond."""

    rounding: Literal["greedy", "swap", "pipage"] = "greedy"
    """How a point of fedcg becomes a set: its largest coordinates, or at random."""

    client_weights: Literal["equal", "size"] = "equal"
    """Weights of clients: equal, or in proportion to their examples."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs of every method."""

    output: str = "runs"
    """Folder in which the run folder is created."""


@dataclass(frozen=True)
class MaximizeExemplars(Maximize):
    """Selects public images of digits that represent the private images of all clients."""

    clients: int = 50
    """Number of clients; each holds three digits."""


@dataclass(frozen=True)
class MaximizeScores(Maximize):
    """Selects columns of a table with the scores of clients: facility location or coverage."""

    file: Annotated[str | None, default_hint()] = None
    """Table with a row per client and a column per item, CSV or Parquet."""

    objective: Literal["facility_location", "coverage", "welfare"] = "facility_location"
    """Best selected score, positive scores that are covered, or items given to clients."""


@dataclass(frozen=True)
class MaximizeFeatures(Maximize):
    """Selects features that inform most about the label, on every client."""

    file: Annotated[str | None, default_hint("pixels of digits")] = None
    """Table of examples, CSV or Parquet."""

    label: Annotated[str | None, default_hint()] = None
    """Column to predict."""

    client: Annotated[str | None, default_hint()] = None
    """Column whose values are the clients."""

    bins: int = 4
    """Values of a numeric column."""

    clients: int = 10
    """Number of clients without a file; each holds three digits."""

    sigma: float | None = 0.5
    """Largest error of sampled gradients, relative to a client's best feature (fedcg+)."""

    cohort_size: int | Literal["all"] = "all"
    """Clients per round; for discrete greedy the expected number."""


@dataclass(frozen=True)
class RatingsConfig:
    """Ratings."""

    name: str = "movielens/100k-ratings"
    """Data set of tensorflow-datasets, such as movielens/1m-ratings."""

    dir: Annotated[str | None, _TFDS] = None
    """Folder of prepared tensorflow-datasets sets."""


@dataclass(frozen=True)
class MaximizeMovielens(Maximize):
    """Selects movies so that every user likes one of them."""

    data: RatingsConfig = field(default_factory=RatingsConfig)
    k: int = 20
    """Number of movies to select."""

    rounds: int = 50
    """Rounds of fedcg, and total local steps of a client of fedcg+."""

    local_steps: int = 5
    """Local steps per round (fedcg+)."""

    cohort_size: int | Literal["all"] = 100
    """Users per round; for discrete greedy the expected number."""
