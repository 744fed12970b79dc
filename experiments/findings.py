"""Publishes benchmarks in docs/benchmark: ``python -m experiments.findings FOLDER...``.

Each folder is one of ``fedjax-fair benchmark``. Its results, together with those published before
of other methods and datasets, are written to ``docs/benchmark/TRACK``, their ranking to
``docs/benchmark/README.md``, and what is significant to ``findings.md``.
``findings.csv`` has the numbers of ``findings.md``: differences of two methods, paired by seed,
with settings selected by mean validation accuracy. They are in points on a dataset, and in standard
deviations of FedAvg over all datasets of a track. Rows of variants with dropouts compare a method
with itself without them.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.benchmark_page import page as benchmark_page
from fedjax_fair.benchmark import collected, published, report, runner, statistics
from fedjax_fair.benchmark.collected import Collected
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import CRITERIA, TRACKS
from fedjax_fair.metrics import paired

DOCS = Path(__file__).parents[1] / "docs" / "benchmark"
BASELINE = "fedavg"
CONTRASTS = (
    *((name, "local_converged") for name in ("fedavg", "fine_tuned", "ditto", "fedrep")),
    *((name, "fine_tuned") for name in ("ditto", "fedrep")),
    *((name, BASELINE) for name in ("power_of_choice", "divfl", "unionfl", "fedadam", "scaffold")),
    *((name, BASELINE) for name in ("equitable", "q_fedavg", "tilted", "fedprox", "median")),
    *((name, BASELINE) for name in ("fedfb", "fairfed", "fedrep", "centralized")),
    *((name, "fedadam") for name in ("divfl", "power_of_choice", "scaffold+fedadam")),
    *(("scaffold", name) for name in ("power_of_choice", "equitable")),
    ("divfl+equitable", "divfl"),
)
"""Pairs of methods that are compared; those that a track lacks are left out."""
MEASURES = (
    "accuracy", "standard_deviation", "worst_10pct", "unseen_accuracy", "adapted_accuracy",
    "demographic_parity_difference", "equal_opportunity_difference",
)  # fmt: skip
GAP = "demographic_parity_difference"


def contrasts(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yields the difference of each pair, measure and dataset, and over all datasets."""
    for measure in MEASURES:
        if measure not in set(table["measure"]):
            continue
        runs = statistics.select(table, measure, CRITERIA[0])
        scales = statistics.scales_of(runs, BASELINE)
        datasets: Any = runs.index.get_level_values("federation").unique()
        for method, other in CONTRASTS:
            for scope in (statistics.OVERALL, *datasets):
                is_whole = scope == statistics.OVERALL
                part: Any = runs if is_whole else runs.loc[[scope]]
                gaps = statistics.differences(part, method, other, scales if is_whole else None)
                if gaps.size:
                    gap = paired.interval(statistics.seed_means(gaps))
                    scale = 1 if is_whole else 100
                    yield _row(scope, method, other, measure, gap, scale, gaps.shape[1])


def _row(
    scope: str, method: str, other: str, measure: str, gap: Any, scale: int = 1, datasets: int = 1
) -> dict[str, Any]:
    """Returns a row of the table, with an interval times ``scale``."""
    return {
        "scope": scope, "method": method, "other": other, "measure": measure,
        "difference": scale * gap.mean, "low": scale * gap.low, "high": scale * gap.high,
        "p": gap.p, "datasets": datasets,
    }  # fmt: skip


def agreement(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yields the rank correlation over methods of client fairness and group fairness.

    It is computed for each seed; the interval is over seeds.
    """
    from scipy import stats

    if GAP not in set(table["measure"]):
        return
    spread, gap = (
        statistics.select(table, name, CRITERIA[0]) for name in ("standard_deviation", GAP)
    )
    for scope, gaps in gap.groupby(level="federation", sort=False):
        spreads = spread.loc[gaps.index]
        results: list[Any] = [stats.spearmanr(spreads[seed], gaps[seed]) for seed in gaps.columns]
        values = [result.statistic for result in results]
        mean = paired.interval(np.array(values))
        yield _row(str(scope), "all", "", "rank correlation", mean)


def effects_of_dropouts(table: pd.DataFrame, variants: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the difference that dropouts make to a method, in points, paired by seed."""
    for measure in MEASURES:
        if measure not in set(table["measure"]):
            continue
        runs: Any = statistics.select(table, measure, CRITERIA[0])
        values = dict(list(runs.groupby(level="federation", sort=False)))
        values = {name: own.droplevel("federation") for name, own in values.items()}
        for variant in (name for name in variants if name in values):
            whole = FEDERATIONS[variant].variant_of
            if whole not in values:
                continue
            both = values[variant].index.intersection(values[whole].index, sort=False)
            for method, runs in values[variant].loc[both].iterrows():
                gap = paired.interval((runs - values[whole].loc[method]).to_numpy())
                yield _row(variant, str(method), f"{method} on {whole}", measure, gap, 100)


def findings(found: Collected) -> pd.DataFrame:
    """Returns the rows of one benchmark."""
    every: Any = statistics.replace_diverged(found.runs, found.constants)
    variants = TRACKS[found.track].variants
    table = every[~every["federation"].isin(variants)]
    rows = [
        *contrasts(table),
        *agreement(table),
        *effects_of_dropouts(every, sorted(variants)),
    ]
    return pd.DataFrame(rows).assign(track=found.track)


def publish(folder: Path) -> Collected:
    """Publishes the report of a benchmark, and its overall ranking on the page."""
    track = str(runner.read_folder(folder)["track"])
    target = DOCS / track
    others = published.read(target, track) if (target / "runs.csv").exists() else None
    found = collected.collect(folder, others)
    made = report.write(folder, found)
    benchmark_page.write(made)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(made, target)
    for page, name, table in (
        (DOCS / "README.md", "ranking", overall(target)),
        (DOCS / "findings.md", "significant", significant(target)),
    ):
        text = with_table(page.read_text("utf8"), f"{name} {target.name}", table)
        page.write_text(text, "utf8")
    return found


def overall(folder: Path) -> str:
    """Returns the table of the ranking over all datasets, from a report."""
    lines = (folder / "ranking.md").read_text("utf8").splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("|"))
    rows = lines[first:]
    return "\n".join(rows[: rows.index("")])


def significant(folder: Path) -> str:
    """Returns a table of the methods that differ from FedAvg after adjustment, by dataset."""
    table = pd.read_csv(folder / "ranking.csv")
    lines = [
        "| dataset | more accurate | less accurate | less spread | more spread |",
        "|---|---|---|---|---|",
    ]
    for scope, rows in table.groupby("scope", sort=False):
        cells = ["all" if scope == statistics.OVERALL else f"`{scope}`"]
        for measure, signs in (("accuracy", (1, -1)), ("standard_deviation", (-1, 1))):
            for sign in signs:
                is_found = (rows[f"{measure}_p"] < 0.05) & (
                    sign * rows[f"{measure}_difference"] > 0
                )
                cells.append(", ".join(f"`{name}`" for name in rows["method"][is_found]) or "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, name: str, table: str) -> str:
    """Replaces a table on a page, between two comments."""
    start, end = f"<!-- {name} -->", "<!-- end -->"
    block = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    return block.sub(lambda _: f"{start}\n{table}\n{end}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description="Publishes benchmarks in docs/benchmark.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders of benchmarks")
    folders = parser.parse_args().folders
    whole = [publish(folder) for folder in folders]
    path = DOCS / "findings.csv"
    last = {found.track: found for found in whole}  # A later one has the earlier ones.
    kept = pd.read_csv(path) if path.exists() else pd.DataFrame()
    tables: dict[Any, Any] = dict(list(kept.groupby("track"))) if len(kept) else {}
    tables |= {track: findings(found) for track, found in last.items()}
    table = pd.concat([tables[track] for track in TRACKS if track in tables], ignore_index=True)
    columns = ["track", *(name for name in table if name != "track")]
    table[columns].to_csv(path, index=False, float_format="%.5g", lineterminator="\n")
    print(f"{len(table)} rows: {path.name}")


if __name__ == "__main__":
    main()
