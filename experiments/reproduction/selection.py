"""Tables I to IV of Castillo et al. beside what is measured here.

    python -m experiments.reproduction.selection --data mnist --tfds-dir FOLDER

Runs whatever is missing, then writes the tables, the paired differences and the curves.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import xarray as xr

from experiments.reproduction import paper, runs, tables
from experiments.reproduction.presets import SELECTION_TABLES
from experiments.reproduction.tables import Column, Layout
from fedjax_fair.app.config import Config
from fedjax_fair.report.plots import learning_curves
from fedjax_fair.report.selection import tradeoff

TABLES = tuple(SELECTION_TABLES["mnist"])
LAYOUT = Layout(
    columns={
        "loss": Column("cohort_loss", "local loss", factor=1, digits=3),
        "accuracy": Column("accuracy_mean_clients", "accuracy %"),
        "dissimilarity": Column("client_dissimilarity", "dissimilarity %"),
        "class_based": Column(
            "client_dissimilarity_class_based",
            "class-based dissimilarity %",
            reported="dissimilarity",
        ),
        "deviation": Column("accuracy_standard_deviation", "standard deviation %"),
        "selections": Column("other_selections", "selections other than DivFL's %", digits=0),
        "open": Column("bonus_open", "rounds with an open bonus %", digits=0),
    },
    compared=("dissimilarity", "class_based", "accuracy"),
    baselines={"fedavg": "random", "divfl": "DivFL"},
)
"""The loss is that of the cohort on its own minibatches. Dissimilarity by mix is that of the
accuracies to be expected of clients, without the noise of their small test sets; the standard
deviation is another reading of the paper's word. The last two are shares of the whole run."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables I to IV of Castillo et al.")
    parser.add_argument("--data", choices=tuple(SELECTION_TABLES), default="mnist")
    parser.add_argument("--tfds-dir", help="folder of prepared tensorflow-datasets sets")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=TABLES)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each method")
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    options = parser.parse_args()

    presets_of = SELECTION_TABLES[options.data]
    chosen = {
        name: config for name, config in presets_of.items() if name.split("-")[0] in options.tables
    }
    file = options.output / f"selection-{options.data}-runs.csv"
    if not options.only_write:
        for config in chosen.values():
            own = replace(config, data=replace(config.data, dir=options.tfds_dir))
            runs.run_missing(own, own.methods, range(options.seeds), file)
    for name, config in chosen.items():
        write_table(name, config, options.data, file)


def write_table(name: str, config: Config, data: str, file: Path) -> None:
    """Writes one table as CSV and Markdown, and its curves, beside the file of runs."""
    measured = with_choices(runs.collect(config.methods, file))
    seeds = measured.sizes["seed"]
    table = tables.summarize(measured, LAYOUT, paper.SELECTION[data])
    stem = file.parent / (name if name.endswith(data) else f"{name}-{data}")
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.3f")
    stem.with_suffix(".md").write_text(tables.markdown(table, seeds, LAYOUT))
    for suffix, figure in (
        ("", learning_curves(measured, "client_dissimilarity")),
        ("-tradeoff", tradeoff(measured, average_last=LAYOUT.last)),
    ):
        figure.savefig(stem.with_name(f"{stem.name}{suffix}.png"), dpi=110)
    print(f"{stem}: {seeds} seeds")


def with_choices(measured: xr.Dataset) -> xr.Dataset:
    """Adds what SubTrunc's bonus did: who was chosen otherwise, and when it could still grow.

    Returns:
        The same with ``other_selections``, the share of a run's selections that DivFL does not make in the
        same round of the same seed, and ``bonus_open``, the share of its rounds in which more than
        the first selection could add to the bonus; NaN for methods without a bonus.
    """
    cohorts = measured["cohort"].isel(round=slice(1, None))
    by_divfl = cohorts.sel(algorithm="divfl")
    other = xr.apply_ufunc(_other_selections, cohorts, by_divfl, vectorize=True)
    unsaturated = measured["selection_unsaturated"].isel(round=slice(1, None))
    participants = len(str(cohorts.values.flat[0]).split())
    is_open = (unsaturated > 1.5 / participants).where(unsaturated.notnull())
    rounds = measured["round"]
    return measured.drop_vars("cohort").assign(
        other_selections=other.mean("round").expand_dims(round=rounds),
        bonus_open=is_open.mean("round").expand_dims(round=rounds),
    )


def _other_selections(own: str, others: str) -> float:
    chosen = own.split()
    return len(set(chosen) - set(others.split())) / len(chosen)


if __name__ == "__main__":
    main()
