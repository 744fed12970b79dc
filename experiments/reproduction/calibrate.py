"""How many rounds bring random selection to the accuracy that Castillo et al. report for it.

    python -m experiments.reproduction.calibrate --data mnist --tfds-dir FOLDER

They print neither rounds nor step size. Random selection alone is trained, with seeds that no table
uses, and tested on a fifth of the training examples, so that no table's test example is seen.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.reproduction import paper, runs
from experiments.reproduction.presets import SELECTION_TABLES

ROUNDS = {"mnist": 40, "cifar10": 60}
FIRST_SEED = 100
LAST = 5
"""Evaluations whose mean is compared, as in the tables."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds of the tables of Castillo et al.")
    parser.add_argument("--data", choices=tuple(ROUNDS), default="mnist")
    parser.add_argument("--tfds-dir", help="folder of prepared tensorflow-datasets sets")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    options = parser.parse_args()

    config = next(iter(SELECTION_TABLES[options.data].values()))
    config = replace(
        config,
        data=replace(config.data, dir=options.tfds_dir),
        training=replace(config.training, rounds=ROUNDS[options.data]),
    )
    file = options.output / f"calibration-{options.data}-runs.csv"
    if not options.only_write:
        seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
        runs.run_missing(config, ("fedavg",), seeds, file, prepare=runs.held_out)
    write_table(options.data, file)


def write_table(data: str, file: Path) -> None:
    """Writes accuracies by rounds beside the file of runs, and prints the choice."""
    table = summarize(file)
    table.to_csv(file.with_name(f"calibration-{data}.csv"), float_format="%.3f")
    print(table.to_string())
    print(f"rounds: {choose(table, data)}")


def summarize(file: Path) -> pd.DataFrame:
    """By rounds: accuracy, a mean of the last few evaluations, over seeds, in %."""
    accuracy = runs.collect(("fedavg",), file)["accuracy_mean_clients"].isel(algorithm=0)
    smooth = 100 * accuracy.rolling(round=LAST).mean().dropna("round")
    return pd.DataFrame(
        {"accuracy": smooth.mean("seed").values, "sd": smooth.std("seed", ddof=1).values},
        index=pd.Index(smooth["round"].values, name="rounds"),
    )


def choose(table: pd.DataFrame, data: str) -> int:
    """The rounds after which accuracy is closest to the one reported."""
    target, _ = paper.SELECTION[data]["fedavg"]["accuracy"]
    return int(table.index[np.argmin(np.abs(table["accuracy"] - target))])


if __name__ == "__main__":
    main()
