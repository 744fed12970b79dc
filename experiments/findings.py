"""Numbers of docs/benchmark/findings.md: ``python -m experiments.findings FOLDER...``.

Each folder is one of ``fedjax-fair benchmark``. Differences of two methods are paired by seed, with
settings selected by mean validation accuracy. They are in points on a dataset, and in standard
deviations of FedAvg over all datasets of a track. Results are written to
``docs/benchmark/findings.csv``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_fair.benchmark import fairer, measure_table, measures, runner, statistics
from fedjax_fair.benchmark.protocol import CRITERIA, TRACKS
from fedjax_fair.metrics import paired

FILE = Path(__file__).parents[1] / "docs" / "benchmark" / "findings.csv"
BASELINE = "fedavg"
CONTRASTS = (
    *((name, "local_converged") for name in ("fedavg", "fine_tuned", "ditto", "fedrep")),
    *((name, "fine_tuned") for name in ("ditto", "fedrep")),
    *((name, BASELINE) for name in ("power_of_choice", "divfl", "unionfl", "fedadam", "scaffold")),
    *((name, BASELINE) for name in ("equitable", "q_fedavg", "tilted", "fedprox", "median")),
    *((name, BASELINE) for name in ("fedfb", "fairfed", "centralized")),
    *((name, "fedadam") for name in ("divfl", "power_of_choice", "scaffold+fedadam")),
    ("divfl+equitable", "divfl"),
)
"""Pairs of methods that are compared; those that a track lacks are left out."""
MEASURES = (
    "accuracy", "standard_deviation", "worst_10pct", "unseen_accuracy", "adapted_accuracy",
    "demographic_parity_difference", "equal_opportunity_difference",
)  # fmt: skip
GAP = "demographic_parity_difference"


def contrasts(table: pd.DataFrame, constants: Any) -> Iterator[dict[str, Any]]:
    """Yields the difference of each pair, measure and dataset, and over all datasets."""
    for measure in MEASURES:
        if measure not in set(table["measure"]):
            continue
        runs = measure_table.select(table, measure, CRITERIA[0], constants)
        for method, other in CONTRASTS:
            for scope in (fairer.OVERALL, *runs.values):
                is_whole = scope == fairer.OVERALL
                part = runs if is_whole else runs._replace(values={scope: runs.values[scope]})
                found = statistics.paired_by_seed(part, method, other, BASELINE, is_scaled=is_whole)
                if found.gaps.size:
                    gap = paired.interval(statistics.seed_means(found.gaps))
                    scale = 1 if is_whole else 100
                    yield {
                        "scope": scope, "method": method, "other": other, "measure": measure,
                        "difference": scale * gap.mean, "low": scale * gap.low,
                        "high": scale * gap.high, "p": gap.p, "datasets": len(found.federations),
                    }  # fmt: skip


def agreement(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yields the rank correlation over methods of client fairness and group fairness.

    It is computed for each seed; the interval is over seeds.
    """
    from scipy import stats

    if GAP not in set(table["measure"]):
        return
    spread, gap = (
        measure_table.select(table, name, CRITERIA[0]) for name in ("standard_deviation", GAP)
    )
    for scope, gaps in gap.values.items():
        spreads = spread.values[scope].loc[gaps.index]
        results: list[Any] = [stats.spearmanr(spreads[seed], gaps[seed]) for seed in gaps.columns]
        values = [result.statistic for result in results]
        mean = paired.interval(np.array(values))
        yield {
            "scope": scope, "method": "all", "other": "", "measure": "rank correlation",
            "difference": mean.mean, "low": mean.low, "high": mean.high, "p": mean.p,
            "datasets": 1,
        }  # fmt: skip


def findings(folder: Path) -> pd.DataFrame:
    """Returns the rows of one benchmark."""
    found = list(measures.finals(folder))
    track = runner.read_folder(folder)["track"]
    table: Any = measures.table(found)
    table = table[~table["federation"].isin(TRACKS[track].variants)]
    rows = [*contrasts(table, measures.constants(found)), *agreement(table)]
    return pd.DataFrame(rows).assign(track=track)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes docs/benchmark/findings.csv.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders of benchmarks")
    folders = parser.parse_args().folders
    table = pd.concat([findings(folder) for folder in folders], ignore_index=True)
    columns = ["track", *(name for name in table if name != "track")]
    table[columns].to_csv(FILE, index=False, float_format="%.5g", lineterminator="\n")
    print(f"{len(table)} rows: {FILE.name}")


if __name__ == "__main__":
    main()
