"""Tables I to IV of Castillo et al. beside what is measured here.

    python -m experiments.reproduction.selection --data mnist --tfds-dir FOLDER

Runs whatever is missing, then writes the tables, the paired differences and the curves.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats

from experiments.reproduction import paper, runs
from fedjax_fair import presets
from fedjax_fair.config import Config
from fedjax_fair.report.plots import learning_curves
from fedjax_fair.report.selection import tradeoff

TABLES = tuple(presets.SELECTION_TABLES["mnist"])
LAST_FEW = 5
METRICS = {
    "accuracy": ("accuracy_mean_clients", 100),
    "dissimilarity": ("client_dissimilarity", 100),
    "deviation": ("accuracy_standard_deviation", 100),
    "loss": ("cohort_loss", 1),
}
"""Columns, the metrics they hold, and their factors; ``deviation`` is the other reading of
dissimilarity, ``loss`` that of the cohort on its own minibatches."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables I to IV of Castillo et al.")
    parser.add_argument("--data", choices=tuple(presets.SELECTION_TABLES), default="mnist")
    parser.add_argument("--tfds-dir", help="folder of prepared tensorflow-datasets sets")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=TABLES)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each method")
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    options = parser.parse_args()

    tables = presets.SELECTION_TABLES[options.data]
    chosen = {
        name: config for name, config in tables.items() if name.split("-")[0] in options.tables
    }
    file = options.output / f"runs-{options.data}.csv"
    if not options.only_write:
        for config in chosen.values():
            own = replace(config, data=replace(config.data, dir=options.tfds_dir))
            runs.run_missing(own, own.methods, range(options.seeds), file)
    for name, config in chosen.items():
        write_table(name, config, options.data, file)


def write_table(name: str, config: Config, data: str, file: Path) -> None:
    """Writes one table as CSV and Markdown, and its curves, beside the file of runs."""
    measured = runs.collect(config.methods, file)
    seeds = measured.sizes["seed"]
    table = summarise(measured, data)
    stem = file.parent / (name if name.endswith(data) else f"{name}-{data}")
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.3f")
    stem.with_suffix(".md").write_text(markdown(table, seeds))
    for suffix, figure in (
        ("", learning_curves(measured, "client_dissimilarity")),
        ("-tradeoff", tradeoff(measured, last=LAST_FEW)),
    ):
        figure.savefig(stem.with_name(f"{stem.name}{suffix}.png"), dpi=110)
    print(f"{stem}: {seeds} seeds")


def summarise(measured: xr.Dataset, data: str) -> pd.DataFrame:
    """One row a method and moment: means, deviations, and paired differences with intervals.

    The moments are the last evaluation and the mean of the last five. Accuracy and dissimilarity in
    %; differences are to random selection and to DivFL on the same seeds, with 95 % intervals of
    Student's t.
    """
    rows = []
    for moment, last in (("last", 1), ("last five", LAST_FEW)):
        values = {
            column: factor * measured[metric].isel(round=slice(-last, None)).mean("round")
            for column, (metric, factor) in METRICS.items()
        }
        for method in measured["algorithm"].values:
            row = {"method": method, "moment": moment}
            reported = paper.SELECTION[data].get(method, paper.Reported())._asdict()
            for column, over_seeds in values.items():
                own = over_seeds.sel(algorithm=method)
                row |= {column: own.mean().item(), f"{column} sd": own.std(ddof=1).item()}
                if reported.get(column):
                    row |= dict(
                        zip(
                            (f"{column} paper", f"{column} paper sd"), reported[column], strict=True
                        )
                    )
            for baseline in ("fedavg", "divfl"):
                for column in ("accuracy", "dissimilarity"):
                    low, mean, high = paired(
                        values[column].sel(algorithm=method).values,
                        values[column].sel(algorithm=baseline).values,
                    )
                    label = f"{column} less {baseline}"
                    row |= {label: mean, f"{label} low": low, f"{label} high": high}
            rows.append(row)
    return pd.DataFrame(rows)


def paired(own: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Mean of paired differences between its 95 % limits; NaN limits for a single pair."""
    gaps = own - other
    mean = float(np.mean(gaps))
    if gaps.size < 2:
        return np.nan, mean, np.nan
    half = float(stats.t.ppf(0.975, gaps.size - 1) * np.std(gaps, ddof=1) / np.sqrt(gaps.size))
    return mean - half, mean, mean + half


def markdown(table: pd.DataFrame, seeds: int) -> str:
    """The table for readers: measured beside reported, then the paired differences."""
    lines = []
    for moment, rows in table.groupby("moment", sort=False):
        what = "At the last round" if moment == "last" else "Mean of the last five rounds"
        lines += [
            f"{what}, mean ± standard deviation over {seeds} seeds; in brackets the paper's.",
            "",
            "| method | local loss | accuracy % | dissimilarity % | standard deviation % |",
            "|---|---|---|---|---|",
        ]
        for _, row in rows.iterrows():
            cells = [
                _cell(row, column) for column in ("loss", "accuracy", "dissimilarity", "deviation")
            ]
            lines.append(f"| {row['method']} | " + " | ".join(cells) + " |")
        lines += [
            "",
            "Paired differences (same seeds), with 95 % confidence intervals; in points.",
            "",
            "| method | dissimilarity: to random | to DivFL | accuracy: to random | to DivFL |",
            "|---|---|---|---|---|",
        ]
        for _, row in rows.iterrows():
            cells = [
                _difference(row, f"{column} less {baseline}")
                for column in ("dissimilarity", "accuracy")
                for baseline in ("fedavg", "divfl")
            ]
            lines.append(f"| {row['method']} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: pd.Series, column: str) -> str:
    digits = 3 if column == "loss" else 2
    own = f"{row[column]:.{digits}f} ± {row[f'{column} sd']:.{digits}f}"
    reported = row.get(f"{column} paper")
    if reported is None or np.isnan(reported):
        return own
    return f"{own} [{reported:.2f} ± {row[f'{column} paper sd']:.2f}]"


def _difference(row: pd.Series, label: str) -> str:
    if row[label] == 0 and row[f"{label} low"] == 0:
        return "-"
    return f"{row[label]:+.2f} ({row[f'{label} low']:+.2f}, {row[f'{label} high']:+.2f})"


if __name__ == "__main__":
    main()
