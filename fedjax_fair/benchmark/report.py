"""The report of a benchmark: tables and figures from its result files alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair.benchmark import collected, published, ranking, run_cells, statistics, verdicts
from fedjax_fair.benchmark.collected import BASELINES, CRITERION, Collected, units_of
from fedjax_fair.benchmark.protocol import TRACKS
from fedjax_fair.benchmark.report_contents import BASELINE, Contents
from fedjax_fair.benchmark.report_figures import write_figures
from fedjax_fair.benchmark.report_tables import write_tables
from fedjax_fair.metrics import paired

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["contents", "write"]


def write(folder: Path, found: Collected | None = None, shown: Contents | None = None) -> Path:
    """Writes ``cells.jsonl`` and ``report/`` into the folder of a benchmark; returns the latter.

    Args:
        folder: Folder of a benchmark.
        found: Results, if they were collected before; by default those of the folder.
        shown: Their `contents`, if they were made before.

    Raises:
        ValueError: As `collected.collect`.
    """
    found = collected.collect(folder) if found is None else found
    shown = contents(found) if shown is None else shown
    target = folder / "report"
    write_tables(shown, target)
    write_figures(shown, target / "figures")
    # A shard may have written it before another one finished.
    run_cells.write(folder / "cells.jsonl", run_cells.gather(folder))
    published.write(found, target)
    return target


def contents(found: Collected) -> Contents:
    """Returns what the report shows."""
    import pandas as pd

    table: Any = statistics.replace_diverged(found.all_runs, found.constants)
    gains: Any = statistics.as_gains(table, found.constants)
    pool_errors: Any = statistics.as_gains(found.pool_errors, found.constants, column="se")
    without_spread = ranking.CHANCE_SPREAD.get(found.track, ())
    options: Any = {
        "pool_errors": pool_errors.assign(se=pool_errors["se"].abs()),
        "without_spread": without_spread,
        "at_limit": _at_limit(found),
    }
    is_variant = gains["federation"].isin(TRACKS[found.track].variants)
    whole, variants = gains[~is_variant], gains[is_variant]
    # Variants have families of their own, and no part in overall results.
    parts = [verdicts.differences(part, BASELINE, **options) for part in (whole, variants)]
    reference = found.methods.loc[found.methods["file"] == "", "method"].tolist()
    ranks = verdicts.overall(whole, BASELINE, reference, parts[0], **options)
    differences = pd.concat(filter(len, parts), ignore_index=True) if len(parts[0]) else parts[0]
    return Contents(
        federations=found.federations["federation"].tolist(),
        results=_results(found, table),
        statements=verdicts.statements(ranks, differences),
        ranking=ranks,
        differences=differences,
        undecided=verdicts.undecided(ranks, differences),
        chance=ranking.chance_shares(table, BASELINE),
        without_spread=without_spread,
        curves=found.curves,
    )


def _at_limit(found: Collected) -> set[tuple[str, str]]:
    """Returns the federations and methods whose settings are at the limit of a range."""
    settings: Any = found.settings
    return set(units_of(settings[settings["at_limit"].astype(bool)]))


def _results(found: Collected, runs: Any) -> pd.DataFrame:
    import pandas as pd

    kinds = dict(zip(found.methods["method"], found.methods["kind"], strict=True))
    at_limit, rows = _at_limit(found), []
    chosen = runs[runs["criterion"] == CRITERION]
    for (federation, method), own in chosen.groupby(["federation", "method"], sort=False):
        row = {
            "federation": federation,
            "method": method,
            "kind": kinds[method],
            "model": own["model"].iloc[0],
            "seeds": own["seed"].nunique(),
            "diverged": float(own.drop_duplicates("seed")["is_diverged"].mean()),
            "is_reference": method in BASELINES,
            "at_limit": (federation, method) in at_limit,
        }
        for measure, values in own.groupby("measure", sort=False)["value"]:
            mean = paired.interval(values.to_numpy(float))
            row |= {measure: mean.mean, f"{measure}_half": mean.high - mean.mean}
        rows.append(row)
    return pd.DataFrame(rows)
