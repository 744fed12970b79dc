"""Number of rounds after which random selection has the accuracy that Castillo et al. report.

    python -m experiments.reproduction.calibrate --data mnist --tfds-dir FOLDER

The paper states neither rounds nor step size. Only random selection is trained, with seeds that no
table uses, and tested on a fifth of the training examples.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.common import options_of
from experiments.reproduction import paper, runs
from fedjax_fair.app.settings.paper_presets import SELECTION_TABLES

ROUNDS = {"mnist": 40, "cifar10": 60}
FIRST_SEED = 100
LAST = 5
"""Number of last evaluations to average, as in the tables."""


def main() -> None:
    parser = options_of("Rounds of the tables of Castillo et al.", reads_tfds=True)
    parser.add_argument("--data", choices=tuple(ROUNDS), default="mnist")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()

    config = next(iter(SELECTION_TABLES[options.data].values()))
    file = options.output / f"calibration-{options.data}-runs.csv"
    if not options.only_write:
        seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
        given = {"data_dir": options.tfds_dir, "rounds": ROUNDS[options.data]}
        runs.run_missing(config, ("fedavg",), seeds, file, prepare=runs.held_out, **given)
    write_table(options.data, file)


def write_table(data: str, file: Path) -> None:
    """Writes accuracies by rounds next to the file of runs, and prints the choice."""
    table = summarize(file)
    table.to_csv(file.with_name(f"calibration-{data}.csv"), float_format="%.3f")
    print(table.to_string())
    print(f"rounds: {choose(table, data)}")


def summarize(file: Path) -> pd.DataFrame:
    """Returns accuracy by rounds, in %: mean of the last evaluations, over seeds."""
    accuracy = runs.collect(("fedavg",), file)["accuracy_mean_clients"].isel(algorithm=0)
    smooth = 100 * accuracy.rolling(round=LAST).mean().dropna("round")
    return pd.DataFrame(
        {"accuracy": smooth.mean("seed").values, "sd": smooth.std("seed", ddof=1).values},
        index=pd.Index(smooth["round"].values, name="rounds"),
    )


def choose(table: pd.DataFrame, data: str) -> int:
    """Returns the number of rounds with the accuracy closest to the reported one."""
    target, _ = paper.SELECTION[data]["fedavg"]["accuracy"]
    return int(table.index[np.argmin(np.abs(table["accuracy"] - target))])


if __name__ == "__main__":
    main()
