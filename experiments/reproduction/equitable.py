"""Table 2 of the Equitable-FL paper beside what is measured here, and its curves.

    python -m experiments.reproduction.equitable grid --data mnist --tfds-dir FOLDER
    python -m experiments.reproduction.equitable table --data mnist --tfds-dir FOLDER --seeds 5

Runs whatever is missing. The grid shows, for every method, which step size and strength serve it
best after few rounds, with seeds that no table uses and tested on a fifth of the training examples;
the preset holds what was chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
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
RATES = (0.001, 0.01, 0.1, 0.3)
PROX = ("prox", (0.01, 0.0, 0.001, 0.1, 1.0))
GRID: Mapping[str, tuple[str, tuple[float, ...]] | None] = {
    "centralized:epochs=1": None,
    "fedprox": PROX,
    "clustered_by_similarity": PROX,
    "power_of_choice": PROX,
    "fairfed:prox=0.01": ("beta", (0.1, 0.01, 0.5, 1.0, 5.0)),
    "gifair:prox=0": ("strength", (0.5, 0.1, 0.3, 0.9, 1.0)),
    "equitable": PROX,
}
"""What is tried of each method: all step sizes with the first strength, then the other strengths
with the best step size. Centralized training has no strength. All but GIFAIR train as FedProx
does."""
GRID_ROUNDS, GRID_SEEDS, GRID_LAST = 30, (100, 101), 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Table 2 of the Equitable-FL paper.")
    parser.add_argument("what", choices=("grid", "table"))
    parser.add_argument("--data", choices=tuple(paper.EQUITABLE), default="mnist")
    parser.add_argument("--tfds-dir", help="folder of prepared tensorflow-datasets sets")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method")
    parser.add_argument("--rounds", type=int, help="instead of the paper's 250")
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    options = parser.parse_args()

    config = PAPERS[f"equitable-{options.data}"].config
    config = replace(config, data=replace(config.data, dir=options.tfds_dir))
    rounds = options.rounds or (GRID_ROUNDS if options.what == "grid" else config.training.rounds)
    config = replace(config, training=replace(config.training, rounds=rounds))
    file = options.output / f"equitable-{options.what}-{options.data}-runs.csv"
    run = partial(runs.run_missing, config, file=file, summaries=SUMMARIES, of_rounds=OF_ROUNDS)
    if options.what == "grid":
        if not options.only_write:
            run(step_sizes(), GRID_SEEDS, prepare=runs.held_out)
            run(strengths(chosen(file)), GRID_SEEDS, prepare=runs.held_out)
        write_grid(file)
    else:
        if not options.only_write:
            run(config.methods, range(options.seeds))
        write_table(config, options.data, file)


def step_sizes() -> list[str]:
    """The first points of the grid, as names of methods with their settings."""
    return [
        _with(method, learning_rate=rate, **({} if own is None else {own[0]: own[1][0]}))
        for method, own in GRID.items()
        for rate in RATES
    ]


def strengths(best: Mapping[str, str]) -> list[str]:
    """The other points, given the settings of each method that are best so far."""
    names = []
    for method, own in GRID.items():
        if own is not None:
            pairs = (pair.split("=") for pair in best[method.partition(":")[0]].split(","))
            rate = dict(pairs)["learning_rate"]
            names += [_with(method, learning_rate=rate, **{own[0]: value}) for value in own[1][1:]]
    return names


def _with(method: str, **settings: object) -> str:
    joined = ",".join(f"{name}={value}" for name, value in settings.items())
    return f"{method}{',' if ':' in method else ':'}{joined}"


def write_grid(file: Path) -> None:
    """Writes what every point of the grid reached, best first within each method."""
    table = summarize_grid(file)
    table.to_csv(file.with_name(file.name.replace("-runs", "")), index=False, float_format="%.2f")
    print(table.to_string(index=False))


def summarize_grid(file: Path) -> pd.DataFrame:
    """Accuracy and sigma_acc in %, means over seeds and the last few evaluations."""
    rows = runs.load(file)
    ends = rows[rows["round"].isin(sorted(rows["round"].unique())[-GRID_LAST:])]
    means = ends.groupby("algorithm", sort=False)[["accuracy_mean_examples", "sigma_acc"]].mean()
    names = means.index.str.partition(":")
    return pd.DataFrame(
        {
            "method": names.get_level_values(0),
            "settings": names.get_level_values(2),
            "accuracy": 100 * means["accuracy_mean_examples"].values,
            "sigma": 100 * means["sigma_acc"].values,
        }
    ).sort_values(["method", "accuracy"], ascending=[True, False])


def chosen(file: Path) -> dict[str, str]:
    """The settings of each method that were most accurate in the grid."""
    best = summarize_grid(file).drop_duplicates("method")
    return dict(zip(best["method"], best["settings"], strict=True))


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
