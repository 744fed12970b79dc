"""Publishes benchmarks in docs/benchmark: ``python -m experiments.findings FOLDER...``.

Each folder is one of ``fedjax-fair benchmark``. Its results, together with those published before
of other methods and datasets, are written to ``docs/benchmark/TRACK``; what is known, the ranking
and what is undecided to ``docs/benchmark/README.md``.
``findings.csv`` has the numbers that pages quote: differences of each method to FedAvg, and of some
pairs, on a dataset, in points, paired by block. Intervals are simultaneous over all its rows. Rows
of variants with dropouts compare a method with itself without them. Rows of tracks that are not
published stay as they are; if the number of rows has changed, publish all tracks together, so that
all intervals have the same level.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.benchmark_page import page as benchmark_page
from experiments.common import read_rows
from fedjax_fair.benchmark import collected, published, report, runner, statistics
from fedjax_fair.benchmark.collected import Collected
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import BASELINE, TRACKS
from fedjax_fair.benchmark.ranking import ORDERS
from fedjax_fair.benchmark.verdicts import FAMILIES, with_baseline

_MAX_UNDECIDED = 20
DOCS = Path(__file__).parents[1] / "docs" / "benchmark"
TABLES = {
    "known": "What is known",
    "ranking": "Ranking, all datasets",
    "orders": "Ranking at equal costs and with rounds chosen",
    "undecided": "What could not be decided",
}
"""Titles of the tables that pages show, by the name of their place."""
CONTRASTS = (
    *((name, "local_converged") for name in ("fine_tuned", "ditto", "fedrep")),
    *((name, "fine_tuned") for name in ("ditto", "fedrep")),
    *((name, "fedadam") for name in ("divfl", "power_of_choice", "scaffold+fedadam")),
    *(("scaffold", name) for name in ("power_of_choice", "equitable")),
    ("divfl+equitable", "divfl"),
)
"""Pairs of methods that are compared, besides each method with FedAvg; those that a track lacks are
left out."""
MEASURES = (
    ORDERS["accuracy"], ORDERS["spread"],
    ("unseen_accuracy", "mean"), ("adapted_accuracy", "mean"),
    *FAMILIES["F3"],
)  # fmt: skip
"""Measures that methods are compared in, with the criterion of their settings."""


def contrasts(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yields the difference of each pair of methods in each measure and dataset."""
    for measure, criterion in MEASURES:
        compared = with_baseline(table, criterion, BASELINE)
        for federation, values in _values(compared, measure, criterion).items():
            methods = [name for name in values.index if name != BASELINE]
            for method, other in (*((name, BASELINE) for name in methods), *CONTRASTS):
                if method in values.index and other in values.index:
                    gaps = values.loc[method] - values.loc[other]
                    yield _row(federation, method, other, measure, criterion, gaps)


def _values(table: pd.DataFrame, measure: str, criterion: str) -> dict[str, Any]:
    """Returns the values of a measure by federation, with a row per method."""
    if not len(statistics.rows_of(table, measure, criterion)):
        return {}
    runs: Any = statistics.select(table, measure, criterion)
    parts = runs.groupby(level="federation", sort=False)
    return {name: own.droplevel("federation") for name, own in parts}


def _row(
    federation: str, method: str, other: str, measure: str, criterion: str, gaps: Any
) -> dict[str, Any]:
    """Returns a row of the table, in points; ``gaps`` are differences by block."""
    of_blocks = statistics.estimate(100 * gaps.to_frame().T).iloc[0]
    columns = ["blocks", "difference", "se_blocks"]
    return {
        "federation": federation, "method": method, "other": other, "measure": measure,
        "criterion": criterion, **of_blocks[columns].to_dict(),
    }  # fmt: skip


def effects_of_dropouts(table: pd.DataFrame, variants: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the difference that dropouts make to a method, in points, paired by block."""
    for measure, criterion in MEASURES:
        values = _values(table, measure, criterion)
        for variant in (name for name in variants if name in values):
            whole = FEDERATIONS[variant].variant_of
            if whole not in values:
                continue
            both = values[variant].index.intersection(values[whole].index, sort=False)
            for method in both:
                gaps = values[variant].loc[method] - values[whole].loc[method]
                other = f"{method} on {whole}"
                yield _row(variant, method, other, measure, criterion, gaps)


def findings(found: Collected) -> pd.DataFrame:
    """Returns the rows of one benchmark, without intervals.

    The error by the test pool is known of differences to FedAvg.
    """
    every: Any = statistics.replace_diverged(found.runs, found.constants)
    variants = TRACKS[found.track].variants
    table = every[~every["federation"].isin(variants)]
    rows = [*contrasts(table), *effects_of_dropouts(every, sorted(variants))]
    keys = ["federation", "method", "criterion", "measure", "other"]
    errors = found.pool_errors.assign(other=BASELINE, se_pool=100 * found.pool_errors["se"])
    whole = pd.DataFrame(rows).merge(errors[[*keys, "se_pool"]], how="left", on=keys)
    return whole.assign(track=found.track)


def with_intervals(table: pd.DataFrame, num_others: int = 0) -> pd.DataFrame:
    """Adds intervals that hold for all rows simultaneously: with Bonferroni's level 1 - 0.05 / n.

    Any row of the table may be quoted, and any of ``num_others`` rows of other tracks, so that all
    of them count.
    """
    from scipy import stats

    level = statistics.LEVEL / (len(table) + num_others)
    error = np.hypot(table["se_blocks"], table["se_pool"].fillna(0))
    half = stats.t.isf(level / 2, table["blocks"] - 1) * error
    return table.assign(
        low=table["difference"] - half, high=table["difference"] + half, level=1 - level
    )


def publish(folder: Path) -> Collected:
    """Publishes the report of a benchmark, and its tables over all datasets on the page."""
    track = str(runner.read_folder(folder)["track"])
    target = DOCS / track
    others = published.read(target, track) if (target / "runs.csv").exists() else None
    found = collected.collect(folder, others)
    made = report.write(folder, found)
    benchmark_page.write(made)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(made, target)
    page = DOCS / "README.md"
    text = page.read_text("utf8")
    for name, title in TABLES.items():
        text = with_table(text, f"{name} {track}", table_of(target, title))
    page.write_text(text, "utf8")
    return found


def table_of(folder: Path, title: str) -> str:
    """Returns the table of a report whose title begins so; a dash if the report has none.

    Of what is undecided, rows over all datasets, those that the fewest blocks would decide.
    """
    lines = (folder / "report.md").read_text("utf8").splitlines()
    place = next((place for place, line in enumerate(lines) if line.startswith(title)), None)
    if place is None:
        return "-"
    rows = lines[place + 2 :]
    rows = rows[: rows.index("")] if "" in rows else rows
    if title == TABLES["undecided"]:
        overall = [row for row in rows[2:] if row.startswith("| all |")]
        rows = [*rows[:2], *sorted(overall, key=_blocks_needed)[:_MAX_UNDECIDED]]
    return "\n".join(rows)


def _blocks_needed(row: str) -> float:
    """Returns the last cell of a row of what is undecided."""
    text = row.strip("| ").rpartition("|")[2].strip().replace(",", "")
    return float(text) if text.isdecimal() else np.inf


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
    last = {found.track: found for found in whole}  # A later one has the earlier ones.
    num_rows, levels = write_findings(last, DOCS / "findings.csv")
    print(f"{num_rows} rows, intervals of level {', '.join(levels)}: findings.csv")


def write_findings(published: Mapping[str, Collected], path: Path) -> tuple[int, list[str]]:
    """Writes the rows of the published tracks, and keeps those of others as they are.

    Returns:
        The number of rows, and the levels of their intervals.
    """
    # Numbers of the file are rounded, and kept as text.
    known = read_rows(path, ["track"], dtype=str, keep_default_na=False)
    kept = known[~known["track"].isin(list(published))]
    made = pd.concat([findings(found) for found in published.values()], ignore_index=True)
    made = with_intervals(made, len(kept))
    columns = ["track", *(name for name in made if name != "track")]
    text = made[columns].to_csv(index=False, float_format="%.5g")
    rows: Any = pd.concat([pd.read_csv(StringIO(text), dtype=str, keep_default_na=False), kept])
    order = rows["track"].map(list(TRACKS).index)
    table = rows.iloc[order.argsort(kind="stable")]
    table.to_csv(path, index=False, lineterminator="\n")
    return len(table), sorted(set(table["level"]))


if __name__ == "__main__":
    main()
