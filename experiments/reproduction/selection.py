"""Tables I to IV of Castillo et al., measured and reported.

    python -m experiments.reproduction.selection --data mnist --tfds-dir FOLDER

Trains missing runs, then writes the tables and the paired differences. The figures are those of
``pages``.
"""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from experiments.common import options_of, read_rows
from experiments.reproduction import paper, runs, tables
from experiments.reproduction.tables import Column, Layout
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.paper_presets import SELECTION_TABLES

TABLES = tuple(SELECTION_TABLES["mnist"])
LAYOUT = Layout(
    columns={
        "loss": Column("cohort_loss", "local loss", factor=1, digits=3),
        "accuracy": Column("accuracy_mean_clients", "accuracy %"),
        "dissimilarity": Column("client_dissimilarity", "dissimilarity %"),
        "class_based": Column("client_dissimilarity_class_based", "class-based dissimilarity %"),
        "deviation": Column("accuracy_standard_deviation", "standard deviation %"),
        "selections": Column("other_selections", "selections other than DivFL's %", digits=0),
        "open": Column("bonus_open", "rounds with an open bonus %", digits=0),
    },
    compared=("dissimilarity", "class_based", "accuracy"),
    baselines={"fedavg": "random", "divfl": "DivFL"},
    note=(
        "The local loss is that of the cohort on its minibatches. Class-based dissimilarity, "
        "without the sampling noise of small test sets, and the standard deviation over clients "
        'have no published values. "Selections other than DivFL\'s" compares cohorts of the same '
        "round and seed; a bonus is open if clients after the first of a cohort could add to it."
    ),
)


def main() -> None:
    parser = options_of("Tables I to IV of Castillo et al.", reads_tfds=True)
    parser.add_argument("--data", choices=tuple(SELECTION_TABLES), default="mnist")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=TABLES)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each method")
    options = parser.parse_args()

    presets_of = SELECTION_TABLES[options.data]
    chosen = {
        name: config for name, config in presets_of.items() if name.split("-")[0] in options.tables
    }
    file = options.output / f"selection-{options.data}-runs.csv"
    if not options.only_write:
        for config in chosen.values():
            seeds = range(options.seeds)
            runs.run_missing(config, config.methods, seeds, file, data_dir=options.tfds_dir)
    trained = set(read_rows(file)["algorithm"])
    for name, config in chosen.items():
        if absent := set(config.methods) - trained:
            print(f"{name}: no table, because there are no runs of {', '.join(sorted(absent))}")
        else:
            write_table(name, config, options.data, file)


def write_table(name: str, config: Config, data: str, file: Path) -> None:
    """Writes one table as CSV and Markdown next to the file of runs."""
    measured = with_choices(runs.collect(config.methods, file))
    stem = file.parent / (name if name.endswith(data) else f"{name}-{data}")
    tables.write(stem, measured, LAYOUT, paper.SELECTION[data], digits=3)


def with_choices(measured: xr.Dataset) -> xr.Dataset:
    """Adds the effects of SubTrunc's bonus.

    Returns:
        The same with ``other_selections``, the share of selected clients that DivFL does not select
        in the same round of the same seed, and ``bonus_open``, the share of rounds in which clients
        after the first could add to the bonus; NaN for methods without a bonus.
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
