"""Tries what is promised when something goes wrong.

    python -m experiments.reliability kills --trials 200

Every trial follows from its number. Trials that the file holds are not made again, so that the same
command goes on after an interruption; it ends with status 1 if any promise was broken.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from experiments.reliability import bits, disks, fuzz, inputs, kills

KINDS = {
    "kills": kills.trials,
    "disks": disks.trials,
    "fuzz": fuzz.trials,
    "inputs": inputs.trials,
    "bits": bits.trials,
}
KEPT = {"kills": "same", "disks": "kept", "fuzz": "kept", "inputs": "good", "bits": "kept"}
"""Whether the promise of a trial was kept, by its column."""


def main() -> int:
    parser = argparse.ArgumentParser(description="What is promised, tried many times over.")
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
    kept = [row[KEPT[options.what]] for row in rows]
    print(f"{options.what}: {sum(kept)} of {len(kept)} promises kept")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
