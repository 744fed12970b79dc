"""Runs of the tables, one file for each method and seed, so that an interruption costs one of them.

Tables share runs: what several of them ask for is run once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import xarray as xr

from fedjax_fair import methods, presets, results
from fedjax_fair.config import Config
from fedjax_fair.training import fit

__all__ = ["collect", "methods_of", "run_missing"]


def methods_of(configs: Iterable[Config]) -> tuple[str, ...]:
    """Every method that any of the tables compares, once."""
    return tuple(dict.fromkeys(method for config in configs for method in config.methods))


def run_missing(config: Config, names: tuple[str, ...], seeds: Iterable[int], folder: Path) -> None:
    """Trains whatever has no file yet, seed after seed, so that comparisons stay paired.

    Args:
        config: The setting, apart from methods and seeds.
        names: Methods.
        seeds: Runs.
        folder: Where results lie.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        missing = tuple(name for name in names if not _file(folder, name, seed).exists())
        if not missing:
            continue
        own = replace(config, methods=missing, training=replace(config.training, seeds=(seed,)))
        experiment = methods.build(presets.resolve(own))
        for name, round in experiment.rounds.items():
            started = time.perf_counter()
            done = fit(
                round,
                experiment.data,
                rounds=experiment.config.training.rounds or 0,
                seeds=(seed,),
                eval_every=config.training.eval_every,
                train_loss=False,
            )
            done.attrs["seconds"] = time.perf_counter() - started
            results.save(done, _file(folder, name, seed))
            print(f"{name}, seed {seed}: {done.attrs['seconds']:.0f} s", flush=True)


def collect(names: Iterable[str], folder: Path) -> xr.Dataset:
    """Everything there is of these methods, with the dimensions ``algorithm`` and ``seed``.

    Only seeds that every method has done are kept, so that means are over the same runs.
    """
    done = {
        name: {seed: file for seed in range(1000) if (file := _file(folder, name, seed)).exists()}
        for name in names
    }
    seeds = sorted(set.intersection(*(set(files) for files in done.values())))
    if not seeds:
        raise ValueError(f"{folder}: expected results of at least one seed for {', '.join(done)}.")
    return results.combine(
        {
            name: xr.concat([results.open(files[seed]) for seed in seeds], "seed")
            for name, files in done.items()
        }
    )


def _file(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{quote(name, safe='=,')}-{seed}.nc"
