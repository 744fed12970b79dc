"""The report of a benchmark: tables and figures from its result files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair.benchmark import cells, collected, published, ranking, runner, statistics, verdicts
from fedjax_fair.benchmark.collected import BASELINES, CRITERION, Collected
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import TRACKS, VERSION
from fedjax_fair.benchmark.report_contents import COLUMNS, OVERALL, RANKED, Contents
from fedjax_fair.benchmark.report_figures import write_figures
from fedjax_fair.benchmark.report_tables import write_tables
from fedjax_fair.metrics import paired

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["contents", "write"]

BASELINE = "fedavg"


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
    cells.write(folder / "cells.jsonl", cells.gather(folder))
    published.write(found, target)
    return target


def contents(found: Collected) -> Contents:
    """Returns what the report shows."""
    import pandas as pd

    table: Any = statistics.replace_diverged(found.all_runs, found.constants)
    budget = TRACKS[found.track]
    is_variant = table["federation"].isin(budget.variants)
    parts = [table[~is_variant], table[is_variant]]
    evidence = _compare(_evidence, COLUMNS["evidence"], parts)
    return Contents(
        title=f"Benchmark of fair federated learning, {found.track} track",
        protocol=VERSION,
        track=found.track,
        criterion="highest mean validation accuracy over clients",
        environment=_environment(found),
        settings=(
            f"Every method was tuned over {budget.num_settings} settings with seeds "
            f"{', '.join(map(str, budget.tuning_seeds))}. Results are of seeds "
            f"{budget.final_seeds[0]} to {budget.final_seeds[-1]}, whose test examples took no "
            "part in the selection."
        ),
        command=f"fedjax-fair benchmark {found.track} --resume",
        federations=pd.DataFrame(_federations(found)),
        results=_results(found, table),
        ranking=_compare(_ranking, COLUMNS["ranking"], parts),
        verdicts=_verdicts(evidence),
        evidence=evidence,
        curves=found.curves,
        methods=_methods(found),
        failures=tuple(runner.failures(found.failures)),
        overall_unit="seed SDs of fedavg",
    )


def _federations(found: Collected) -> list[dict[str, Any]]:
    measured = found.federations.set_index("federation").to_dict("index")
    rows = []
    for name in (name for name in FEDERATIONS if name in measured):
        federation, own = FEDERATIONS[name], measured[name]
        rows.append(
            {
                "name": name,
                "summary": federation.summary,
                "clients": own["clients"],
                "unseen_clients": own["unseen_clients"],
                "rounds": federation.config.training.rounds,
                "model": federation.config.model.name,
                "target": federation.target,
                "constant_accuracy": own["constant_accuracy"],
                "data_digest": own["data_digest"],
            }
        )
    return rows


def _methods(found: Collected) -> pd.DataFrame:
    """Returns methods with their settings by federated dataset."""
    primary: Any = found.settings[found.settings["criterion"] == CRITERION]
    tuned = {
        method: dict(zip(own["federation"], own["settings"], strict=True))
        for method, own in primary.groupby("method")
    }
    return found.methods.assign(tuned=[tuned[name] for name in found.methods["method"]])


def _environment(found: Collected) -> dict[str, Any]:
    """Returns versions and device; of several benchmarks by their number."""
    if len(found.environments) == 1:
        return found.environments[0]
    return {str(place): each for place, each in enumerate(found.environments, start=1)}


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
    import pandas as pd

    has_baseline = table.loc[table["method"] == BASELINE, "federation"]
    table = table[table["federation"].isin(has_baseline)]
    ranked: Any = ranking.ranking(table, RANKED[0], CRITERION, baseline=BASELINE)
    for measure in RANKED:
        arguments = table, measure, BASELINE, CRITERION
        overall = statistics.overall(*arguments).assign(federation=OVERALL)
        both: Any = pd.concat([statistics.compare(*arguments), overall])
        both = both.rename(columns={"federation": "scope", "p_holm": "p", "p": "unadjusted"})
        both = both.set_index(["scope", "method"])[["difference", "low", "high", "p"]]
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
