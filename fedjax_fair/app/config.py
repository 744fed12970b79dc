"""What a run is made of, as plain numbers and words.

A configuration is a tree of frozen dataclasses that knows nothing of JAX. The command line reads it
from flags, a run folder keeps it as JSON, and ``fedjax_fair.app.registry`` turns it into functions.
A field that is None stands for the data set's own value, which ``fedjax_fair.app.presets.resolve``
fills in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "AggregatorConfig",
    "Config",
    "DataConfig",
    "Maximize",
    "MaximizeExemplars",
    "MaximizeMovielens",
    "ModelConfig",
    "RatingsConfig",
    "SelectorConfig",
    "SolverConfig",
    "TrainingConfig",
]


@dataclass(frozen=True)
class DataConfig:
    """The examples, and who owns them."""

    name: str = "digits"
    """Data set; `fedjax-fair data list` names those that are known."""

    dir: str | None = None
    """Folder of prepared tensorflow-datasets sets; else $TFDS_DATA_DIR or ~/tensorflow_datasets."""

    partition: str | None = None
    """How examples are dealt: iid, classes_per_client, shards, dirichlet, quantity_skew or
    planted_clusters."""

    clients: int | None = None
    """Number of clients (all but planted_clusters)."""

    classes_per_client: int = 3
    """Classes of each client (classes_per_client)."""

    shards_per_client: int = 2
    """Shards of each client (shards)."""

    alpha: float = 0.5
    """Concentration of the class mix, > 0; small is uneven (dirichlet)."""

    law: Literal["lognormal", "power"] = "lognormal"
    """Law of the clients' sizes (quantity_skew)."""

    skew: float = 1.0
    """How uneven the sizes are, >= 0 (quantity_skew)."""

    min_size: int = 10
    """Fewest training examples of a client (dirichlet, quantity_skew)."""

    clusters: str = "mnist"
    """Setting that plants groups: digits, mnist, cifar10, cifar100 or femnist
    (planted_clusters)."""

    seed: int = 0
    """Seed of the partition."""

    per_run: bool = False
    """Whether every run has a partition of its own (seed: this one plus the run's), or all share
    one."""


@dataclass(frozen=True)
class ModelConfig:
    """The network that is trained."""

    name: str | None = None
    """Network: logistic, mlp, lenet, cifar_cnn, cifar100_cnn, femnist_cnn or resnet18."""

    hidden: tuple[int, ...] = (200, 200)
    """Widths of the hidden layers (mlp)."""

    compute: Literal["float32", "bfloat16"] = "float32"
    """Numbers that layers compute with; parameters are float32 in either case."""


@dataclass(frozen=True)
class SolverConfig:
    """What a client does locally."""

    learning_rate: float | None = None
    """Step size."""

    batch_size: int | None = None
    """Examples per minibatch."""

    epochs: int | None = None
    """Passes over the client's examples; either this or steps."""

    steps: int | None = None
    """Local steps, the same for every client; either this or epochs."""

    momentum: float = 0.0
    """Heavy-ball momentum in [0, 1)."""

    weight_decay: float = 0.0
    """Decay added to the gradient, >= 0."""

    prox: float | None = None
    """Pull towards the global model, FedProx's mu >= 0; default: 1 for fedprox, 0 for others."""


@dataclass(frozen=True)
class SelectorConfig:
    """Who trains."""

    cohort_size: int = 10
    """Clients per round."""

    pool: int | None = None
    """Clients drawn in each round, among whom the cohort is chosen; default: twice the cohort, at
    most all (power_of_choice), or everybody (divfl, subtrunc, unionfl)."""

    variant: Literal["pow", "cpow", "rpow"] = "pow"
    """Losses: of all examples, of a minibatch, or as last reported (power_of_choice)."""

    candidates: int | None = None
    """Clients drawn at each greedy step; default: as many as the cohort, or the whole pool if one
    is set (divfl, subtrunc, unionfl)."""

    info: Literal["fresh", "stale"] = "fresh"
    """Whether all clients tell loss and gradient in every round, or only those who train (divfl,
    subtrunc, unionfl)."""

    scale: Literal["mean", "sum"] = "mean"
    """Whether the representation of gradients is a mean or a sum over clients (divfl, subtrunc,
    unionfl)."""

    lam: float = 0.5
    """Weight of the bonus for high losses, >= 0 (subtrunc)."""

    b: float = 1.1
    """Where the bonus stops growing, >= 0 (subtrunc)."""

    phi: Literal["log1p", "identity"] = "log1p"
    """What a loss is worth (subtrunc)."""

    mu: float = 1.0
    """Price of a client chosen lately, >= 0 (unionfl)."""

    window: int = 5
    """Rounds that count as lately (unionfl)."""

    measure: Literal["arccos", "l2", "l1"] = "arccos"
    """How updates are compared (clustered_by_similarity)."""

    step: float = 0.1
    """How fast clients with high losses gain weight, >= 0 (agnostic, drfa)."""


@dataclass(frozen=True)
class AggregatorConfig:
    """How updates are weighed."""

    weights: Literal["size", "uniform"] = "size"
    """Weight of a client in the mean: its number of training examples, or the same for all."""

    num_clusters: int | Literal["eigengap"] = 2
    """Clusters of clients, or eigengap to choose their number in every round (equitable)."""

    groups: Literal["found", "known"] = "found"
    """Whether clusters are looked for, or are the planted groups (equitable)."""

    layer: Literal["penultimate", "logits"] = "penultimate"
    """Which activations are compared (equitable)."""

    model: Literal["trained", "received"] = "trained"
    """Whose activations are compared: of the locally trained or the received model (equitable)."""

    examples: Literal["all", "last_batch"] = "all"
    """Over which training examples activations are averaged (equitable)."""

    center: bool = False
    """Whether the cohort's mean is subtracted from the activations (equitable)."""

    cosine: bool = False
    """Whether activations are scaled to unit length (equitable)."""

    beta: float = 1.0
    """How fast clients far from the mean accuracy lose weight, >= 0 (fairfed)."""

    strength: float = 0.1
    """Weight of the gaps between groups, in [0, 1] of the most possible (gifair)."""

    q: float = 1.0
    """Exponent of the losses, >= 0 (q_fedavg)."""

    tilt: float = 1.0
    """How much high losses weigh; negative for low ones (tilted)."""


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how often."""

    rounds: int | None = None
    """Rounds of federated learning."""

    eval_every: int = 10
    """Rounds between evaluations."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One run each: initial model, cohorts and minibatches follow from it."""

    clients_per_batch: int | None = None
    """Clients that train side by side; default: all on an accelerator, as
    many as fit a cache on a CPU."""


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

    devices: int | Literal["auto", "all"] = "auto"
    """Devices that clients are dealt to, or all; auto is one, or all cores of a processor."""

    distributed: bool = False
    """Whether this is one of several processes that run together (docs/scaling.md)."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    aggregator: AggregatorConfig = field(default_factory=AggregatorConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass(frozen=True)
class Maximize:
    """What every comparison of maximizers is told."""

    k: int = 10
    """How many items to choose."""

    rounds: int = 20
    """Rounds of fedcg; a client of fedcg+ takes as many local steps in all."""

    local_steps: int = 4
    """Steps of a client between two rounds (fedcg+)."""

    cohort: int = 10
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

    cohort: int = 100
    """Users that take part in a round; a mean for discrete greedy."""
