"""Constants of the benchmark's protocol, docs/benchmark/protocol.md."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BASELINE", "CRITERIA", "MEGABYTES", "PARITY", "RANGE_SEED", "SETTINGS", "STOPPED", "TRACKS",
    "UNRANKED", "USED_SEEDS", "VERSION", "Track",
]  # fmt: skip

VERSION = "2.0"
"""Version of the protocol. Results of different versions are never combined."""

BASELINE = "fedavg"
"""Method that differences are taken to, and whose operations are the unit of compute."""

CRITERIA = ("mean", "fairest", "compute")
"""Criteria of settings on validation examples (`tuning.select`); the first is the primary one."""

PARITY = "parity"
"""A further criterion, of methods of group fairness on data with a sensitive feature."""

STOPPED = "stopped"
"""Results with the settings of the first criterion after the round that is best on validation
examples of the final run, for all methods alike."""

MEGABYTES = "megabytes"
"""Results with the settings of the first criterion after the rounds in which a method sends as much
as FedAvg in all of its rounds."""

SETTINGS = 8
"""Settings that each block tries."""

RANGE_SEED = 1000
"""Seed of the runs that find the window of step sizes."""

UNRANKED = ("fair_fate", "fedbn", "gifair")
"""Methods without a place in a track: FAIR-FATE trains with the validation examples that choose
settings, no network has the batch normalization of FedBN, and no client has a known group, as
GIFAIR needs."""

USED_SEEDS = {"1.0": (*range(3), *range(100, 116)), "1.1": (*range(3), *range(100, 116))}
"""Seeds of earlier versions, which no phase of this one uses."""


class Track(NamedTuple):
    """Federated datasets, methods and budgets of a part of the benchmark.

    Attributes:
        federations: Names of federated datasets, of `federations.FEDERATIONS`.
        methods: Default methods.
        num_blocks: Number of blocks. A block is the unit of replication: it chooses among settings
            of its own with one tuning seed, and has one final seed.
        adapt_steps: Local steps of SGD with which an unseen client adapts the global model.
        variants: Federated datasets with faults of clients, which are no part of overall results.
        variant_methods: Default methods on them.
        one_run_at_a_time: Whether each run is trained, and saved, alone. It pays where a run keeps
            the device busy for long. Otherwise as many runs as blocks are trained together.
        first_seeds: First tuning seed, and first final seed.
    """

    federations: tuple[str, ...]
    methods: tuple[str, ...]
    num_blocks: int = 12
    adapt_steps: int = 10
    variants: tuple[str, ...] = ()
    variant_methods: tuple[str, ...] = ()
    one_run_at_a_time: bool = False
    first_seeds: tuple[int, int] = (1300, 1200)

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seed of the tuning runs of each block."""
        return tuple(range(self.first_seeds[0], self.first_seeds[0] + self.num_blocks))

    @property
    def final_seeds(self) -> tuple[int, ...]:
        """The seed of the reported runs of each block."""
        return tuple(range(self.first_seeds[1], self.first_seeds[1] + self.num_blocks))

    @property
    def seeds(self) -> dict[str, tuple[int, ...]]:
        """Seeds by phase."""
        return {
            "range": (RANGE_SEED,),
            "tuning": self.tuning_seeds,
            "final": self.final_seeds,
        }


_REFERENCES = ("fedavg", "centralized", "local_converged", "fine_tuned")
_FAIR = (
    "agnostic", "drfa", "propfair", "adafed", "fedmgda", "fedfv", "fedfa", "aaggff", "q_fedavg",
    "tilted", "equitable", "loss_gap", "shapfed", "fedpw", "fedlf", "fedmdfg", "fedheal",
)  # fmt: skip
_SELECTORS = (
    "power_of_choice", "divfl", "divfl:gradients=stale", "subtrunc", "unionfl",
    "unionfl:gradients=stale", "clustered_by_size", "clustered_by_similarity", "oort", "fedcor",
)  # fmt: skip
_PERSONALIZED = (
    "ditto", "fedper", "fedrep", "lg_fedavg", "fedbabu", "ifca", "per_fedavg", "pfedme", "apfl",
)  # fmt: skip
_OF_GROUPS = ("fairfed", "fedfb", "fedminmax", "reweighing", "group_penalty", "pfedfair")
_OTHERS = ("fedprox", "scaffold", "fednova", "feddyn", "fedadam", "median")
_EVERY = (*_REFERENCES, *_FAIR, *_SELECTORS, *_PERSONALIZED, *_OF_GROUPS, *_OTHERS)

TRACKS = {
    "embedded": Track(
        federations=("digits", "synthetic", "groups"),
        methods=(
            *_REFERENCES,
            "power_of_choice", "divfl", "q_fedavg", "tilted", "fedadam", "scaffold", "ditto",
            "fedfb",
        ),
        num_blocks=8,
    ),
    "standard": Track(
        federations=("adult", "mpls_stops", "mnist", "census_income"),
        methods=_EVERY,
        variants=("mnist_cnn", "adult_dropouts", "mpls_stops_dropouts", "mnist_dropouts"),
        variant_methods=(
            "fedavg", "centralized", "fine_tuned", "scaffold", "power_of_choice", "q_fedavg",
            "equitable", "ditto",
        ),
    ),
    # A run of each method fits into 80 GB.
    "large": Track(
        federations=("cifar10_resnet18",),
        methods=(
            "fedavg", "centralized", "fine_tuned", "local", "power_of_choice", "divfl",
            "equitable", "q_fedavg", "tilted", "fedadam", "scaffold", "fedprox", "ditto", "fedrep",
            "median", "scaffold+fedadam",
        ),
        num_blocks=8,
        one_run_at_a_time=True,
    ),
}  # fmt: skip
"""Tracks by name."""
