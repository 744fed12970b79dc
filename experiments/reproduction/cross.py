"""Selectors with and without equitable weights: is the combination better than either alone?

    python -m experiments.reproduction.cross --data digits --seeds 5
    python -m experiments.reproduction.cross --data mnist --tfds-dir FOLDER --seeds 3

Runs whatever is missing, then writes the table.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pandas as pd
import xarray as xr

from experiments.reproduction import runs
from experiments.reproduction.equitable import OF_ROUNDS, SUMMARIES
from experiments.reproduction.presets import PAPERS
from fedjax_fair import results
from fedjax_fair.app.presets import PRESETS
from fedjax_fair.metrics import paired

SETTINGS = {"digits": PRESETS["cross"].config, "mnist": PAPERS["cross-mnist"].config}
COLUMNS = {"accuracy": "accuracy_mean_examples", "sigma": "group_sigma_acc"}
ENDS = ("low", "mean", "high")
LAST = 5
"""Evaluations at the end of which the mean counts."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Selectors with and without equitable weights.")
    parser.add_argument("--data", choices=tuple(SETTINGS), default="digits")
    parser.add_argument("--tfds-dir", help="folder of prepared tensorflow-datasets sets")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method")
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    options = parser.parse_args()

    config = SETTINGS[options.data]
    config = replace(
        config, data=replace(config.data, dir=options.tfds_dir, partition_per_seed=True)
    )
    file = options.output / f"cross-{options.data}-runs.csv"
    if not options.only_write:
        runs.run_missing(config, config.methods, range(options.seeds), file, SUMMARIES, OF_ROUNDS)
    write_table(options.data, file)


def write_table(data: str, file: Path) -> None:
    """Writes the table as CSV and Markdown beside the file of runs."""
    table = summarize(runs.collect(SETTINGS[data].methods, file))
    stem = file.with_name(f"cross-{data}")
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.3f")
    stem.with_suffix(".md").write_text(markdown(table))
    print(stem.with_suffix(".md").read_text())


def summarize(measured: xr.Dataset) -> pd.DataFrame:
    """One row a selector: without and with equitable weights, and what these add, in %.

    Differences are paired by seed, with 95 % intervals: of the combination to the selector alone,
    and to equitable weights with random clients.
    """
    at_end = results.final_metrics(measured, LAST)
    values = {name: 100 * at_end[metric] for name, metric in COLUMNS.items()}
    selectors = {"random": ("fedprox", "equitable")} | {
        name: (name, f"{name}+equitable")
        for name in map(str, measured["algorithm"].values)
        if f"{name}+equitable" in measured["algorithm"]
    }
    rows = []
    for selector, (alone, both) in selectors.items():
        row: dict[str, object] = {"selector": selector, "seeds": measured.sizes["seed"]}
        for name, over_seeds in values.items():
            own = {method: over_seeds.sel(algorithm=method).values for method in (alone, both)}
            for label, method in (("alone", alone), ("equitable", both)):
                row[f"{name} {label}"] = own[method].mean()
                row[f"{name} {label} sd"] = own[method].std(ddof=1)
            for label, other in (("selector", alone), ("weights", "equitable")):
                differences = own[both].astype(float) - over_seeds.sel(algorithm=other).values
                gap = paired.interval(differences)
                row |= {f"{name} less {label} {end}": getattr(gap, end) for end in ENDS}
        rows.append(row)
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """The table for readers."""
    seeds = table["seeds"].iloc[0]
    lines = [
        f"In %, mean ± standard deviation over {seeds} seeds, each the mean of the",
        f"last {LAST} evaluations; paired differences with 95 % confidence intervals.",
        "",
    ]
    for name, heading in {"sigma": "sigma_acc of groups", "accuracy": "accuracy"}.items():
        lines += [
            f"| {heading} | mean | equitable | equitable less mean | less random + equitable |",
            "|---|---|---|---|---|",
        ]
        for row in table.to_dict("records"):
            cells = [
                f"{row[f'{name} {label}']:.2f} ± {row[f'{name} {label} sd']:.2f}"
                for label in ("alone", "equitable")
            ]
            for label in ("selector", "weights"):
                low, mean, high = (row[f"{name} less {label} {end}"] for end in ENDS)
                same = label == "weights" and row["selector"] == "random"
                cells.append("-" if same else f"{mean:+.2f} ({low:+.2f}, {high:+.2f})")
            lines.append(f"| {row['selector']} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
