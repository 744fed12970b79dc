"""Accuracy and fairness with dropout and with Byzantine clients.

    python -m experiments.faults dropout
    python -m experiments.faults byzantine

On the digits: 50 clients with three classes each, cohorts of 10, an MLP, 60 rounds, five seeds.
Trains what the file of runs lacks, then writes the table. All levels of a fault and all seeds are
one compiled function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

import fedjax_fair as ff
from experiments.common import append_rows, has_rows, markdown_table, options_of, read_rows
from fedjax_fair.metrics import paired
from fedjax_fair.roles import Aggregator, Faults, Selector
from fedjax_fair.rounds.round import Round

SEEDS, ROUNDS, COHORT = 5, 60, 10
DROPOUTS, BYZANTINE = (0.0, 0.1, 0.3), (0.0, 0.1, 0.2)
SELECTORS: dict[str, tuple[Callable[[], Selector], Literal["num_examples", "uniform"]]] = {
    "fedavg": (lambda: ff.selectors.Uniform(COHORT), "num_examples"),
    "power_of_choice": (lambda: ff.selectors.PowerOfChoice(COHORT), "uniform"),
    "divfl": (lambda: ff.selectors.DivFL(COHORT), "num_examples"),
    "subtrunc": (lambda: ff.selectors.SubTrunc(COHORT), "uniform"),
    "unionfl": (lambda: ff.selectors.UnionFL(COHORT), "uniform"),
    "clustered_by_size": (lambda: ff.selectors.ClusteredBySize(COHORT), "uniform"),
    "clustered_by_similarity": (lambda: ff.selectors.ClusteredBySimilarity(COHORT), "uniform"),
}
AGGREGATORS: dict[str, Callable[[], Aggregator]] = {
    "mean": ff.aggregators.Mean,
    "median": ff.aggregators.Median,
    "trimmed_mean": lambda: ff.aggregators.TrimmedMean(0.3),
    "krum": lambda: ff.aggregators.Krum(3, selected=4),
    "geometric_median": ff.aggregators.GeometricMedian,
    "norm_clipping": ff.aggregators.NormClipping,
    "centered_clipping": ff.aggregators.CenteredClipping,
}
"""Aggregators that need the number of Byzantine participants assume three of ten."""
ATTACKS = ("sign_flip", "scaling", "noise", "nan", "alie", "ipm")
METRICS = {"accuracy": "accuracy_mean_clients", "worst": "accuracy_worst_10pct_class_based"}


def main() -> None:
    parser = options_of("Dropout and Byzantine clients.", "docs/reliability")
    parser.add_argument("what", choices=("dropout", "byzantine"))
    options = parser.parse_args()
    file = options.output / f"{options.what}-runs.csv"
    if not options.only_write:
        run_missing(options.what, file)
    write_table(options.what, file)


def run_missing(what: str, file: Path) -> None:
    """Trains what the file lacks, one compiled function after another."""
    partitioner = ff.data.classes_per_client(50, 3)
    data = ff.data.load("digits", partitioner, seed=tuple(range(SEEDS)))
    for method, attack, levels, make in programs(what, data.num_classes):
        known = load(file)
        if has_rows(known, method=method, attack=attack):
            continue
        seeds = np.tile(np.arange(SEEDS), len(levels))
        runs = ff.fit(
            [round for level in levels for round in [make(level)] * SEEDS],
            ff.data.stack([data.partition(int(seed)) for seed in seeds]),
            rounds=ROUNDS,
            seeds=seeds.tolist(),
            eval_every=ROUNDS,
            train_loss=False,
            on_nonfinite="drop_client",
        ).dataset
        last = runs.merge(ff.results.class_based(runs)).isel(round=-1)
        rows = pd.DataFrame(
            {
                "method": method,
                "attack": attack,
                "level": np.repeat(levels, SEEDS),
                "seed": seeds,
                **{name: last[metric].values for name, metric in METRICS.items()},
            }
        )
        append_rows(known, rows, file)
        print(method, attack, flush=True)


def programs(
    what: str, num_classes: int
) -> Iterator[tuple[str, str, tuple[float, ...], Callable[..., Round]]]:
    """Yields method, attack, levels, and a function from a level to a round."""

    def round_of(selector: Selector, aggregator: Aggregator, faults: Sequence[Faults]):
        return ff.Round(
            ff.models.mlp(num_classes),
            selector,
            ff.solvers.SGD(0.1, 10, epochs=5),
            aggregator,
            faults=faults,
        )

    def dropping(selector: Callable[[], Selector], weights: Literal["num_examples", "uniform"]):
        mean = ff.aggregators.Mean(weights)
        return lambda level: round_of(selector(), mean, [ff.faults.Dropout(level)])

    def attacked(aggregator: Callable[[], Aggregator], attack: Any):
        def make(level):
            byzantine = [ff.faults.Byzantine(level, attack)] if attack != "none" else []
            return round_of(ff.selectors.Uniform(COHORT), aggregator(), byzantine)

        return make

    if what == "dropout":
        for name, chosen in SELECTORS.items():
            yield name, "none", DROPOUTS, dropping(*chosen)
        return
    for name, aggregator in AGGREGATORS.items():
        for attack in ("none", *ATTACKS):
            levels = BYZANTINE[:1] if attack == "none" else BYZANTINE[1:]
            yield name, attack, levels, attacked(aggregator, attack)


def load(file: Path) -> pd.DataFrame:
    """Reads the runs; ``nan`` is the name of an attack, not a missing value."""
    missing = {key: [""] for key in METRICS}
    return read_rows(file, keep_default_na=False, na_values=missing)


def write_table(what: str, file: Path) -> None:
    """Writes means with 95% intervals over seeds, in %, as Markdown next to the file of runs."""
    rows = load(file)
    columns = list(dict.fromkeys(zip(rows["attack"], rows["level"], strict=True)))
    titles = [f"{attack} {level:.0%}".removeprefix("none ") for attack, level in columns]
    lines = []
    for metric, heading in {"accuracy": "Accuracy", "worst": "Worst tenth of clients"}.items():
        cells = []
        for method in dict.fromkeys(rows["method"]):
            cells.append([method])
            for attack, level in columns:
                is_cell = (rows["attack"] == attack) & (rows["level"] == level)
                values = 100 * rows.loc[is_cell & (rows["method"] == method), metric].to_numpy()
                found = paired.interval(values)
                cells[-1].append(f"{found.mean:.1f} ± {found.high - found.mean:.1f}")
        lines += [*markdown_table([f"{heading}, %", *titles], cells), ""]
    file.with_name(f"{what}.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
