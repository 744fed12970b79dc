"""What a run is made of, as plain numbers and words.

A configuration is a tree of frozen dataclasses. The command line reads it from flags, a run folder
keeps it as JSON, and ``fedjax_fair.app.build`` turns it into functions. The fields of a section
that belong to a method, a network or a partition are those of its constructor's signature; one that is
None has the constructor's own default, or follows the data set (``fedjax_fair.app.presets.resolve``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fedjax_fair.app.registry import METHODS, MODELS, PARTITIONERS, role_classes
from fedjax_fair.app.signatures import section

__all__ = [
    "AggregatorConfig",
    "CommunicationConfig",
    "Config",
    "DataConfig",
    "FaultsConfig",
    "Maximize",
    "MaximizeExemplars",
    "MaximizeMovielens",
    "ModelConfig",
    "RatingsConfig",
    "SelectorConfig",
    "SolverConfig",
    "TrainingConfig",
]

DATA_NAMES = {"num_clients": "clients", "classes": "classes_per_client"}
"""Fields of the section ``data`` for parameters of partitions that are called otherwise."""


_GIVEN = ("num_classes", "local_steps", "learning_rate")
"""Parameters that follow from the data or from the solver, and are not set here."""


def _role(role: str) -> dict[str, list[Any]]:
    """The constructor of one role in every method that has it."""
    made_of = {name: role_classes(method) for name, method in METHODS.items()}
    return {name: [roles[role]] for name, roles in made_of.items() if role in roles}


@dataclass(frozen=True)
class _Data:
    """The examples, and who owns them."""

    name: str = "digits"
    """Data set; `fedjax-fair data list` names those that are known."""

    dir: str | None = None
    """Folder of prepared tensorflow-datasets sets, or of the original files of MNIST or CIFAR; else
    $TFDS_DATA_DIR or ~/tensorflow_datasets."""

    partition: str | None = None
    """How examples are split over clients: iid, classes_per_client, shards, dirichlet,
    quantity_skew or planted_clusters."""

    seed: int = 0
    """Seed of the partition."""

    validation_fraction: float | None = None
    """Part of every client's training examples that is held out for choices, in [0, 1); by default
    0.1 in a sweep, whose configurations are ranked by it, and nothing in a run."""

    partition_per_seed: bool = False
    """Whether every run has a partition of its own (seed: this one plus the run's), or all share
    one."""


@dataclass(frozen=True)
class _Model:
    """The network that is trained."""

    name: str | None = None
    """Network: logistic, mlp, lenet, cifar_cnn, cifar100_cnn, femnist_cnn or resnet18."""

    compute: Literal["float32", "bfloat16"] = "float32"
    """Numbers that layers compute with; parameters are float32 in either case."""


class DataConfig(section({name: [f] for name, f in PARTITIONERS.items()}, _Data, DATA_NAMES)):
    """The examples, and who owns them."""


class ModelConfig(section({name: [f] for name, f in MODELS.items()}, _Model, hidden=_GIVEN)):
    """The network that is trained."""


class SolverConfig(section(_role("solver"))):
    """What a client does locally."""


class SelectorConfig(section(_role("selector"), hidden=_GIVEN)):
    """Which clients train."""


class AggregatorConfig(section(_role("aggregator"), hidden=_GIVEN)):
    """How updates are weighed."""


@dataclass(frozen=True)
class FaultsConfig:
    """What goes wrong with clients."""

    dropout: float = 0.0
    """Probability that a participant's result does not arrive."""

    stragglers: float = 0.0
    """Probability that a participant is slow."""

    deadline_steps: int | None = None
    """Local steps of a slow participant, at most."""

    staleness: float = 0.0
    """Probability that a participant trains from an older model."""

    max_staleness: int | None = None
    """Rounds that such a model is old, at most."""

    byzantine: float = 0.0
    """Fraction of clients that are Byzantine."""

    attack: Literal["sign_flip", "scaling", "noise", "nan", "alie", "ipm"] | None = None
    """What they send."""

    strength: float | None = None
    """How strong the attack is; each has a default."""

    period: int | None = None
    """Rounds of a day, over which clients come and go."""


@dataclass(frozen=True)
class CommunicationConfig:
    """What participants send, and what the server sees of it."""

    aggregation: Literal["plain", "secure"] = "plain"
    """Whether the server sees single updates, or their masked sum alone."""

    max_abs_value: float | None = None
    """The largest number in an update that secure aggregation can encode; 16 by default."""

    top_k: float | None = None
    """Part of the numbers of an update that is sent, the largest; participants keep the others."""

    bits: int | None = None
    """Bits of a number in an update, rounded at random."""

    clipping_norm: float | None = None
    """Norm that updates are clipped to, the first one if it adapts."""

    noise_multiplier: float | None = None
    """Standard deviation of the noise on the sum of updates, over the clip."""

    target_unclipped_quantile: float | None = None
    """Part of the updates that is to be unclipped, which then adapts."""


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how often."""

    rounds: int | None = None
    """Rounds of federated learning."""

    eval_every: int = 10
    """Rounds between evaluations."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One run each: initial model, cohorts and minibatches follow from it."""

    on_nonfinite: Literal["raise", "drop_client", "skip_round"] | None = None
    """What an update that is not finite does: it ends the run, is left out of its round, or leaves
    the model as it was; default: raise, and keep in a sweep."""

    clients_per_batch: int | None = None
    """Clients that train side by side; default: all on a GPU, as many as are
    small together on a TPU or fit a cache on a CPU."""


@dataclass(frozen=True)
class Config:
    """Trains methods on one federation and compares them.

    Options that are left out follow the data set.
    """

    methods: tuple[str, ...] = ("fedavg", "power_of_choice", "divfl", "subtrunc", "unionfl")
    """Methods to compare; `fedjax-fair methods` lists them. One with settings of its own is written
    with them: subtrunc:lam=0.25 or fedprox:prox=0.1,steps=5."""

    output: str = "runs"
    """Folder in which the run gets a folder of its own."""

    devices: int | str = "auto"
    """Devices that clients are assigned to, or all; runs=R,clients=C for R groups of C devices,
    each of which makes its share of the runs; auto is one, or all cores of a processor."""

    distributed: bool = False
    """Whether this is one of several processes that run together (docs/scaling.md)."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    aggregator: AggregatorConfig = field(default_factory=AggregatorConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass(frozen=True)
class Maximize:
    """What every comparison of maximizers needs."""

    k: int = 10
    """How many items to choose."""

    rounds: int = 20
    """Rounds of fedcg; a client of fedcg+ takes as many local steps in all."""

    local_steps: int = 4
    """Steps of a client between two rounds (fedcg+)."""

    cohort_size: int = 10
    """Clients that take part in a round; a mean for discrete greedy."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Runs of every method."""

    output: str = "runs"
    """Folder in which the run folder is made."""


@dataclass(frozen=True)
class MaximizeExemplars(Maximize):
    """Chooses public images of digits that represent the private ones of all clients."""

    clients: int = 50
    """Number of clients; each holds three kinds of digits."""


@dataclass(frozen=True)
class RatingsConfig:
    """Who likes what."""

    name: str = "movielens/100k-ratings"
    """Ratings in tensorflow-datasets, such as movielens/1m-ratings."""

    dir: str | None = None
    """Folder of prepared tensorflow-datasets sets; else $TFDS_DATA_DIR or ~/tensorflow_datasets."""


@dataclass(frozen=True)
class MaximizeMovielens(Maximize):
    """Chooses movies such that every user finds one to its taste."""

    data: RatingsConfig = field(default_factory=RatingsConfig)
    k: int = 20
    """How many movies to choose."""

    rounds: int = 50
    """Rounds of fedcg; a client of fedcg+ takes as many local steps in all."""

    local_steps: int = 5
    """Steps of a client between two rounds (fedcg+)."""

    cohort_size: int = 100
    """Users that take part in a round; a mean for discrete greedy."""
