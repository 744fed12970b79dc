"""The runs of docs/reproduction/protocol.md.

    python -m experiments.reproduction.protocol --dry-run
    python -m experiments.reproduction.protocol --parts A --tfds-dir FOLDER
    python -m experiments.reproduction.protocol --measure --tfds-dir FOLDER

Trains missing runs, one file each, so that the same command continues after an interruption. With
``--dry-run`` it prints how many are missing, and the processor time that they need. ``--measure``
writes the costs of this estimate, with a seed that no part uses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common import markdown_table, options_of
from experiments.reproduction import equitable, protocol_theory, runs
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.paper_presets import PAPERS, SELECTION_TABLES

__all__ = ["Cell", "cells", "estimate", "missing", "not_yet_known", "screened"]

PARTS = ("A", "B", "D", "C", "E")
"""In order of importance."""
MEASURED_SEED = 900
WEIGHTS = (0.1, 0.25, 0.5, 0.75, 0.95)
WINDOWS = (2, 5, 10)
SEARCHED = ("divfl", "subtrunc:lam=0.95", "unionfl:window=5")
POINTS = tuple(product((2, 3, 5), (5, 50), (5, 10), (0.003, 0.01)))
"""Classes per client, local steps, cohort size and step size of the search."""
LITERAL, MEAN = "unionfl:window=5,scale=sum", "unionfl:window=5"
"""UnionFL as printed, and with G divided by the number of clients."""
SEARCH_ROUNDS, SCREENED, TESTED = 10, (200, 201), tuple(range(300, 320))
METRICS = (
    *runs.SUMMARIES[:4],
    "accuracy_worst_10pct",
    "client_dissimilarity_class_based_se",
    "accuracy_standard_deviation",
    "participation_gini",
)
GRID = {
    "fedprox": ("prox", (0.01, 0.001, 0.1, 1)),
    "clustered_by_similarity": ("prox", (0.01, 0.001, 0.1, 1)),
    "equitable": ("prox", (0.01, 0.001, 0.1, 1)),
}
"""Strengths of part C, after step sizes with the first one; the paper's grid and 0.03 and 0.3."""
RATES = (0.1, 0.01, 0.001, 0.03, 0.3)


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        part: Part of the protocol.
        group: Runs with one configuration, and their folder.
        config: The configuration, without methods and seeds.
        method: The method.
        seed: The seed.
        holds_out: Whether it is tested on a fifth of the training examples.
        of_equitable: Whether it has the metrics of the Equitable-FL paper.
    """

    part: str
    group: str
    config: Config = field(repr=False)
    method: str
    seed: int
    holds_out: bool = False
    of_equitable: bool = False

    def file(self, folder: Path) -> Path:
        """Returns its file."""
        return folder / self.part / self.group / f"{self.method.replace(':', ',')}-{self.seed}.csv"


def main() -> None:
    parser = options_of("Runs of the protocol.", "docs/reproduction/protocol", reads_tfds=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--dry-run", action="store_true", help="print the estimate only")
    parser.add_argument("--measure", action="store_true", help="measure the costs again")
    options = parser.parse_args()
    costs = options.output / "costs.csv"
    if options.measure:
        measure(options.tfds_dir).to_csv(costs, index=False, float_format="%.3g")
    if options.dry_run or options.measure:
        print(estimate(options.parts, options.output, pd.read_csv(costs)))
        return
    for part in options.parts:
        if part == "D":
            protocol_theory.run_missing(options.output / "D")
            continue
        train_missing(part, options.output, options.tfds_dir)
        if part in "BC":  # The screening and the grid decide on further runs.
            train_missing(part, options.output, options.tfds_dir)


def cells(part: str, folder: Path) -> Iterator[Cell]:
    """Yields the runs of a part; those that depend on others once these are complete."""
    if part == "A":
        config = SELECTION_TABLES["mnist"]["table1"]
        compared = (
            "fedavg",
            "power_of_choice",
            "divfl",
            *(f"unionfl:window={window}" for window in WINDOWS),
            *(f"subtrunc:lam={weight}" for weight in WEIGHTS),
            "subtrunc:lam=0.95,phi=identity",
        )
        yield from _cells("A", "mnist", config, compared, range(10, 30))
        config = SELECTION_TABLES["cifar10"]["table1-cifar10"]
        yield from _cells("A", "cifar10", config, config.methods, range(10, 20))
    elif part == "B":
        for point in POINTS:
            group = f"screen/{name_of(point)}"
            yield from _cells("B", group, searched(point), SEARCHED, SCREENED, holds_out=True)
        for point, compared in screened(folder).items():
            methods = ("divfl", *compared)
            yield from _cells("B", f"test/{name_of(point)}", searched(point), methods, TESTED)
    elif part == "E":
        config = SELECTION_TABLES["mnist"]["table1"]
        compared = ("fedavg", "rotation", "divfl", MEAN, LITERAL)
        yield from _cells("E", "mnist", config, compared, range(1000, 1040))
    else:
        mnist, cifar = (PAPERS[f"equitable-{data}"].config for data in ("mnist", "cifar10"))
        methods = [name for name in mnist.methods if name.partition(":")[0] in GRID]
        yield from _cells("C", "mnist", mnist, methods, range(510, 520), of_equitable=True)
        short = replace(cifar, training=replace(cifar.training, rounds=20))
        tuned = {"holds_out": True, "of_equitable": True}
        yield from _cells("C", "grid", short, grid(), (500,), **tuned)
        cifar = _of_c3(cifar)
        yield from _cells("C", "cifar10", cifar, chosen(folder), range(400, 407), of_equitable=True)


def _of_c3(config: Config) -> Config:
    return replace(config, training=replace(config.training, rounds=60))


def _cells(part: str, group: str, config: Config, methods: Iterable[str], seeds, **settings):
    """Seeds first, so that an interruption leaves the same seeds of all methods."""
    pairs: Any = product(seeds, methods)
    for seed, method in pairs:
        yield Cell(part, group, config, method, seed, **settings)


def name_of(point: Sequence[float]) -> str:
    """Names a point of the search.

    Examples:
        >>> name_of((2, 5, 10, 0.003))
        'classes=2,steps=5,cohort=10,rate=0.003'
    """
    names = "classes", "steps", "cohort", "rate"
    return ",".join(f"{name}={value}" for name, value in zip(names, point, strict=True))


def searched(point: Sequence[Any]) -> Config:
    """Returns the configuration of a point."""
    classes, steps, cohort, rate = point
    config = SELECTION_TABLES["mnist"]["table1"]
    return replace(
        config,
        data=replace(config.data, classes_per_client=classes),
        solver=replace(config.solver, learning_rate=rate, steps=steps),
        selector=replace(config.selector, cohort_size=cohort),
        training=replace(config.training, rounds=SEARCH_ROUNDS),
    )


def screened(folder: Path) -> dict[tuple, tuple[str, ...]]:
    """Returns the two best points of each method, with the methods to test there.

    The score is the mean paired difference of dissimilarity to DivFL, over both seeds and all
    evaluations after round 0, on held-out examples. Empty until the screening is complete.
    """
    scores = screening(folder)
    if scores is None:
        return {}
    found: dict[tuple, tuple[str, ...]] = {}
    for method in SEARCHED[1:]:
        best: Any = scores[method]
        for point in best.nsmallest(2).index:
            found[POINTS[point]] = (*found.get(POINTS[point], ()), method)
    return found


def screening(folder: Path) -> pd.DataFrame | None:
    """Returns the scores of all points, one column per method; None until complete."""
    rows = []
    for point in POINTS:
        group = f"screen/{name_of(point)}"
        own = [*_cells("B", group, searched(point), SEARCHED, SCREENED)]
        if not all(cell.file(folder).exists() for cell in own):
            return None
        table = pd.concat([pd.read_csv(cell.file(folder)) for cell in own])
        trained = table[table["round"] > 0]
        means: Any = trained.groupby("algorithm")["client_dissimilarity"].mean()
        rows.append(100 * (means - means["divfl"]))
    found: Any = pd.DataFrame(rows).reset_index(drop=True)
    return found[list(SEARCHED[1:])]


def grid() -> list[str]:
    """Returns the configurations that part C tunes over."""
    names = []
    for method, (setting, values) in GRID.items():
        names += [f"{method}:learning_rate={rate},{setting}={values[0]}" for rate in RATES]
        names += [f"{method}:learning_rate={RATES[0]},{setting}={value}" for value in values[1:]]
    return names


def chosen(folder: Path) -> list[str]:
    """Returns the most accurate configuration of each method; empty until the grid is complete."""
    files = {
        name: Cell("C", "grid", Config(), name, 500).file(folder)
        for name in grid()
    }  # fmt: skip
    if not all(file.exists() for file in files.values()):
        return []
    accuracy = {
        name: pd.read_csv(file)["accuracy_mean_examples"].tail(3).mean()
        for name, file in files.items()
    }
    return [
        max((name for name in accuracy if name.startswith(method)), key=accuracy.__getitem__)
        for method in GRID
    ]


def missing(part: str, folder: Path) -> list[Cell]:
    """Returns the runs without a file."""
    return [cell for cell in cells(part, folder) if not cell.file(folder).exists()]


def train_missing(part: str, folder: Path, data_dir: str | None) -> None:
    """Trains the missing runs of a part, one per core at a time."""
    cores = len(os.sched_getaffinity(0))
    todo = missing(part, folder)
    for _, of_group in groupby(todo, key=lambda cell: cell.group):
        of_group = list(of_group)
        seeds = list(dict.fromkeys(cell.seed for cell in of_group))
        for first in range(0, len(seeds), cores):
            batch = [cell for cell in of_group if cell.seed in seeds[first : first + cores]]
            for method in dict.fromkeys(cell.method for cell in batch):
                train_together([cell for cell in batch if cell.method == method], folder, data_dir)


def train_together(batch: Sequence[Cell], folder: Path, data_dir: str | None) -> None:
    """Trains runs that differ in their seeds only, and writes their files."""
    first = batch[0]
    seeds = tuple(cell.seed for cell in batch)
    by_seed = {cell.seed: cell for cell in batch}
    for _, seed, rows in runs.train(_config(first, data_dir), seeds, *_settings(first)):
        file = by_seed[seed].file(folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        rows.to_csv(partial, index=False, float_format="%.6g")
        partial.replace(file)
        print(file, flush=True)


def _config(cell: Cell, data_dir: str | None) -> Config:
    data = replace(cell.config.data, dir=data_dir or cell.config.data.dir)
    return replace(cell.config, methods=(cell.method,), data=data)


def _settings(cell: Cell) -> tuple:
    metrics = (METRICS, runs.OF_ROUNDS)
    if cell.of_equitable:
        metrics = ((*equitable.SUMMARIES, "accuracy_worst_10pct"), equitable.OF_ROUNDS)
    return *metrics, runs.held_out if cell.holds_out else None, "skip_round"


KINDS = {
    ("A", "mnist"): ("fedavg", "power_of_choice", "divfl"),
    ("A", "cifar10"): ("fedavg", "divfl"),
    ("B", "screen/classes=3,steps=5,cohort=5,rate=0.01"): ("divfl",),
    ("B", "screen/classes=3,steps=50,cohort=10,rate=0.01"): ("divfl",),
    ("C", "mnist"): ("equitable:learning_rate=0.3,prox=0.01",),
    ("C", "grid"): ("equitable:learning_rate=0.1,prox=0.01",),
}
"""Cells that are measured. Others cost what the nearest of these does, see `_cost`."""


def measure(data_dir: str | None, rounds: int = 2) -> pd.DataFrame:
    """Measures processor seconds per round in a second run, and those before the first round.

    Other processes change them less than they change the time that passes.
    """
    rows = []
    for (part, group), methods in KINDS.items():
        of_group = {cell.method: cell for cell in cells(part, Path()) if cell.group == group}
        for method in methods:
            cell = replace(of_group[method], seed=MEASURED_SEED)
            every = rounds if cell.of_equitable else 1
            training = replace(cell.config.training, rounds=rounds, eval_every=every)
            cell = replace(cell, config=replace(cell.config, training=training))
            spent = []
            for _ in range(2):  # The second run compiles nothing.
                started = time.process_time()
                list(runs.train(_config(cell, data_dir), (MEASURED_SEED,), *_settings(cell)))
                spent.append(time.process_time() - started)
            rows.append(
                {
                    "part": part,
                    "group": group,
                    "method": method,
                    "seconds_per_round": spent[1] / rounds,
                    "seconds_before": max(spent[0] - spent[1], 0),
                    "source": f"seed {MEASURED_SEED}",
                }
            )
            print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def estimate(parts: Iterable[str], folder: Path, costs: pd.DataFrame) -> str:
    """Returns a table of missing runs with their processor time in hours."""
    rows, total = [], 0.0
    for part in parts:
        if part == "D":
            todo = len(protocol_theory.missing(folder / "D"))
            hours = protocol_theory.HOURS if todo else 0.0
            rows.append(["D", "instances", todo, f"{hours:.1f}"])
            total += hours
            continue
        todo = missing(part, folder)
        planned = [*todo, *not_yet_known(part, folder)]
        groups: dict[str, list[float]] = {}
        for cell in planned:
            groups.setdefault(cell.group.partition("/")[0], []).append(_cost(cell, costs))
        for group, seconds in groups.items():
            rows.append([part, group, len(seconds), f"{sum(seconds) / 3600:.1f}"])
            total += sum(seconds) / 3600
    headings = "part", "runs of", "missing", "hours of one core"
    lines = markdown_table(headings, [*rows, ["", "all", "", f"{total:.1f}"]])
    return "\n".join([*lines, "", f"With two cores: {total / 2:.1f} hours."])


def not_yet_known(part: str, folder: Path) -> Iterator[Cell]:
    """Yields runs whose methods depend on others: four points of two, and three tuned methods."""
    if part == "B" and not screened(folder):
        costliest = searched((3, 50, 10, 0.01))
        for _ in range(4):
            yield from _cells("B", "test/", costliest, SEARCHED[:2], TESTED)
    if part == "C" and not chosen(folder):
        cifar = _of_c3(PAPERS["equitable-cifar10"].config)
        yield from _cells("C", "cifar10", cifar, GRID, range(400, 407), of_equitable=True)


def _cost(cell: Cell, costs: pd.DataFrame) -> float:
    """Processor seconds of a run, from those of the most similar measured one."""
    # Part E has the setting of A1.
    own: Any = costs[costs["part"] == cell.part.replace("E", "A")]
    if cell.part == "B":
        small = (cell.config.solver.steps or 0) < 50
        own = own[own["group"].str.contains("steps=5," if small else "steps=50,")]
    elif cell.part == "C" and cell.group == "cifar10":
        own = own[own["group"] == "grid"]
    else:
        own = own[own["group"] == cell.group]
    name = cell.method.partition(":")[0]
    same = own[own["method"].str.partition(":")[0] == name]
    cheap = name in ("fedavg", "power_of_choice", "rotation")
    row = (same if len(same) else own.iloc[:1] if cheap else own.iloc[-1:]).iloc[0]
    return row["seconds_before"] + row["seconds_per_round"] * (cell.config.training.rounds or 0)


if __name__ == "__main__":
    main()
