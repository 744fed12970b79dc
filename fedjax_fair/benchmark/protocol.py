"""Constants of the benchmark's protocol, docs/benchmark/protocol.md."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CRITERIA", "TRACKS", "VERSION", "Track"]

VERSION = "1.1"
"""Version of the protocol. Results of different versions are never combined."""

CRITERIA = ("mean", "worst", "fairest")
"""Criteria of settings on validation examples (`tuning.select`); the first is the primary one."""


class Track(NamedTuple):
    """Federated datasets, methods and budgets of a part of the benchmark.

    Attributes:
        federations: Names of federated datasets, of `federations.FEDERATIONS`.
        methods: Default methods.
        num_settings: Settings that every method is tuned over.
        tuning_seeds: Seeds of the tuning runs.
        final_seeds: Seeds of the reported runs, different from the tuning seeds.
        adapt_steps: Local steps of SGD with which an unseen client adapts the global model.
        variants: Federated datasets with faults of clients, which are no part of overall results.
        variant_methods: Default methods on them.
        reuses_programs: Whether final runs are padded to the number of tuning runs, so that both
            share compiled functions. It pays where compilation takes longer than training.
        one_run_at_a_time: Whether each run is trained, and saved, alone. It pays where a run keeps
            the device busy for long.
    """

    federations: tuple[str, ...]
    methods: tuple[str, ...]
    num_settings: int = 16
    tuning_seeds: tuple[int, ...] = (0, 1, 2)
    final_seeds: tuple[int, ...] = tuple(range(100, 110))
    adapt_steps: int = 10
    variants: tuple[str, ...] = ()
    variant_methods: tuple[str, ...] = ()
    reuses_programs: bool = False
    one_run_at_a_time: bool = False


_STANDARD = ("adult", "mpls_stops", "mnist", "census_income", "shakespeare", "cifar10")
_REFERENCES = ("fedavg", "centralized", "local_converged", "fine_tuned")

TRACKS = {
    "embedded": Track(
        federations=("digits", "synthetic", "groups"),
        methods=(
            *_REFERENCES,
            "power_of_choice", "divfl", "q_fedavg", "tilted", "fedadam", "scaffold", "ditto",
            "fedfb",
        ),
        final_seeds=tuple(range(100, 116)),
        reuses_programs=True,
    ),
    "standard": Track(
        federations=_STANDARD,
        methods=(
            *_REFERENCES,
            "local", "power_of_choice", "divfl", "unionfl", "equitable", "q_fedavg", "tilted",
            "fedadam", "scaffold", "fedprox", "ditto", "fedrep", "median", "fedfb", "fairfed",
            "divfl+equitable", "scaffold+fedadam",
        ),
        variants=tuple(f"{name}_dropouts" for name in _STANDARD),
        variant_methods=("fedavg", "q_fedavg", "scaffold", "ditto"),
    ),
    # A run of each method fits into 80 GB.
    "large": Track(
        federations=("cifar10_resnet18",),
        methods=(
            "fedavg", "centralized", "fine_tuned", "local", "power_of_choice", "divfl",
            "equitable", "q_fedavg", "tilted", "fedadam", "scaffold", "fedprox", "ditto", "fedrep",
            "median", "scaffold+fedadam",
        ),
        one_run_at_a_time=True,
    ),
}  # fmt: skip
"""Tracks by name."""
