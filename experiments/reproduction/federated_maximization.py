"""Federated maximization: value and communication of each method.

    python -m experiments.reproduction.federated_maximization --tfds-dir FOLDER

Runs missing settings sequentially, then writes table and figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.common import append_rows, markdown_table, options_of, read_rows
from fedjax_fair.app.maximization_tasks import movielens
from fedjax_fair.report.drawing import COLORS, style_axes
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import method_comparison
from fedjax_fair.submodular.federated.method_comparison import GREEDY, POPULAR, Method

STEM = "federated-maximization"
SIZES = (10, 20, 50)


class Setting(NamedTuple):
    """A method of ``method_comparison`` with its settings; None if it has no such setting."""

    method: str
    rounds: int | None = None
    cohort_size: int | None = None
    local_steps: int | None = None
    responses: int | None = None


def main() -> None:
    parser = options_of("Federated submodular maximization.", reads_tfds=True)
    parser.add_argument("--instances", nargs="*", choices=INSTANCES, default=tuple(INSTANCES))
    parser.add_argument("--k", nargs="*", type=int, default=SIZES)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()

    file = options.output / f"{STEM}-runs.csv"
    for name in () if options.only_write else options.instances:
        instance = INSTANCES[name](options.tfds_dir)
        for k in options.k:
            run_missing(name, instance, k, tuple(range(options.seeds)), file)
    write(file)


def ratings(tfds_dir: str | None) -> fed.Problem:
    task = movielens("movielens/100k-ratings", tfds_dir)
    return task.make(task.scores)


def communities(_: str | None = None) -> fed.Problem:
    """2,000 clients of 60 communities, 600 groups."""
    return _overlapping(2000, 600, 60)


def million(_: str | None = None) -> fed.Problem:
    """1,000,000 clients of 200 communities, 1,000 groups."""
    return _overlapping(1_000_000, 1000, 200)


def _overlapping(num_clients: int, num_groups: int, num_communities: int) -> fed.Problem:
    """Coverage in which popular groups cover the same clients.

    Communities have sizes that fall as 1 / rank, and as many groups as their share. A group takes
    in its community's clients with a probability of its own, Beta(1, 3), and a few strangers.
    """
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, num_communities + 1)
    homes = rng.choice(num_communities, num_clients, p=shares / shares.sum())
    of_group = rng.choice(num_communities, num_groups, p=shares / shares.sum())
    strangers = num_clients * num_groups // 10_000
    pairs = [rng.integers(num_clients * num_groups, size=strangers)]
    for community in np.unique(of_group):
        clients, groups = np.flatnonzero(homes == community), np.flatnonzero(of_group == community)
        joins = rng.random((clients.size, groups.size)) < rng.beta(1, 3, groups.size)
        rows, columns = np.nonzero(joins)
        pairs.append(clients[rows] * num_groups + groups[columns])
    clients, groups = np.divmod(np.unique(np.concatenate(pairs)), num_groups)
    listed = fed.sparse_scores(clients, groups, num_clients=num_clients, size=num_groups)
    return fed.max_coverage(listed)


INSTANCES: dict[str, Callable[[str | None], fed.Problem]] = {
    "movielens-100k": ratings,
    "communities": communities,
    "million": million,
}


def settings(instance: fed.Problem) -> Iterator[Setting]:
    """One number varied at a time: rounds, cohort, local steps and responses."""
    yield from (Setting(name) for name in method_comparison.baselines())
    some = instance.num_clients // 10
    if instance.num_clients > 100_000:
        yield Setting("fedcg", rounds=10)
        yield Setting("fedcg-gradient", rounds=10)
        yield Setting("discrete-greedy", responses=1000)
        yield Setting("discrete-greedy", responses=some)
        return
    for method in ("fedcg", "fedcg-gradient"):
        for rounds in (10, 50, 200):
            yield Setting(method, rounds, some)
        for cohort in (some // 5, None):
            yield Setting(method, 50, cohort)
    for local_steps in (5, 10):
        yield Setting("fedcg+", 50, some, local_steps)
    for responses in (some // 5, some, 5 * some):
        yield Setting("discrete-greedy", responses=responses)


def run_missing(
    name: str, instance: fed.Problem, k: int, seeds: tuple[int, ...], file: Path
) -> None:
    """Runs the missing settings of an instance."""
    matroid = matroids.Uniform(k, instance.size)
    factors = None
    for setting in settings(instance):
        if _key(name, k, setting) in _done(file, seeds):
            continue
        if factors is None:
            factors = np.asarray(fed.importance_factors(instance).factors)
        method = as_method(setting, factors)
        started = time.perf_counter()
        ways = {setting.method: method}
        # Deterministic methods run once.
        runs = seeds if _random(setting) else seeds[:1]
        found = method_comparison.compare(instance, matroid, ways, runs)
        seconds = time.perf_counter() - started
        rows = _rows(name, k, setting, found.isel(algorithm=0), seconds)
        append_rows(_read(file), rows, file, digits=7)
        print(*_key(name, k, setting), f"{seconds:.1f} s", flush=True)


def as_method(setting: Setting, factors: np.ndarray) -> Method:
    if setting.method in method_comparison.baselines():
        return method_comparison.baselines()[setting.method]
    responses = setting.responses
    kappa = None if responses is None else fed.kappa_for_responses(factors, responses)
    return method_comparison.methods(
        rounds=setting.rounds or 1,
        local_steps=setting.local_steps or 1,
        cohort_size=setting.cohort_size,
        kappa=kappa,
    )[setting.method]


def _random(setting: Setting) -> bool:
    return setting.method == method_comparison.RANDOM or not (
        setting.method in (GREEDY, POPULAR)
        or (setting.responses is None and setting.cohort_size is None)
    )


def _key(name: str, k: int, setting: Setting) -> tuple:
    return name, k, *("" if number is None else number for number in setting)


def _done(file: Path, seeds: tuple[int, ...]) -> set[tuple]:
    if not file.exists():
        return set()
    runs: pd.DataFrame = _read(file)
    columns = ["instance", "k", *Setting._fields]
    rows = runs[columns].astype(object).where(runs[columns].notna(), "")
    counts: dict[tuple, int] = {}
    for row in rows.itertuples(index=False, name=None):
        counts[row] = counts.get(row, 0) + 1
    return {
        row
        for row, count in counts.items()
        if count >= len(seeds) or not _random(Setting(row[2], *(n or None for n in row[3:])))
    }


def _read(file: Path) -> pd.DataFrame:
    whole: Any = dict.fromkeys(Setting._fields[1:], "Int64")
    return read_rows(file, dtype=whole)


def _rows(name: str, k: int, setting: Setting, found: Any, seconds: float) -> pd.DataFrame:
    kept = found[["final_value", "rounds"]]
    for column in ("rounded", "extension_reached", "guaranteed_factor", "guaranteed_error"):
        kept[column] = found.get(column, found["final_value"] * np.nan)
    for column in ("bits_up", "bits_down", "contacted", "responded"):
        kept[column] = found[column].max("round")
    rows = kept.drop_vars("rounds").to_dataframe().reset_index().drop(columns="algorithm")
    rows.insert(0, "instance", name)
    rows.insert(1, "k", k)
    for place, (field, value) in enumerate(setting._asdict().items()):
        rows.insert(2 + place, field, pd.NA if value is None else value)
    rows["rounds_of_talk"] = int(found["rounds"])
    rows["seconds"] = round(seconds / len(rows), 2)
    return rows


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns means over seeds, relative to centralized greedy, one row per setting."""
    keys = ["instance", "k", *Setting._fields]
    means: Any = runs.groupby(keys, dropna=False, sort=False).mean(numeric_only=True)
    deviations: Any = runs.groupby(keys, dropna=False, sort=False)["final_value"].std()
    table = means.reset_index()
    for reference in (GREEDY, POPULAR):
        own: Any = table[table["method"] == reference].set_index(["instance", "k"])["final_value"]
        table[reference] = table.set_index(["instance", "k"]).index.map(own)
    table["ratio"] = table["final_value"] / table[GREEDY]
    table["deviation"] = deviations.to_numpy() / table[GREEDY]
    table["beyond_popular"] = (table["final_value"] - table[POPULAR]) / (
        table[GREEDY] - table[POPULAR]
    )
    table["ratio_rounded"] = table["rounded"] / table[GREEDY]
    bound = table["guaranteed_factor"] * table[GREEDY] - table["guaranteed_error"]
    table["guaranteed"] = bound / table[GREEDY]
    table["slack"] = (table["extension_reached"] - bound) / table[GREEDY]
    return table.drop(columns=[GREEDY, POPULAR, "seed"])


COLUMNS = {
    "ratio": ("ratio", 4),
    "deviation": ("±", 4),
    "ratio_rounded": ("random rounding", 4),
    "beyond_popular": ("beyond popular", 3),
    "guaranteed": ("bound", 2),
    "slack": ("slack", 2),
}


def markdown(table: pd.DataFrame) -> str:
    """Formats a table per instance and size."""
    headings = ["method", "T", "K", "tau", "responses", *(name for name, _ in COLUMNS.values()),
                "Mbit up", "Mbit down"]  # fmt: skip
    parts = []
    groups: Any = table.groupby(["instance", "k"], sort=False)
    for (name, k), rows in groups:
        cells = []
        for row in rows.to_dict("records"):
            settings = ["" if pd.isna(row[field]) else row[field] for field in Setting._fields[1:]]
            if row["method"].startswith("fedcg") and pd.isna(row["cohort_size"]):
                settings[1] = "all"
            values = ["" if pd.isna(row[c]) else f"{row[c]:.{d}f}" for c, (_, d) in COLUMNS.items()]
            bits = [f"{row[way] / 1e6:.3g}" for way in ("bits_up", "bits_down")]
            cells.append([f"`{row['method']}`", *settings, *values, *bits])
        parts.append("\n".join([f"### {name}, k = {k}", "", *markdown_table(headings, cells)]))
    return "\n\n".join(parts) + "\n"


def draw(table: pd.DataFrame) -> Any:
    """Plots the ratio to centralized greedy against bits, a panel per instance and size."""
    from matplotlib.figure import Figure

    groups: Any = list(table.groupby(["instance", "k"], sort=False))
    rows = -(-len(groups) // 3)
    figure = Figure(figsize=(10.0, 0.6 + 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).ravel()
    names = list(method_comparison.methods(rounds=1, local_steps=1, cohort_size=None, kappa=None))
    for axes, ((name, k), own) in zip(panels, groups, strict=False):
        for method, color in zip(names, COLORS, strict=False):
            points = own[own["method"] == method]
            bits = points["bits_up"] + points["bits_down"]
            axes.errorbar(
                bits, points["ratio"], yerr=points["deviation"].fillna(0), fmt="o", color=color,
                label=method, markersize=4,
            )  # fmt: skip
        popular = own[own["method"] == POPULAR]["ratio"]
        axes.axhline(float(popular.iloc[0]), color="0.4", linestyle=":", label=POPULAR)
        axes.axhline(0.99, color="0.8", linewidth=1, label="0.99 of it")
        axes.set(xscale="log", title=f"{name}, k = {k}")
        axes.xaxis.set_minor_formatter("")
        style_axes(axes)
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    figure.supxlabel("Bits to and from all clients", size=10)
    figure.supylabel("Value / that of centralized greedy", size=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    return figure


def write(file: Path) -> None:
    """Writes table and figure next to the file of runs."""
    runs: pd.DataFrame = _read(file)
    complete = runs.query("method == @POPULAR")[["instance", "k"]].drop_duplicates()
    table = summarize(runs.merge(complete, on=["instance", "k"]))
    table.to_csv(file.with_name(f"{STEM}.csv"), index=False, float_format="%.5g")
    file.with_name(f"{STEM}-tables.md").write_text(markdown(table))
    draw(table).savefig(file.with_name(f"{STEM}.png"), dpi=110)


if __name__ == "__main__":
    main()
