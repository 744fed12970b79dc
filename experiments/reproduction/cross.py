"""Selectors with and without equitable weights.

    python -m experiments.reproduction.cross --data digits --seeds 5
    python -m experiments.reproduction.cross --data mnist --tfds-dir FOLDER --seeds 3

Trains what the file of runs lacks, then writes the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import xarray as xr

from experiments.common import markdown_table, options_of, write_study
from experiments.reproduction import runs
from experiments.reproduction.equitable import OF_ROUNDS, SUMMARIES
from fedjax_fair import results
from fedjax_fair.app.settings.paper_presets import PAPERS
from fedjax_fair.app.settings.presets import PRESETS
from fedjax_fair.metrics import paired

SETTINGS = {"digits": PRESETS["cross"].config, "mnist": PAPERS["cross-mnist"].config}
COLUMNS = {"accuracy": "accuracy_mean_examples", "sigma": "group_sigma_acc"}
ENDS = ("low", "mean", "high")
LAST = 5
"""Number of last evaluations to average."""


def main() -> None:
    parser = options_of("Selectors with and without equitable weights.", reads_tfds=True)
    parser.add_argument("--data", choices=tuple(SETTINGS), default="digits")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method")
    options = parser.parse_args()

    config = SETTINGS[options.data]
    config = replace(config, data=replace(config.data, partition_per_seed=True))
    file = options.output / f"cross-{options.data}-runs.csv"
    if not options.only_write:
        settings = config.methods, range(options.seeds), file, SUMMARIES, OF_ROUNDS
        runs.run_missing(config, *settings, data_dir=options.tfds_dir)
    write_table(options.data, file)


def write_table(data: str, file: Path) -> None:
    """Writes the table as CSV and Markdown next to the file of runs."""
    table = summarize(runs.collect(SETTINGS[data].methods, file))
    write_study(file.with_name(f"cross-{data}"), table, markdown(table), form="%.3f")


def pairs_of(methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns the method without and the one with equitable weights, by selector."""
    pairs = {name: (name, f"{name}+equitable") for name in methods}
    pairs = {name: pair for name, pair in pairs.items() if pair[1] in methods}
    return {"random": ("fedprox", "equitable"), **pairs}


def summarize(measured: xr.Dataset) -> pd.DataFrame:
    """Computes accuracies and sigma_acc in %, one row per selector.

    Differences are paired by seed, with 95% intervals: of the combination to the selector alone,
    and to equitable weights with random clients. The p values of a column are adjusted (Holm).
    """
    at_end = results.final_metrics(measured, LAST)
    values = {name: 100 * at_end[metric] for name, metric in COLUMNS.items()}
    rows = []
    for selector, (alone, both) in pairs_of(measured["algorithm"].values.tolist()).items():
        row: dict[str, object] = {"selector": selector, "seeds": measured.sizes["seed"]}
        for name, over_seeds in values.items():
            seed_values = {
                method: over_seeds.sel(algorithm=method).values for method in (alone, both)
            }
            for label, method in (("alone", alone), ("equitable", both)):
                row[f"{name} {label}"] = seed_values[method].mean()
                row[f"{name} {label} sd"] = seed_values[method].std(ddof=1)
            for label, other in (("selector", alone), ("weights", "equitable")):
                other_values = over_seeds.sel(algorithm=other).values
                differences = seed_values[both].astype(float) - other_values
                gap = paired.interval(differences)
                row |= {f"{name} less {label} {end}": getattr(gap, end) for end in ENDS}
                row[f"{name} less {label} p"] = gap.p
        rows.append(row)
    table = pd.DataFrame(rows)
    for column in [name for name in table if str(name).endswith(" p")]:
        table[column] = paired.holm(table[column].tolist())
    return table


def markdown(table: pd.DataFrame) -> str:
    """Formats the table as Markdown."""
    seeds = table["seeds"].iloc[0]
    lines = [
        f"In %, mean ± standard deviation over {seeds} seeds, each the mean of the",
        f"last {LAST} evaluations; paired differences with 95 % confidence intervals, and p values",
        "adjusted (Holm) for the comparisons of a column.",
        "",
    ]
    for name, heading in {"sigma": "sigma_acc of groups", "accuracy": "accuracy"}.items():
        headings = heading, "mean", "equitable", "equitable less mean", "less random + equitable"
        rows = []
        for row in table.to_dict("records"):
            cells = [
                f"{row[f'{name} {label}']:.2f} ± {row[f'{name} {label} sd']:.2f}"
                for label in ("alone", "equitable")
            ]
            for label in ("selector", "weights"):
                low, mean, high = (row[f"{name} less {label} {end}"] for end in ENDS)
                same = label == "weights" and row["selector"] == "random"
                p = row[f"{name} less {label} p"]
                shown = f"{mean:+.2f} ({low:+.2f}, {high:+.2f}), p {p:.3f}"
                cells.append("-" if same else shown)
            rows.append([row["selector"], *cells])
        lines += [*markdown_table(headings, rows), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
