r"""Part D of the protocol: Theorems 5.1, D.2 and D.5 of Rafiey (2024), partial participation.

Instances have few items and many clients, so that ``kappa`` of the bound needs a part of the
clients only. For one fixed sample of clients with a given ``kappa``, ``sufficient_kappa`` inverted
gives :math:`\varepsilon`, and with it the guaranteed share of the optimum, which enumeration finds:
:math:`1 - 1/e - \varepsilon` (as published) and :math:`(1 - 1/e) (1 - \varepsilon) / (1 +
\varepsilon)`. A share below zero guarantees nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids

__all__ = ["HOURS", "Instance", "instances", "missing", "run", "run_missing"]

CLIENTS, SEEDS = 20_000, tuple(range(600, 620))
HOURS = 0.2
"""Processor time of all instances."""


class Instance(NamedTuple):
    """A random problem.

    Attributes:
        family: ``"facility_location"`` (Theorem D.2) or ``"coverage"`` (Theorem D.5).
        size: Number of items.
        k: Items to choose.
    """

    family: str
    size: int
    k: int


def instances() -> Iterator[Instance]:
    """Yields all instances."""
    families = ("facility_location", "coverage")
    for family, size, k in itertools.product(families, (4, 8, 16), (1, 2, 3)):
        yield Instance(family, size, k)


def _file(instance: Instance, folder: Path) -> Path:
    return folder / f"{instance.family}-items={instance.size}-k={instance.k}.csv"


def missing(folder: Path) -> list[Instance]:
    """Returns the instances without a file."""
    return [instance for instance in instances() if not _file(instance, folder).exists()]


def run_missing(folder: Path) -> None:
    """Runs the missing instances, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for instance in missing(folder):
        table = run(instance)
        partial = _file(instance, folder).with_suffix(".partial")
        table.to_csv(partial, index=False, float_format="%.6g")
        partial.replace(_file(instance, folder))
        print(_file(instance, folder), flush=True)


def run(
    instance: Instance, num_clients: int = CLIENTS, seeds: tuple[int, ...] = SEEDS
) -> pd.DataFrame:
    """Measures the share of the optimum that samples of clients reach, and its bounds.

    Args:
        instance: The instance.
        num_clients: Number of clients.
        seeds: Seeds of the problem and of the sample.

    Returns:
        One row per seed and expected number of responses, from one client to half of them.
    """
    matroid = matroids.Uniform(instance.k, instance.size)
    one = fed.sufficient_kappa(0.5, rank=instance.k, size=instance.size) * 0.5**2
    rows = []
    for seed in seeds:
        problem = make(instance, num_clients, seed)
        factors = np.asarray(fed.importance_factors(problem).factors, np.float64)
        optimum = best_value(problem, instance)
        for responses in (1, 10, 100, num_clients // 20, num_clients // 10, num_clients // 2):
            kappa = fed.kappa_for_responses(factors, min(responses, int(np.sum(factors > 0))))
            epsilon = float(np.sqrt(one / kappa))
            found = fed.discrete_greedy(
                jax.random.key(seed), problem, matroid, kappa=kappa, resample=False
            )
            rows.append(
                {
                    **instance._asdict(),
                    "clients": num_clients,
                    "responses": responses,
                    "seed": seed,
                    "epsilon": epsilon,
                    "published_bound": 1 - np.exp(-1) - epsilon,
                    "bound": (1 - np.exp(-1)) * (1 - epsilon) / (1 + epsilon),
                    "share": float(found.values[-1]) / optimum,
                    "responded": int(found.communication.responded[0]),
                }
            )
    return pd.DataFrame(rows)


def make(instance: Instance, num_clients: int, seed: int) -> fed.Problem:
    """Makes the problem: scores that are exponential, or membership with a chance per item."""
    rng = np.random.default_rng([seed, instance.size, instance.k])
    popularity = rng.uniform(0.5, 1, instance.size)
    if instance.family == "facility_location":
        scores = popularity * rng.exponential(size=(num_clients, instance.size))
        return fed.facility_location(scores.astype(np.float32))
    return fed.max_coverage(rng.random((num_clients, instance.size)) < popularity / 2)


def best_value(problem: fed.Problem, instance: Instance) -> float:
    """Returns the optimum over all sets of ``k`` items."""
    best = 0.0
    for chosen in itertools.combinations(range(instance.size), instance.k):
        mask = jnp.zeros(instance.size, bool).at[jnp.array(chosen)].set(True)
        best = max(best, float(problem.value(mask)))
    return best
