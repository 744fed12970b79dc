"""Runs trials of the guarantees of docs/reliability.md.

    python -m experiments.reliability kills --trials 200

Every trial is determined by its number. Trials in the file are not repeated, so that the same
command continues after an interruption. The exit status is 1 if a trial failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from experiments.reliability import bits, disks, fuzz, inputs, kills

KINDS = {
    "kills": kills.trials,
    "state-kills": kills.stateful_trials,
    "disks": disks.trials,
    "fuzz": fuzz.trials,
    "inputs": inputs.trials,
    "bits": bits.trials,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Trials of guarantees.")
    parser.add_argument("what", choices=tuple(KINDS))
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("docs/reliability"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"{options.what}.csv"
    rows = pd.read_csv(file).to_dict("records") if file.exists() else []
    for row in KINDS[options.what](max(0, options.trials - len(rows)), len(rows)):
        rows.append(row)
        pd.DataFrame(rows).to_csv(file, index=False)
    passed = [row["passed"] for row in rows]
    print(f"{options.what}: {sum(passed)} of {len(passed)} trials passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
