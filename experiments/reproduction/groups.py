"""FairFed and FedFB on Adult and COMPAS, by heterogeneity of the sensitive feature.

    python -m experiments.reproduction.groups --data-dir FOLDER

Trains what the file of runs lacks, then writes the tables. docs/reproduction/groups.md states the
setting and the claims.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.common import (
    append_rows,
    has_rows,
    markdown_table,
    options_of,
    read_rows,
    write_study,
)
from experiments.reproduction import forests
from experiments.reproduction.runs import fit_method
from fedjax_fair.app.build import build
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import AggregatorConfig, Config, DataConfig, TrainingConfig
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.metrics import paired
from fedjax_fair.results import sensitive_groups

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEATURES = {"adult": "sex", "compas": "race"}
ALPHAS = (0.1, 0.2, 0.5, 10.0, 5000.0)
METHODS = ("fedavg", "fairfed:beta=0.1", "fairfed:beta=1", "fairfed:beta=10", "fedfb", "reweighing")
SEEDS, ROUNDS, NUM_CLIENTS = tuple(range(800, 810)), 30, 5
DIFFERENCES = {"eo": "equal_opportunity_difference", "dp": "demographic_parity_difference"}
CLAIMS = {"fairfed:beta=1": "eo", "fedfb": "dp"}
"""The difference that each method is to lower."""


def main() -> None:
    parser = options_of("FairFed and FedFB on Adult and COMPAS.")
    parser.add_argument("--data-dir", help="folder of tables")
    options = parser.parse_args()
    file = options.output / "groups-runs.csv"
    if not options.only_write:
        for name in FEATURES:
            for alpha in ALPHAS:
                run_missing(name, alpha, file, options.data_dir)
    write_tables(file)


def run_missing(name: str, alpha: float, file: Path, data_dir: str | None) -> None:
    """Trains the missing methods, all seeds of a method together, and appends their last values."""
    feature, data = FEATURES[name], None
    for method in METHODS:
        known = read_rows(file)
        if has_rows(known, data=name, alpha=alpha, algorithm=method):
            continue
        config = Config(
            methods=(method,),
            data=DataConfig(
                name=name,
                dir=data_dir,
                partition="dirichlet",
                clients=NUM_CLIENTS,
                by=(feature,),
                partition_per_seed=True,
            ),
            aggregator=AggregatorConfig(sensitive_feature=feature),
            training=TrainingConfig(rounds=ROUNDS, eval_every=ROUNDS, seeds=SEEDS),
        )
        config = replace(config, data=replace(config.data, alpha=alpha))
        if method == "fedavg":
            config = replace(config, aggregator=AggregatorConfig())
        config = drop_unused_settings(presets.resolve(config))
        experiment = build(config) if data is None else build(config, data)
        data = experiment.data
        measured = fit_method(experiment, method).isel(round=-1)
        gaps = sensitive_groups.gaps(measured, [feature])
        columns: Any = {"accuracy": measured["accuracy_mean_examples"].values.ravel()}
        for short, long in DIFFERENCES.items():
            columns[short] = gaps[long].values.ravel()
            columns[f"{short}_clients"] = gaps[f"client_{long}"].mean("client").values.ravel()
        rows = pd.DataFrame({"data": name, "alpha": alpha, "algorithm": method, "seed": SEEDS})
        append_rows(known, rows.assign(**columns), file)
        print(f"{name}, alpha {alpha:g}, {method}", flush=True)


def summarize(measured: Any) -> pd.DataFrame:
    """Computes means of every method, and paired differences to FedAvg with 95% intervals, in %."""
    rows = []
    for (name, alpha), group in measured.groupby(["data", "alpha"], sort=False):
        table = group.set_index(["algorithm", "seed"]).drop(columns=["data", "alpha"]) * 100
        for method in METHODS:
            row: dict[str, Any] = {"data": name, "alpha": alpha, "method": method}
            for column in table:
                values = table.loc[method, column].to_numpy()
                row[column] = values.mean()
                if method == "fedavg":
                    continue
                gap = paired.interval(values - table.loc["fedavg", column].to_numpy())
                for end in ("low", "mean", "high"):
                    row[f"{column} less fedavg {end}"] = getattr(gap, end)
                if CLAIMS.get(method) == column:
                    row["p"] = gap.p
            rows.append(row)
    summary: Any = pd.DataFrame(rows)
    is_claim = summary["p"].notna()
    summary.loc[is_claim, "p_holm"] = paired.holm(summary.loc[is_claim, "p"].tolist())
    return summary


def write_tables(file: Path) -> None:
    """Writes the table as CSV and Markdown next to the file of runs."""
    table = summarize(read_rows(file))
    write_study(file.with_name("groups-tables"), table, markdown(table), figures(table))


def figures(table: Any) -> dict[str, Figure]:
    """Draws the differences of FairFed and FedFB to FedAvg, a file for each data set.

    Claims have p values.
    """
    drawn = {}
    for name, rows in table[table["method"].isin(CLAIMS)].groupby("data", sort=False):
        panels, rows = {}, rows.sort_values("method", kind="stable")
        for column, long in DIFFERENCES.items():
            ends = {"difference": "mean", "low": "low", "high": "high"}
            panels[long.replace("_", " ")] = pd.DataFrame({
                "method": [f"{one.method}, \N{GREEK SMALL LETTER ALPHA} = {one.alpha:g}"
                           for one in rows.itertuples()],
                **{key: rows[f"{column} less fedavg {end}"] for key, end in ends.items()},
                "p": rows["p_holm"].where(rows["method"].map(CLAIMS) == column),
                "seeds": len(SEEDS),
            })  # fmt: skip
        drawn[f"groups-{name}"] = forests.share_axis(forests.draw(panels, "fedavg"))
    return drawn


def markdown(table: Any) -> str:
    """Formats one table per data set."""
    lines = [
        f"In %, means over {len(SEEDS)} seeds after {ROUNDS} rounds; in brackets the difference to",
        "FedAvg over paired seeds with its 95% confidence interval. *: the claim, p below .05",
        "after Holm's correction over both data sets, all alpha and both methods.",
        "",
    ]
    headings = ("alpha", "method", "accuracy", "equal opportunity", "demographic parity")
    for name, rows in table.groupby("data", sort=False):
        cells = []
        for row in rows.to_dict("records"):
            cell = [f"{row['alpha']:g}", row["method"]]
            for column in ("accuracy", "eo", "dp"):
                text = f"{row[column]:.1f}"
                if not np.isnan(row[f"{column} less fedavg mean"]):
                    low, mean, high = (
                        row[f"{column} less fedavg {end}"] for end in ("low", "mean", "high")
                    )
                    text += f" ({mean:+.1f}, {low:+.1f} to {high:+.1f})"
                if CLAIMS.get(row["method"]) == column and row["p_holm"] < 0.05:
                    text += " *"
                cell.append(text)
            cells.append(cell)
        lines += [f"{name}, differences by {FEATURES[str(name)]}:", ""]
        lines += [*markdown_table(headings, cells), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
