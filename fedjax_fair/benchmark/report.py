"""The report of a benchmark: page, tables and figures from its result files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.app.registry import GROUPS
from fedjax_fair.app.settings import method_parts
from fedjax_fair.benchmark import (
    cells,
    fairer,
    measures,
    plugin_methods,
    ranking,
    runner,
    statistics,
)
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.page import Contents, write_figures, write_tables
from fedjax_fair.benchmark.page import write as write_page
from fedjax_fair.benchmark.page.contents import COLUMNS, OVERALL, RANKED
from fedjax_fair.benchmark.protocol import TRACKS, VERSION
from fedjax_fair.metrics import paired

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["contents", "write"]

BASELINE = "fedavg"
CRITERION = "mean"
"""Criterion of the settings that the page shows; verdicts use all criteria."""

_REFERENCES = ("fedavg", "centralized", "local", "local_converged", "fine_tuned")


def write(folder: Path, shown: Contents | None = None) -> Path:
    """Writes ``cells.jsonl`` and ``report/`` into the folder of a benchmark; returns the page.

    Args:
        folder: Folder of a benchmark.
        shown: Its `contents`, if they were collected before.

    Raises:
        ValueError: If the folder has no benchmark, no finished method or damaged files.
    """
    import pandas as pd

    shown = contents(folder) if shown is None else shown
    target = folder / "report"
    write_tables(shown, target)
    write_figures(shown, target / "figures")
    # A shard may have written it before another one finished.
    runs = cells.gather(folder)
    cells.write(folder / "cells.jsonl", runs)
    pd.json_normalize(runs).to_csv(target / "cells.csv", index=False, float_format="%.6g")
    return write_page(shown, target)


def contents(folder: Path) -> Contents:
    """Collects what the report shows."""
    import pandas as pd

    described = runner.read_folder(folder)
    found = list(measures.finals(folder))
    if not found:
        raise ValueError(f"folder={str(folder)!r}: expected a finished method.")
    table: Any = measures.table(found)
    constants = measures.constants(found)
    track = described["track"]
    budget = TRACKS[track]
    is_variant = table["federation"].isin(budget.variants)
    parts = [table[~is_variant], table[is_variant]]
    evidence = _compare(_evidence, COLUMNS["evidence"], parts, constants)
    return Contents(
        title=f"Benchmark of fair federated learning, {track} track",
        protocol=VERSION,
        track=track,
        criterion="highest mean validation accuracy over clients",
        environment=described["environment"],
        settings=(
            f"Every method was tuned over {budget.num_settings} settings with seeds "
            f"{', '.join(map(str, budget.tuning_seeds))}. Results are of seeds "
            f"{budget.final_seeds[0]} to {budget.final_seeds[-1]}, whose test examples took no "
            "part in the selection."
        ),
        command=f"fedjax-fair benchmark {track} --resume",
        federations=pd.DataFrame([_federation(found, name, constants) for name in _names(table)]),
        results=_results(table, constants),
        ranking=_compare(_ranking, COLUMNS["ranking"], parts, constants),
        verdicts=_verdicts(evidence),
        evidence=evidence,
        curves=measures.curves(found, CRITERION),
        methods=pd.DataFrame(_methods(folder, found, track)),
        failures=tuple(runner.failures(folder)),
        overall_unit="seed SDs of fedavg",
    )


def _names(table: Any) -> list[str]:
    ran = set(table["federation"])
    return [name for name in FEDERATIONS if name in ran]


def _federation(
    found: list[measures.Final], name: str, constants: dict[tuple[str, str], float]
) -> dict[str, Any]:
    final = next(each for each in found if each.federation == name)
    federation, dataset = FEDERATIONS[name], final.dataset
    unseen = dataset.sizes.get("unseen_client", 0)
    return {
        "name": name,
        "summary": federation.summary,
        "clients": dataset.sizes["client"],
        "unseen_clients": unseen,
        "rounds": federation.config.training.rounds,
        "model": federation.config.model.name,
        "target": federation.target,
        "constant_accuracy": constants.get((name, "accuracy"), np.nan),
        "data_digest": dataset.attrs["data_digest"],
    }


def _kind(method: str) -> str:
    """Returns the group of a method in the registry; pairs are combinations."""
    if "+" in method:
        return "combination"
    if method in _REFERENCES:
        return "reference"
    return next((kind for kind, entries in GROUPS.items() if method in entries), "plugin")


def _results(table: Any, constants: dict[tuple[str, str], float]) -> pd.DataFrame:
    import pandas as pd

    chosen = table[table["criterion"] == CRITERION]
    rows = []
    for (federation, method), own in chosen.groupby(["federation", "method"], sort=False):
        diverged = own.drop_duplicates("seed").set_index("seed")["is_diverged"]
        row = {
            "federation": federation,
            "method": method,
            "kind": _kind(method),
            "model": own["model"].iloc[0],
            "seeds": own["seed"].nunique(),
            "diverged": float(diverged.mean()),
            "is_reference": method in _REFERENCES,
        }
        for measure, values in own.groupby("measure", sort=False):
            constant = constants.get((federation, measure))
            kept = values["value"].to_numpy(float)
            if constant is not None:
                kept = np.where(values["is_diverged"], constant, kept)
            mean = paired.interval(kept)
            row |= {measure: mean.mean, f"{measure}_half": mean.high - mean.mean}
        rows.append(row)
    return pd.DataFrame(rows)


def _is_compared(table: Any) -> bool:
    return BASELINE in set(table["method"]) and table["method"].nunique() > 1


def _compare(
    compare_fn: Callable[[Any, dict[tuple[str, str], float]], Any],
    columns: Iterable[str],
    tables: list[Any],
    constants: dict[tuple[str, str], float],
) -> pd.DataFrame:
    """Compares methods over the first table, and on each federated dataset of all tables."""
    import pandas as pd

    parts = []
    for place, table in enumerate(tables):
        if _is_compared(table):
            rows = compare_fn(table, constants)
            parts.append(rows if place == 0 else rows[rows["scope"] != OVERALL])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(columns))


def _ranking(table: Any, constants: dict[tuple[str, str], float]) -> pd.DataFrame:
    """Joins ranks by accuracy with the differences to the baseline, whose p are adjusted."""
    import pandas as pd

    ranked: Any = ranking.ranking(
        table, RANKED[0], CRITERION, baseline=BASELINE, constants=constants
    )
    ranked = ranked.rename(columns={"group": "letters"})[["scope", "method", "rank", "letters"]]
    ranked["letters"] = ranked["letters"].fillna("")
    for measure in RANKED:
        by_scope: Any = statistics.compare(table, measure, BASELINE, CRITERION, constants=constants)
        by_scope = by_scope.rename(columns={"federation": "scope"})
        overall: Any = statistics.overall(table, measure, BASELINE, CRITERION, constants=constants)
        overall["scope"] = OVERALL
        sides = {"difference": "difference", "low": "low", "high": "high", "p_holm": "p"}
        columns = ["scope", "method", *sides]
        both = pd.concat([by_scope[columns], overall[columns]])
        both = both.rename(columns={k: f"{measure}_{v}" for k, v in sides.items()})
        ranked = ranked.merge(both, on=["scope", "method"], how="left")
    return ranked


def _evidence(table: Any, constants: dict[tuple[str, str], float]) -> pd.DataFrame:
    """Compares all other methods with the baseline in all measures of fairness."""
    others = [name for name in dict.fromkeys(table["method"]) if name != BASELINE]
    return fairer.evidence(table, others, BASELINE, constants=constants)


def _verdicts(evidence: pd.DataFrame) -> pd.DataFrame:
    """Returns the primary verdict on each method over all federated datasets."""
    import pandas as pd

    rows = []
    judged: Any = evidence[evidence["scope"] == OVERALL]
    for row in fairer.primary(judged).to_dict("records"):
        robust = ", robust" if row["is_robust"] and row["verdict"] != "no verdict" else ""
        rows.append(
            {
                "method": row["method"],
                "verdict": f"{row['verdict']}{robust}",
                "fairer_in": row["fairer_in"],
                "accuracy_difference": row["accuracy_difference"],
                "standard_deviation_difference": -row["gain"],
                "standard_deviation_low": -row["high"],
                "standard_deviation_high": -row["low"],
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS["verdicts"]))


def _methods(folder: Path, found: list[measures.Final], track: str) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(final.method for final in found):
        parts = [plugin_methods.read(folder, part) for part in method_parts(name)]
        known = [part for part in parts if part.paper]
        tuned = {
            final.federation: ", ".join(f"{k}={v:g}" for k, v in final.settings.items())
            for final in found
            if final.method == name and final.criterion == CRITERION
        }
        rows.append(
            {
                "method": name,
                "kind": _kind(name),
                "summary": "; ".join(part.summary for part in parts) + ".",
                "paper": "; ".join(part.paper for part in known),
                "link": known[0].link if known else "",
                "tuned": tuned,
                "command": _command(track, name, parts),
            }
        )
    return rows


def _command(track: str, name: str, parts: list[plugin_methods.Description]) -> str:
    if files := [part.file for part in parts if part.file]:
        if name.isidentifier():
            of_track = "" if track == "embedded" else f" --track {track}"
            return f"fedjax-fair benchmark enter {files[0]}{of_track}"
        options = "".join(f" --plugin {file}" for file in dict.fromkeys(files))
        return f"fedjax-fair benchmark {track}{options} --methods {name} --resume"
    return f"fedjax-fair benchmark {track} --methods {name} --resume"
