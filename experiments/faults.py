"""Fairness and accuracy where clients drop out, and where they are Byzantine.

    python -m experiments.faults dropout
    python -m experiments.faults byzantine

On the digits: 50 clients with three classes each, cohorts of 10, an MLP, 60 rounds, five seeds.
Runs what the file of runs lacks, then writes the table. All levels of a fault and all seeds are one
compiled program.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

import fedjax_fair as ff
from fedjax_fair.base import Aggregator, Faults, Selector
from fedjax_fair.metrics import paired
from fedjax_fair.simulate import Round

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
"""Three of ten participants may be Byzantine, for those that have to know."""
ATTACKS = ("sign_flip", "scaling", "noise", "nan", "alie", "ipm")
METRICS = {"accuracy": "accuracy_mean_clients", "worst": "accuracy_worst_10pct_class_based"}
KEYS = ["method", "attack", "level", "seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Clients that drop out or are Byzantine.")
    parser.add_argument("what", choices=("dropout", "byzantine"))
    parser.add_argument("--output", type=Path, default=Path("docs/reliability"))
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"{options.what}-runs.csv"
    if not options.only_write:
        run_missing(options.what, file)
    write_table(options.what, file)


def run_missing(what: str, file: Path) -> None:
    """Trains what the file does not hold yet, a program after the other."""
    partitioner = ff.data.classes_per_client(50, 3)
    data = ff.data.load("digits", partitioner, seed=tuple(range(SEEDS)))
    for method, attack, levels, make in programs(what, data.num_classes):
        known = load(file) if file.exists() else pd.DataFrame(columns=[*KEYS, *METRICS])
        if (method, attack) in set(zip(known["method"], known["attack"], strict=True)):
            continue
        seeds = np.tile(np.arange(SEEDS), len(levels))
        runs = ff.fit_batch(
            [round for level in levels for round in [make(level)] * SEEDS],
            ff.data.stack([data.partition(int(seed)) for seed in seeds]),
            rounds=ROUNDS,
            seeds=seeds.tolist(),
            eval_every=ROUNDS,
            train_loss=False,
            on_nonfinite="drop_client",
        )
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
        whole = pd.concat([known, rows]) if len(known) else rows
        whole.to_csv(file, index=False, float_format="%.6g")
        print(method, attack, flush=True)


def programs(
    what: str, num_classes: int
) -> Iterator[tuple[str, str, tuple[float, ...], Callable[..., Round]]]:
    """Method, attack, levels, and what makes a round of a level."""

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
    """The runs of a file. One of the attacks is called ``nan``, which is no missing name."""
    return pd.read_csv(file, keep_default_na=False, na_values={key: [""] for key in METRICS})


def write_table(what: str, file: Path) -> None:
    """Means with 95 % intervals over seeds, in %, as Markdown beside the file of runs."""
    rows = load(file)
    lines = []
    for metric, heading in {"accuracy": "Accuracy", "worst": "Worst tenth of clients"}.items():
        names = [f"{attack} {level:.0%}" for attack, level in _columns(rows)]
        titles = [name.removeprefix("none ") for name in names]
        lines += [f"| {heading}, % | " + " | ".join(titles) + " |", "|---" * (len(names) + 1) + "|"]
        for method in dict.fromkeys(rows["method"]):
            cells = []
            for attack, level in _columns(rows):
                own = (rows["attack"] == attack) & (rows["level"] == level)
                values = 100 * rows.loc[own & (rows["method"] == method), metric].to_numpy()
                found = paired.interval(values)
                cells.append(f"{found.mean:.1f} ± {found.high - found.mean:.1f}")
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    file.with_name(f"{what}.md").write_text("\n".join(lines))
    print("\n".join(lines))


def _columns(rows: pd.DataFrame) -> list[tuple[str, float]]:
    pairs = zip(rows["attack"], rows["level"], strict=True)
    return [(str(attack), float(level)) for attack, level in dict.fromkeys(pairs)]


if __name__ == "__main__":
    main()
