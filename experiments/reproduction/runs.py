"""Runs of the tables, in one file of numbers that grows run by run.

A run is a method and a seed. What has been run is never run again: tables share runs, and the same
command goes on after an interruption.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from fedjax_fair import methods, presets
from fedjax_fair.config import Config
from fedjax_fair.training import fit

__all__ = ["collect", "load", "run_missing"]

KEYS = ["algorithm", "seed", "round"]
SUMMARIES = [
    "accuracy_mean_clients",
    "client_dissimilarity",
    "accuracy_standard_deviation",
    "participation_gini",
]
"""What is kept of every evaluation, besides the mean loss of the cohort that trained before it."""


def run_missing(config: Config, names: Iterable[str], seeds: Iterable[int], file: Path) -> None:
    """Trains what the file does not hold yet, seed after seed, so that comparisons stay paired.

    Args:
        config: The setting, apart from methods and seeds; evaluated after every round.
        names: Methods.
        seeds: Runs.
        file: A CSV file; it need not exist.
    """
    for seed in seeds:
        done = set(load(file).query("seed == @seed")["algorithm"])
        missing = tuple(name for name in names if name not in done)
        if not missing:
            continue
        own = replace(config, methods=missing, training=replace(config.training, seeds=(seed,)))
        experiment = methods.build(presets.resolve(own))
        for name, round in experiment.rounds.items():
            started = time.perf_counter()
            run = fit(
                round,
                experiment.data,
                rounds=experiment.config.training.rounds or 0,
                seeds=(seed,),
                eval_every=1,
                train_loss=False,
            )
            _append(name, run, file)
            print(f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)


def load(file: Path) -> pd.DataFrame:
    """All rows of a file, none if it does not exist."""
    if not file.exists():
        return pd.DataFrame(columns=[*KEYS, *SUMMARIES, "cohort_loss"])
    return pd.read_csv(file)


def collect(names: Iterable[str], file: Path) -> xr.Dataset:
    """The runs of these methods, with the dimensions ``algorithm``, ``seed`` and ``round``.

    Only seeds that every method has done are kept, so that means are over the same runs.

    Raises:
        ValueError: If there is no such seed.
    """
    wanted = list(dict.fromkeys(names))
    rows = load(file).query("algorithm in @wanted")
    methods_of = rows.groupby("seed")["algorithm"].agg(set)
    seeds = [seed for seed, done in methods_of.items() if len(done) == len(wanted)]
    if not seeds:
        raise ValueError(f"{file}: expected at least one seed of {', '.join(wanted)}.")
    runs: Any = rows.query("seed in @seeds").set_index(KEYS).to_xarray()
    return runs.sel(algorithm=wanted)


def _append(name: str, run: xr.Dataset, file: Path) -> None:
    """Adds a run in one go, so that an interruption leaves the file as it was."""
    rows = run[SUMMARIES].isel(seed=0, drop=True).to_dataframe()
    trained = run["cohort_loss"].isel(seed=0, drop=True).mean("slot").to_series()
    rows["cohort_loss"] = trained.set_axis(trained.index + 1).reindex(rows.index)
    rows.insert(0, "seed", run["seed"].item())
    rows.insert(0, "algorithm", name)
    whole = pd.concat([load(file), rows.reset_index()[load(file).columns]], ignore_index=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    whole.to_csv(partial, index=False, float_format="%.6g")
    partial.replace(file)
