"""The report of a benchmark: tables and figures from its result files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair.benchmark import collected, published, ranking, run_cells, statistics, verdicts
from fedjax_fair.benchmark.collected import BASELINES, CRITERION, Collected
from fedjax_fair.benchmark.protocol import TRACKS
from fedjax_fair.benchmark.report_contents import BASELINE, COLUMNS, OVERALL, RANKED, Contents
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
    table: Any = statistics.replace_diverged(found.all_runs, found.constants)
    gains: Any = statistics.as_gains(table, found.constants)
    is_variant = table["federation"].isin(TRACKS[found.track].variants)
    parts = [gains[~is_variant], gains[is_variant]]
    evidence = _compare(_evidence, COLUMNS["evidence"], parts)
    return Contents(
        federations=found.federations["federation"].tolist(),
        results=_results(found, table),
        ranking=_compare(_ranking, COLUMNS["ranking"], parts),
        verdicts=_verdicts(evidence),
        evidence=evidence,
        curves=found.curves,
    )


def _results(found: Collected, runs: Any) -> pd.DataFrame:
    import pandas as pd

    kinds = dict(zip(found.methods["method"], found.methods["kind"], strict=True))
    rows = []
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
        }
        for measure, values in own.groupby("measure", sort=False)["value"]:
            mean = paired.interval(values.to_numpy(float))
            row |= {measure: mean.mean, f"{measure}_half": mean.high - mean.mean}
        rows.append(row)
    return pd.DataFrame(rows)


def _compare(
    compare_fn: Callable[[Any], Any], columns: Iterable[str], tables: list[Any]
) -> pd.DataFrame:
    """Compares methods over the first table, and on each federated dataset of all tables."""
    import pandas as pd

    parts = []
    for place, table in enumerate(tables):
        if BASELINE in set(table["method"]) and table["method"].nunique() > 1:
            rows = compare_fn(table)
            parts.append(rows if place == 0 else rows[rows["scope"] != OVERALL])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(columns))


def _ranking(table: Any) -> pd.DataFrame:
    """Joins ranks by accuracy with the differences to the baseline, whose p are adjusted."""
    has_baseline = table.loc[table["method"] == BASELINE, "federation"]
    table = table[table["federation"].isin(has_baseline)]
    ranked: Any = ranking.ranking(table, RANKED[0], CRITERION, baseline=BASELINE)
    for measure in RANKED:
        both: Any = statistics.by_scope(table, measure, BASELINE, CRITERION)
        both = both.rename(columns={"p_holm": "p"}).set_index(["scope", "method"])
        both = both[["difference", "low", "high", "p"]]
        ranked = ranked.join(both.add_prefix(f"{measure}_"), on=["scope", "method"])
    return ranked


def _evidence(table: Any) -> pd.DataFrame:
    """Compares all other methods with the baseline in all measures of fairness."""
    others = [name for name in dict.fromkeys(table["method"]) if name != BASELINE]
    return verdicts.evidence(table, others, BASELINE)


def _verdicts(evidence: Any) -> pd.DataFrame:
    """Returns the primary verdict on each method over all federated datasets."""
    judged: Any = verdicts.primary(evidence[evidence["scope"] == OVERALL])
    is_robust = judged["is_robust"] & (judged["verdict"] != verdicts.NO_VERDICT)
    judged["verdict"] += is_robust.map({True: ", robust", False: ""})
    for name, column in {"difference": "gain", "low": "high", "high": "low"}.items():
        judged[f"standard_deviation_{name}"] = -judged[column]
    return judged[list(COLUMNS["verdicts"])]
