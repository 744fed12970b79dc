"""Runs of the tables, in one CSV file per experiment.

A run is a method and a seed. Only missing runs are trained: tables share runs, and after an
interruption the same command continues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from experiments.common import KEYS, append_rows, read_rows
from fedjax_fair.app.build import build
from fedjax_fair.app.experiment_data import Experiment
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.data import ClientExamples, FederatedData, from_arrays, stack
from fedjax_fair.results import class_based
from fedjax_fair.training.fit import fit

__all__ = ["collect", "federate", "fit_method", "held_out", "run_missing", "train"]

SUMMARIES = (
    "accuracy_mean_clients",
    "accuracy_worst_10pct_class_based",
    "client_dissimilarity",
    "client_dissimilarity_class_based",
    "client_dissimilarity_class_based_se",
    "accuracy_standard_deviation",
    "participation_gini",
)
"""Columns per evaluation in tables of client selection."""
OF_ROUNDS = ("cohort_loss", "selection_unsaturated")


def run_missing(
    config: Config,
    names: Iterable[str],
    seeds: Iterable[int],
    file: Path,
    summaries: Sequence[str] = SUMMARIES,
    of_rounds: Sequence[str] = OF_ROUNDS,
    prepare: Callable[[FederatedData], FederatedData] | None = None,
    *,
    data_dir: str | None = None,
    rounds: int | None = None,
    on_nonfinite: Literal["raise", "skip_round"] = "raise",
) -> None:
    """Trains the missing runs, a few seeds at a time, so that methods have the same seeds.

    Args:
        config: The configuration, apart from methods and seeds.
        names: Methods.
        seeds: Seeds.
        file: A CSV file; it need not exist.
        summaries: Columns per evaluation.
        of_rounds: Variables of rounds, as a mean over the cohort and the rounds since the previous
            evaluation; NaN for methods without them.
        prepare: Function of the federated dataset that returns the one to train on.
        data_dir: Folder of prepared datasets, if not that of the configuration.
        rounds: Number of rounds, if not that of the configuration.
        on_nonfinite: As for ``fit``.
    """
    config = replace(
        config,
        data=replace(config.data, dir=data_dir or config.data.dir),
        training=replace(config.training, rounds=rounds or config.training.rounds),
    )
    seeds, cores = list(seeds), len(os.sched_getaffinity(0))
    for first in range(0, len(seeds), cores):  # One run per core.
        for group, missing in _missing(names, seeds[first : first + cores], file).items():
            own = replace(config, methods=missing)
            of_rows = (summaries, of_rounds)
            for name, seed, rows in train(own, group, *of_rows, prepare, on_nonfinite):
                append_rows(read_rows(file), rows, file)
                if seed == group[-1]:
                    print(f"{name}, seeds {group}: {rows.attrs['seconds']:.0f} s", flush=True)


def train(
    config: Config,
    seeds: tuple[int, ...],
    summaries: Sequence[str] = SUMMARIES,
    of_rounds: Sequence[str] = OF_ROUNDS,
    prepare: Callable[[FederatedData], FederatedData] | None = None,
    on_nonfinite: Literal["raise", "skip_round"] = "raise",
) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Trains the methods of a configuration with seeds in parallel.

    Yields:
        Method, seed and a table with one row per evaluation, whose ``attrs`` have the ``seconds``
        of all seeds together.
    """
    own = replace(config, training=replace(config.training, seeds=seeds))
    own = drop_unused_settings(presets.resolve(own))
    experiment = build(own)
    if prepare is not None:
        experiment = build(own, prepare(experiment.data))
    for name in experiment.rounds:
        started = time.perf_counter()
        done = fit_method(experiment, name, on_nonfinite=on_nonfinite)
        for seed in seeds:
            rows = _rows(done.sel(seed=[seed]), summaries, of_rounds).reset_index()
            rows.insert(0, "seed", seed)
            rows.insert(0, "algorithm", name)
            rows.attrs["seconds"] = time.perf_counter() - started
            yield name, seed, rows


def fit_method(experiment: Experiment, name: str, **options: Any) -> xr.Dataset:
    """Trains a method of an experiment with all seeds; ``options`` are further ones of ``fit``."""
    training = experiment.config.training
    options = {"eval_every": training.eval_every or 1, **options}
    return fit(
        [experiment.rounds[name]] * len(training.seeds),
        experiment.data,
        rounds=training.rounds or 0,
        seeds=training.seeds,
        train_loss=False,
        mesh=experiment.mesh,
        **options,
    ).dataset


def _missing(
    names: Iterable[str], seeds: Sequence[int], file: Path
) -> dict[tuple[int, ...], tuple[str, ...]]:
    """Methods by the seeds that they have not run."""
    known = read_rows(file)
    done = set(zip(known["algorithm"], known["seed"], strict=True))
    missing: dict[tuple[int, ...], tuple[str, ...]] = {}
    for name in dict.fromkeys(names):
        group = tuple(seed for seed in seeds if (name, seed) not in done)
        if group:
            missing[group] = (*missing.get(group, ()), name)
    return missing


def federate(
    features: Any,
    labels: Any,
    train: Iterable[np.ndarray],
    test: Iterable[np.ndarray],
    seed: int,
    **options: Any,
) -> FederatedData:
    """Returns clients with some examples of two arrays, a fifth of the training ones held out.

    All seeds share the arrays, which `fedjax_fair.data.stack` requires. ``options`` are further
    ones of `fedjax_fair.data.from_arrays`.
    """
    return from_arrays(
        features,
        labels,
        list(train),
        test_features=features,
        test_labels=labels,
        test_client_indices=list(test),
        validation_fraction=0.2,
        seed=seed,
        **options,
    )


def held_out(data: FederatedData) -> FederatedData:
    """Splits the training examples of each client, a fifth for testing.

    Settings chosen on this split are independent of the test examples of the tables.
    """
    if data.num_partitions is None:
        return _held_out(data)
    return stack([_held_out(data.partition(run)) for run in range(data.num_partitions)])


def _held_out(data: FederatedData) -> FederatedData:
    rng, train = np.random.default_rng(0), data.train
    permuted = [rng.permutation(rows) for rows in train.client_indices]
    return data._replace(
        train=_of(train, [indices[len(indices) // 5 :] for indices in permuted]),
        test=_of(train, [indices[: len(indices) // 5] for indices in permuted]),
    )


def _of(examples: ClientExamples, client_indices: list[np.ndarray]) -> ClientExamples:
    sizes = np.array([len(indices) for indices in client_indices], np.int32)
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    arrays: Any = {"order": np.concatenate(client_indices), "offsets": offsets, "sizes": sizes}
    return examples._replace(**arrays)


def collect(names: Iterable[str], file: Path) -> xr.Dataset:
    """Returns runs of methods over ``algorithm``, ``seed`` and ``round``.

    Only seeds of all methods are included, so that means are over the same runs.

    Raises:
        ValueError: If there is no such seed.
    """
    wanted = list(dict.fromkeys(names))
    rows = read_rows(file).query("algorithm in @wanted")
    methods_of = rows.groupby("seed")["algorithm"].agg(set)
    seeds = [seed for seed, done in methods_of.items() if len(done) == len(wanted)]
    if not seeds:
        raise ValueError(f"{file}: expected at least one seed of {', '.join(wanted)}.")
    runs: Any = rows.query("seed in @seeds").set_index(KEYS).to_xarray()
    return runs.sel(algorithm=wanted)


def _rows(run: xr.Dataset, summaries: Sequence[str], of_rounds: Sequence[str]) -> pd.DataFrame:
    """One row per evaluation, with cohorts if every round was evaluated."""
    if any("_class_based" in name for name in summaries):
        run = run.merge(class_based(run))
    run = run.isel(seed=0, drop=True)
    rows = run[list(summaries)].to_dataframe()
    if run.sizes["training_round"] + 1 == len(rows):
        chosen = (" ".join(map(str, ids)) for ids in run["cohort_clients"].values.astype(int))
        rows["cohort"] = ["", *chosen]
    for name in of_rounds:
        if name not in run:
            rows[name] = np.nan
            continue
        info = run[name].mean("slot") if "slot" in run[name].dims else run[name]
        # Rounds are counted from 0, evaluations by completed rounds.
        following = rows.index[np.searchsorted(rows.index, info["training_round"] + 1)]
        rows[name] = info.to_series().groupby(following).mean()
    return rows
