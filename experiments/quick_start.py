"""The table of the quick start in README, from a run.

    fedjax-fair run groups
    python -m experiments.quick_start runs/FOLDER

Writes means over seeds and paired differences to FedProx, in %, as CSV.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import xarray as xr

from fedjax_fair import results

__all__ = ["summarize"]

COLUMNS = ("mean", "half_width", "difference", "low", "high", "p", "seeds")
QUANTITIES = {
    "accuracy_mean_clients": "all clients",
    "group 0": "four clients",
    "group 1": "six clients",
    "group_accuracy_gap": "gap",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The table of the quick start in README.")
    parser.add_argument("run", type=Path, help="folder of a run of the preset groups")
    parser.add_argument("--output", type=Path, default=Path("docs/groups.csv"))
    options = parser.parse_args()
    table = summarize(results.open(options.run))
    table.to_csv(options.output, index=False, float_format="%.4g")
    print(table.to_string(index=False))


def summarize(dataset: xr.Dataset) -> pd.DataFrame:
    """Returns one row per method and quantity after the last round, in %."""
    last = dataset.isel(round=-1)
    group = last["group"]
    values = {
        name: last["test_accuracy"].where(group == i).mean("client")
        for i, name in enumerate(("group 0", "group 1"))
    } | {name: last[name] for name in ("accuracy_mean_clients", "group_accuracy_gap")}
    rows = []
    for name, quantity in QUANTITIES.items():
        found = results.differences(100 * values[name], "fedprox").to_dataframe()
        for method, row in found.iterrows():
            rows.append({"method": method, "quantity": quantity} | {c: row[c] for c in COLUMNS})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main()
