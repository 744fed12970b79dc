"""Pilot of the benchmark: ``python -m experiments.pilot TRACK [--data-dir FOLDER]``.

Which federated datasets are admitted is decided with seeds of its own, before any tuning run
(docs/benchmark/protocol.md). ``docs/benchmark/pilot.csv`` has a row for every method with a step
size; what it has is not repeated.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.common import append_rows, has_rows, read_rows
from fedjax_fair.app.settings.config import ModelConfig
from fedjax_fair.benchmark import measures, tuning
from fedjax_fair.benchmark.federations import FEDERATIONS, Federation, variables_of
from fedjax_fair.benchmark.populations import BenchmarkData
from fedjax_fair.benchmark.protocol import BASELINE, RANGE_SEED, TRACKS
from fedjax_fair.benchmark.train import Run, train
from fedjax_fair.benchmark.unit import Unit, configuration, make_rounds, measures_of
from fedjax_fair.results.task_metrics import validation

FILE = Path(__file__).parents[1] / "docs" / "benchmark" / "pilot.csv"
SEEDS = tuple(range(RANGE_SEED, RANGE_SEED + 4))
REFERENCES = ("centralized", "fine_tuned", "local_converged")
TABLES = ("adult", "mpls_stops", "census_income", "synthetic", "groups")
"""Federated datasets whose network need not be better than a linear model."""
_LIMIT, _HALF = 0.01, 0.005


class Trial(NamedTuple):
    """A method with all step sizes, or with one."""

    method: str
    factor: int = 1
    is_linear: bool = False


TRIALS = (*map(Trial, (BASELINE, *REFERENCES)), Trial("centralized", is_linear=True))
DOUBLED = Trial(BASELINE, factor=2)


def run(federation: Federation, data: BenchmarkData, num: int) -> Iterator[pd.DataFrame]:
    """Yields rows of each trial: all step sizes, and FedAvg's best one with twice the rounds."""
    rates, best = tuning.rates(num), math.nan
    for trial in (*TRIALS, DOUBLED):
        rows = measure(federation, data, trial, rates if trial != DOUBLED else [best])
        if trial.method == BASELINE and trial != DOUBLED:
            best = float(rows.loc[rows["accuracy"].idxmax(), "learning_rate"])
        yield rows


def measure(
    federation: Federation, data: BenchmarkData, trial: Trial, rates: Sequence[float]
) -> pd.DataFrame:
    """Trains a trial with each step size.

    Returns:
        Columns ``federation``, ``method``, ``model``, ``rounds``, ``learning_rate``, ``accuracy``
        and ``standard_deviation`` on validation examples, and ``chance``, the share of the
        variance of test accuracies over clients that equally accurate clients would have: means
        over `SEEDS`, NaN if a run diverged.
    """
    config = federation.config
    training = replace(config.training, rounds=trial.factor * (config.training.rounds or 0))
    model = ModelConfig(name="logistic") if trial.is_linear else config.model
    changed = federation._replace(config=replace(config, training=training, model=model))
    unit = Unit(changed, trial.method, Path())
    settings = [{tuning.RATE: rate} for rate in rates]
    config = configuration(unit)
    rounds = make_rounds(unit, config, settings, {"range": data})
    runs = [Run(i, seed) for i in range(len(rates)) for seed in SEEDS]
    trained = train(config, rounds, runs, data, adapt_steps=0)
    variables = {
        name: validation(variables_of(federation.quantity)[name])
        for name in ("accuracy", "standard_deviation")
    }
    found = measures_of(trained, variables)
    chance = np.full((2, len(runs)), np.nan)
    if trial.method == BASELINE:
        last = trained.isel(round=-1).drop_vars(["seed", "setting"]).rename(run="seed")
        chance[0] = measures.noise_floor(last) ** 2
        chance[1] = last["accuracy_standard_deviation"].values ** 2
    is_diverged = trained["diverged"].values >= 0

    def by_rate(values: np.ndarray) -> np.ndarray:
        return np.where(is_diverged, np.nan, values).reshape(len(rates), -1).mean(axis=1)

    return pd.DataFrame(
        {
            "federation": federation.name,
            "method": trial.method,
            "model": "linear" if trial.is_linear else "network",
            "rounds": training.rounds,
            "learning_rate": rates,
            **{name: by_rate(values) for name, values in found.items()},
            "chance": by_rate(chance[0]) / by_rate(chance[1]),
        }
    )


def rules(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns which rules each federated dataset fulfills.

    Args:
        rows: Rows of `measure`.

    Returns:
        A row per federated dataset with the columns ``I1`` to ``I5``, and the values that decide.
    """
    found = []
    for name, own in rows.groupby("federation", sort=False):
        least = own["rounds"].min()
        best: Any = {
            key: part.loc[part["accuracy"].idxmax()]
            for key, part in own.groupby(["method", "model", "rounds"])
        }
        fedavg = best[BASELINE, "network", least]
        gain = best[BASELINE, "network", 2 * least]["accuracy"] - fedavg["accuracy"]
        references = [best[method, "network", least] for method in REFERENCES]
        linear = best["centralized", "linear", least]["accuracy"]
        better = best["centralized", "network", least]["accuracy"] - linear
        headroom = max(
            abs(one[column] - fedavg[column])
            for one in references
            for column in ("accuracy", "standard_deviation")
        )
        tried = own["learning_rate"]
        ends = (tried.min(), tried.max())
        found.append(
            {
                "federation": name,
                "I1": gain <= _LIMIT,
                "I2": name in TABLES or better >= _LIMIT,
                "I3": headroom >= _HALF,
                "I4": fedavg["chance"] <= 0.5,
                "I5": all(one["learning_rate"] not in ends for one in (fedavg, *references)),
                "gain": gain,
                "network_over_linear": better,
                "headroom": headroom,
                "chance": fedavg["chance"],
            }
        )
    return pd.DataFrame(found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Decides which datasets the benchmark admits.")
    parser.add_argument("track", choices=list(TRACKS))
    parser.add_argument("--data-dir")
    parser.add_argument("--federations", nargs="+", default=[])
    parser.add_argument("--output", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    track = TRACKS[options.track]
    # Step sizes of all magnitudes are tried; rows say which have diverged.
    warnings.filterwarnings("ignore", message=".* (is|are) not finite")
    for name in options.federations or track.federations:
        known = read_rows(options.output)
        if has_rows(known, federation=name):
            continue
        federation = FEDERATIONS[name]
        data = federation.load(options.data_dir, SEEDS)
        rows = pd.concat(list(run(federation, data, track.num_blocks)))
        append_rows(known, rows, options.output, digits=6)
    print(rules(pd.read_csv(options.output)).to_string(index=False, float_format="%.3f"))


if __name__ == "__main__":
    main()
