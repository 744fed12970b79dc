"""Table 2 of the Equitable-FL paper beside what is measured here, and its curves.

    python -m experiments.reproduction.equitable grid --data mnist --tfds-dir FOLDER
    python -m experiments.reproduction.equitable table --data mnist --tfds-dir FOLDER --seeds 3

Runs whatever is missing. The grid shows, for every method, which step size and strength serve it
best after few rounds; the preset holds what was chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import xarray as xr

from experiments.reproduction import paper, runs, tables
from experiments.reproduction.presets import PAPERS
from experiments.reproduction.tables import Column, Layout
from fedjax_fair.app.config import Config
from fedjax_fair.report.plots import learning_curves

SUMMARIES = (
    "accuracy_mean_examples",
    "accuracy_mean_clients",
    "sigma_acc",
    "accuracy_standard_deviation",
    "client_disagreement",
    "group_accuracy_minimum",
    "group_sigma_acc",
    "group_accuracy_gap",
)
OF_ROUNDS = ("aggregation_nmi", "aggregation_ari")
LAYOUT = Layout(
    columns={
        "accuracy": Column("accuracy_mean_examples", "accuracy %"),
        "sigma": Column("sigma_acc", "sigma_acc %"),
        "between": Column("group_sigma_acc", "sigma_acc of groups %"),
        "gap": Column("group_accuracy_gap", "gap of groups %"),
        "disagreement": Column("client_disagreement", "disagreement (nat)", factor=1, digits=3),
    },
    compared=("sigma", "between", "accuracy"),
    baselines={"fedprox": "FedProx"},
)
RATES = (0.01, 0.1)
PROX = {"prox": (0.001, 0.01, 0.1, 1.0)}
GRID: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "centralized:epochs=1": {},
    "fedprox": PROX,
    "clustered_by_similarity": PROX,
    "power_of_choice": PROX,
    "equitable": PROX,
    "fairfed:prox=0.1": {"beta": (0.1, 0.5, 1.0, 5.0)},
    "gifair:prox=0": {"strength": (0.1, 0.3, 0.5, 0.9)},
}
"""What is tried of each method, besides step sizes: four strengths each. All but GIFAIR train as
FedProx does."""
GRID_ROUNDS, GRID_SEED = 30, 100


def main() -> None:
    parser = argparse.ArgumentParser(description="Table 2 of the Equitable-FL paper.")
    parser.add_argument("what", choices=("grid", "table"))
    parser.add_argument("--data", choices=tuple(paper.EQUITABLE), default="mnist")
    parser.add_argument("--tfds-dir", help="folder of prepared tensorflow-datasets sets")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method")
    parser.add_argument("--rounds", type=int, help="instead of the paper's 250")
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    options = parser.parse_args()

    config = PAPERS[f"equitable-{options.data}"].config
    config = replace(config, data=replace(config.data, dir=options.tfds_dir))
    if options.what == "grid":
        names, seeds, rounds = tuple(variants()), (GRID_SEED,), GRID_ROUNDS
    else:
        names, seeds, rounds = config.methods, range(options.seeds), options.rounds
    rounds = rounds or config.training.rounds
    config = replace(config, training=replace(config.training, rounds=rounds))
    file = options.output / f"equitable-{options.what}-{options.data}-runs.csv"
    if not options.only_write:
        runs.run_missing(config, names, seeds, file, SUMMARIES, OF_ROUNDS)
    if options.what == "grid":
        write_grid(file)
    else:
        write_table(config, options.data, file)


def variants() -> list[str]:
    """Every point of the grid, as the name of a method with its settings."""
    names = []
    for method, strengths in GRID.items():
        for rate, *values in product(RATES, *strengths.values()):
            settings = zip(("learning_rate", *strengths), (rate, *values), strict=True)
            joined = ",".join(f"{name}={value}" for name, value in settings)
            names.append(f"{method}{',' if ':' in method else ':'}{joined}")
    return names


def write_grid(file: Path) -> None:
    """Writes the end of every point of the grid, best first within each method."""
    rows = runs.load(file)
    last = rows[rows["round"] == rows.groupby("algorithm")["round"].transform("max")]
    table = pd.DataFrame(
        {
            "method": last["algorithm"].str.partition(":")[0],
            "settings": last["algorithm"].str.partition(":")[2],
            "accuracy": 100 * last["accuracy_mean_examples"],
            "sigma": 100 * last["sigma_acc"],
        }
    ).sort_values(["method", "accuracy"], ascending=[True, False])
    table.to_csv(file.with_name(file.name.replace("-runs", "")), index=False, float_format="%.2f")
    print(table.to_string(index=False))


def write_table(config: Config, data: str, file: Path) -> None:
    """Writes the table as CSV and Markdown, and the curves, beside the file of runs."""
    measured = short(runs.collect(config.methods, file))
    seeds = measured.sizes["seed"]
    table = tables.summarize(measured, LAYOUT, paper.EQUITABLE[data])
    stem = file.parent / f"equitable-table-{data}"
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.4f")
    stem.with_suffix(".md").write_text(tables.markdown(table, seeds, LAYOUT))
    for name in ("sigma_acc", "client_disagreement", "aggregation_nmi"):
        so_far = cumulative(measured[name]).dropna("algorithm", how="all").to_dataset()
        figure = learning_curves(so_far, name)
        suffix = name.removeprefix("aggregation_")
        figure.savefig(stem.with_name(f"{stem.name}-{suffix}.png"), dpi=110)
    print(f"{stem}: {seeds} seeds")


def short(measured: xr.Dataset) -> xr.Dataset:
    """Methods under their names, without settings."""
    names = [str(name).partition(":")[0] for name in measured["algorithm"].values]
    return measured.assign_coords(algorithm=names)


def cumulative(values: xr.DataArray) -> xr.DataArray:
    """Mean of all evaluations up to each, as the paper's curves show it; NaN before the first."""
    known = values.notnull()
    count = known.cumsum("round")
    return (values.fillna(0).cumsum("round") / count.where(count > 0)).assign_coords(
        round=values["round"]
    )


if __name__ == "__main__":
    main()
