"""Selections of all methods of Table I at the same models.

    python -m experiments.reproduction.counterfactual --tfds-dir FOLDER

The reference is random selection in the setting of Table I on MNIST. Runs missing seeds, one at a
time, then writes the table and the figure.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import fedjax_fair as ff
from experiments.common import append_rows, has_rows, options_of, read_rows
from fedjax_fair.app.build import build
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.paper_presets import SELECTION_TABLES
from fedjax_fair.metrics import paired
from fedjax_fair.report.drawing import add_legend, draw_curves, styles

SEEDS, ROUNDS = tuple(range(920, 926)), 21
MEASURES = {
    "overlap": "clients that DivFL also selects (%)",
    "representation": "representation, of DivFL's (%)",
    "bonus": "truncated bonus (nat)",
    "classes": "classes of the cohort",
    "loss": "mean loss of the cohort (nat)",
}
DRAWN = ("overlap", "representation", "classes", "loss")
"""The bonus is the same for all cohorts."""
COHORT = 10
SELECTORS = {
    "divfl": ff.selectors.DivFL(COHORT),
    "subtrunc:lam=0.1": ff.selectors.SubTrunc(COHORT, lam=0.1),
    "subtrunc:lam=0.95": ff.selectors.SubTrunc(COHORT, lam=0.95),
    "unionfl:window=5": ff.selectors.UnionFL(COHORT, window=5),
    "power_of_choice": ff.selectors.PowerOfChoice(COHORT, pool=20),
    "random": ff.selectors.Uniform(COHORT),
}


def main() -> None:
    parser = options_of("Selections at the same models.", reads_tfds=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    file = options.output / "counterfactual-mnist-runs.csv"
    if not options.only_write:
        for seed in options.seeds:
            known = read_rows(file)
            if not has_rows(known, seed=seed):
                append_rows(known, measure(seed, options.tfds_dir), file)
                print(f"seed {seed}", flush=True)
    write_table(file)


def measure(seed: int, data_dir: str | None) -> pd.DataFrame:
    """Returns one row per selector and round of a reference run."""
    config = SELECTION_TABLES["mnist"]["table1"]
    config = replace(
        config,
        methods=("fedavg",),
        data=replace(config.data, dir=data_dir),
        training=replace(config.training, seeds=(seed,)),
    )
    ready = build(presets.resolve(config))
    reference: Any = ready.rounds["fedavg"]
    found = ff.analysis.counterfactual(
        reference, SELECTORS, ready.data, rounds=ROUNDS, seeds=(seed,)
    )
    return found[list(MEASURES)].to_dataframe().reset_index()


def write_table(file: Path) -> None:
    """Writes means over rounds with intervals over seeds, and the figure, next to the runs."""
    rows = read_rows(file)
    measured: Any = rows.set_index(["algorithm", "seed", "training_round"]).to_xarray()
    # In round 0 UnionFL has no history.
    measured = measured.sel(algorithm=list(SELECTORS), training_round=slice(1, None))
    summarize(measured).to_csv(
        file.with_name("counterfactual-mnist.csv"), index=False, float_format="%.3f"
    )
    figure(measured).savefig(file.with_name("counterfactual-mnist.png"), dpi=110)


def scaled(measured: xr.Dataset) -> xr.Dataset:
    """Returns overlap and representation in %, the latter of DivFL's in the same round."""
    by_divfl = measured["representation"].sel(algorithm="divfl")
    return measured.assign(
        overlap=100 * measured["overlap"],
        representation=100 * measured["representation"] / by_divfl,
    )


def summarize(measured: xr.Dataset) -> pd.DataFrame:
    """Returns the mean over rounds of each selector and measure, and its interval over seeds.

    Columns ``of_rounds`` are the 5% and 95% quantiles over rounds of all seeds.
    """
    of_rounds = scaled(measured)
    means = of_rounds.mean("training_round")
    table = []
    for name in MEASURES:
        for selector in map(str, means["algorithm"].values):
            gap = paired.interval(means[name].sel(algorithm=selector).values)
            low, high = np.quantile(of_rounds[name].sel(algorithm=selector), (0.05, 0.95))
            table.append({
                "measure": name, "selector": selector, "mean": gap.mean, "low": gap.low,
                "high": gap.high, "of_rounds_low": low, "of_rounds_high": high,
            })  # fmt: skip
    return pd.DataFrame(table)


def figure(measured: xr.Dataset):
    """Plots measures over rounds, with intervals over seeds.

    SubTrunc with a weight of 0.1 is omitted, because it nearly always selects DivFL's cohort.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9, 5.5), layout="constrained")
    shown = scaled(measured).drop_sel(algorithm="subtrunc:lam=0.1")
    panels = drawn.subplots(2, 2).ravel()
    for axes, name in zip(panels, DRAWN, strict=True):
        values = shown[name].transpose("algorithm", "seed", "training_round")
        draw_curves(axes, values, styles(values))
        axes.set(xlabel="Communication round", ylabel=MEASURES[name])
    panels[DRAWN.index("overlap")].set_ylim(-3, 103)
    panels[DRAWN.index("classes")].set_ylim(7.9, 10.1)
    lines, labels = panels[0].get_legend_handles_labels()
    add_legend(drawn, "selector, at the models of\na run with random selection", handles=lines,
               labels=labels)  # fmt: skip
    return drawn


if __name__ == "__main__":
    main()
