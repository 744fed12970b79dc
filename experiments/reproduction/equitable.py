r"""Tables 2, 4 and 5 of the Equitable-FL paper, measured and reported, and their curves.

    python -m experiments.reproduction.equitable grid --data mnist --tfds-dir FOLDER
    python -m experiments.reproduction.equitable table --data mnist --tfds-dir FOLDER --seeds 5
    python -m experiments.reproduction.equitable ablations --data mnist --tfds-dir FOLDER --seeds 3
    python -m experiments.reproduction.equitable table --data cifar10 --tfds-dir FOLDER \
        --rounds 100 --seeds 3 --once centralized fairfed gifair

Trains missing runs. The grid compares step sizes and strengths of every method after few rounds,
with seeds that no table uses, tested on a fifth of the training examples; the presets have the best
ones. The ablations vary the clusters, epochs and proximal term of Equitable-FL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from experiments.common import options_of, read_rows
from experiments.reproduction import paper, runs, tables
from experiments.reproduction.tables import Column, Layout
from fedjax_fair.app.settings.paper_presets import ABLATIONS, PAPERS
from fedjax_fair.metrics import paired
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
PERIODS = ((5, 50), (55, 125), (130, 250))
"""First and last rounds of periods to average."""
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
    note=(
        "Sigma_acc of groups has the accuracy of a client's ground-truth group in place of its "
        "own, without the sampling noise of its test set; the gap is between groups' accuracies."
    ),
)
PROX = ("prox", (0.01, 0.0, 0.001, 0.1, 1.0))


class Grid(NamedTuple):
    """A grid of settings.

    Attributes:
        methods: Methods, each with the name and values of its strength, or None.
        rates: Step sizes.
        rounds: Rounds per run.
    """

    methods: Mapping[str, tuple[str, tuple[float, ...]] | None]
    rates: tuple[float, ...]
    rounds: int


GRIDS = {
    "mnist": Grid(
        {
            "centralized:epochs=1": None,
            "fedprox": PROX,
            "clustered_by_similarity": PROX,
            "power_of_choice": PROX,
            "fairfed:prox=0.01": ("beta", (0.1, 0.0, 0.01, 0.5, 1.0)),
            "gifair:prox=0": ("strength", (0.5, 0.1, 0.3, 0.9, 1.0)),
            "equitable": PROX,
        },
        rates=(0.001, 0.01, 0.1, 0.3, 1.0),
        rounds=30,
    ),
    "cifar10": Grid({"fedprox:prox=0.01": None}, rates=(0.01, 0.03, 0.1, 0.3), rounds=20),
}
"""By data: all step sizes with the first strength, then the other strengths with the best step
size. Centralized training has no strength. All but GIFAIR train as FedProx does. On CIFAR-10, where
a round takes a hundred times as long, FedProx alone looks for a step size for all methods, and
strengths are those of MNIST."""
GRID_SEEDS, GRID_LAST = (100, 101), 3


def main() -> None:
    parser = options_of("Tables of the Equitable-FL paper.", reads_tfds=True)
    parser.add_argument("what", choices=("grid", "table", "ablations"))
    parser.add_argument("--data", choices=tuple(GRIDS), default="mnist")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method")
    parser.add_argument("--once", nargs="+", default=[], help="methods of a table that run once")
    parser.add_argument("--rounds", type=int, help="instead of the paper's 250")
    options = parser.parse_args()

    def run(preset: str, names: Iterable[str], seeds: Iterable[int], rounds: int | None, **given):
        if options.only_write:
            return
        given |= {"data_dir": options.tfds_dir, "rounds": options.rounds or rounds}
        config = PAPERS[preset].config
        runs.run_missing(config, names, seeds, file, SUMMARIES, OF_ROUNDS, **given)

    data, seeds = options.data, range(options.seeds)
    file = options.output / f"equitable-{options.what}-{data}-runs.csv"
    table = f"equitable-{data}"
    if options.what == "grid":
        tested = {"prepare": runs.held_out, "on_nonfinite": "skip_round"}
        grid = GRIDS[data]
        run(table, step_sizes(grid), GRID_SEEDS, grid.rounds, **tested)
        run(table, strengths(grid, chosen(file)), GRID_SEEDS, grid.rounds, **tested)
        write_grid(file)
    elif options.what == "table":
        methods = PAPERS[table].config.methods
        names = [name.partition(":")[0] for name in methods]
        for unknown in set(options.once) - set(names):
            parser.error(f"--once {unknown}: expected some of {', '.join(names)}.")
        once = [name for name in methods if name.partition(":")[0] in options.once]
        run(table, [name for name in methods if name not in once], seeds, None)
        run(table, once, seeds[:1], None)
        write_table(data, file)
    else:
        for name in ABLATIONS:
            preset = f"equitable-{name}-{data}"
            run(preset, PAPERS[preset].config.methods, seeds, None)
        write_ablations(data, file)


def step_sizes(grid: Grid) -> list[str]:
    """Returns the first configurations of a grid, as methods with settings."""
    return [
        _with(method, learning_rate=rate, **({} if own is None else {own[0]: own[1][0]}))
        for method, own in grid.methods.items()
        for rate in grid.rates
    ]


def strengths(grid: Grid, best: Mapping[str, str]) -> list[str]:
    """Returns the other configurations, given the best settings of each method so far."""
    names = []
    for method, own in grid.methods.items():
        if own is not None:
            pairs = (pair.split("=") for pair in best[method.partition(":")[0]].split(","))
            rate = dict(pairs)["learning_rate"]
            names += [_with(method, learning_rate=rate, **{own[0]: value}) for value in own[1][1:]]
    return names


def _with(method: str, **settings: object) -> str:
    joined = ",".join(f"{name}={value}" for name, value in settings.items())
    return f"{method}{',' if ':' in method else ':'}{joined}"


def write_grid(file: Path) -> None:
    """Writes the accuracy of every configuration, best first within each method."""
    table = summarize_grid(file)
    table.to_csv(file.with_name(file.name.replace("-runs", "")), index=False, float_format="%.2f")
    print(table.to_string(index=False))


def summarize_grid(file: Path) -> pd.DataFrame:
    """Returns accuracy and sigma_acc in %, means over seeds and the last evaluations."""
    rows = read_rows(file)
    ends = rows[rows["round"].isin(sorted(set(rows["round"]))[-GRID_LAST:])]
    table = []
    for name, own in ends.groupby("algorithm", sort=False):
        method, _, settings = str(name).partition(":")
        means = {
            "accuracy": 100 * own["accuracy_mean_examples"].mean(),
            "sigma": 100 * own["sigma_acc"].mean(),
        }
        table.append({"method": method, "settings": settings, **means})
    return pd.DataFrame(table).sort_values(["method", "accuracy"], ascending=[True, False])


def chosen(file: Path) -> dict[str, str]:
    """Returns the most accurate settings of each method."""
    best = summarize_grid(file).drop_duplicates("method")
    return dict(zip(best["method"], best["settings"], strict=True))


def write_table(data: str, file: Path) -> None:
    """Writes the table as CSV and Markdown, and the curves, next to the file of runs.

    The table is over the seeds of all methods. Methods with more seeds have a second one.
    """
    methods = PAPERS[f"equitable-{data}"].config.methods
    measured = short(runs.collect(methods, file))
    stem = file.parent / f"equitable-table-{data}"
    tables.write(stem, measured, LAYOUT, paper.EQUITABLE[data])
    rows = read_rows(file)
    done = {name: rows.loc[rows["algorithm"] == name, "seed"].nunique() for name in methods}
    most = [name for name in methods if done[name] == max(done.values())]
    if len(most) < len(methods):
        longer, beside = short(runs.collect(most, file)), file.parent / f"{stem.name}-several"
        tables.write(beside, longer, LAYOUT, paper.EQUITABLE[data])
        _draw(beside, longer, "sigma_acc")
    if measured.sizes["seed"] > 1 and int(measured["round"].max()) >= PERIODS[-1][-1]:
        by_period(measured).to_csv(
            f"{stem}-periods.csv", index=False, float_format="%.3f", lineterminator="\n"
        )
    for name in ("accuracy_mean_examples", "sigma_acc", "client_disagreement", "aggregation_nmi"):
        _draw(stem, measured, name)


def by_period(measured: xr.Dataset) -> pd.DataFrame:
    """Returns mean sigma_acc per period, and paired differences to FedProx, in %.

    The periods were chosen with the curves in sight. P values are therefore adjusted (Holm) for all
    methods and periods together.
    """
    parts = []
    for first, last in PERIODS:
        own = measured.sel(round=slice(first, last))
        ends = 100 * own["sigma_acc"].mean("round")
        for method in map(str, ends["algorithm"].values):
            values = ends.sel(algorithm=method).values
            gap = paired.interval(values - ends.sel(algorithm="fedprox").values)
            of_baseline = method == "fedprox"
            parts.append(
                {
                    "rounds": f"{first} to {last}",
                    "algorithm": method,
                    "sigma_acc": values.mean(),
                    "difference": np.nan if of_baseline else gap.mean,
                    "low": np.nan if of_baseline else gap.low,
                    "high": np.nan if of_baseline else gap.high,
                    "p": gap.p,
                }
            )
    whole: Any = pd.DataFrame(parts)
    whole["p"] = paired.holm(whole["p"].tolist())
    return whole[["rounds", "algorithm", "sigma_acc", "difference", "low", "high", "p"]]


def write_ablations(data: str, file: Path) -> None:
    """Writes a table and the curves of disagreement for each varied setting."""
    for name in ABLATIONS:
        measured = varied(runs.collect(PAPERS[f"equitable-{name}-{data}"].config.methods, file))
        stem = file.parent / f"equitable-{name}-{data}"
        first = str(measured["algorithm"].values[0])
        layout = LAYOUT._replace(
            compared=("sigma", "disagreement", "accuracy"), baselines={first: first}
        )
        tables.write(stem, measured, layout, {})
        _draw(stem, measured, "client_disagreement")


def _draw(stem: Path, measured: xr.Dataset, name: str) -> None:
    """Plots the running mean of a variable, as the paper does, without the untrained model."""
    so_far = (
        cumulative(measured[name].sel(round=slice(1, None)))
        .dropna("algorithm", how="all")
        .to_dataset()
    )
    suffix = name.removeprefix("aggregation_").removesuffix("_mean_examples")
    figure = learning_curves(so_far, name)
    if name != "accuracy_mean_examples":  # Intervals of few seeds are wider than possible.
        low, high = figure.axes[0].get_ylim()
        figure.axes[0].set_ylim(max(low, 0), min(high, 1.02) if suffix == "nmi" else high)
    figure.savefig(stem.with_name(f"{stem.name}-{suffix}.png"), dpi=110)


def short(measured: xr.Dataset) -> xr.Dataset:
    """Names methods without settings."""
    names = [str(name).partition(":")[0] for name in measured["algorithm"].values]
    return measured.assign_coords(algorithm=names)


def varied(measured: xr.Dataset) -> xr.Dataset:
    """Names methods by the one setting in which they differ."""
    settings = [str(name).rpartition(":")[2].split(",") for name in measured["algorithm"].values]
    shared = set(settings[0]).intersection(*settings)
    (names,) = zip(*([one for one in own if one not in shared] for own in settings), strict=True)
    return measured.assign_coords(algorithm=list(names))


def cumulative(values: xr.DataArray) -> xr.DataArray:
    """Returns the mean of all evaluations so far; NaN before the first."""
    known = values.notnull()
    count = known.cumsum("round")
    return (values.fillna(0).cumsum("round") / count.where(count > 0)).assign_coords(
        round=values["round"]
    )


if __name__ == "__main__":
    main()
