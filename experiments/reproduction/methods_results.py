"""Tables and figures of the study of seven methods, from its files of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.common import markdown_table, read_rows, write_study
from experiments.reproduction import forests
from experiments.reproduction.methods_plan import (
    COLUMNS,
    ENDPOINTS,
    EVAL_EVERY,
    GLOBAL,
    MARGIN,
    MIN_AGREEMENT,
    ROUNDS,
    SEEDS,
)
from fedjax_fair.metrics import paired
from fedjax_fair.results.formats import format_number, format_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["chosen_rates", "figures", "summarize", "target", "values_of", "write_tables"]


def chosen_rates(tuning: Any) -> dict[tuple[str, str], float]:
    """Returns the step size with the highest mean validation accuracy, by federation and method."""
    keys = ["federation", "algorithm", "learning_rate"]
    means = tuning.groupby(keys)["validation_accuracy"].mean()
    best = means.groupby(level=keys[:2]).idxmax()
    return {(federation, method): rate for federation, method, rate in best}


def target(tuning: Any) -> float:
    """Returns the accuracy to reach: that of FedAvg in tuning, at its step size."""
    rows = tuning.query("federation == 'two classes' and algorithm == 'fedavg'")
    return rows.groupby("learning_rate")["validation_accuracy"].mean().max()


def values_of(measured: Any, federation: str, method: str, column: str, goal: float) -> np.ndarray:
    """Returns an endpoint's value of each seed: in points, or in rounds."""
    rows = measured.query("federation == @federation and algorithm == @method")
    table = rows.pivot(index="round", columns="seed", values=column or GLOBAL)
    if not column:
        is_reached = table >= goal
        # A run that never reaches the target counts with one evaluation more than there are.
        return is_reached.idxmax().where(is_reached.any(), ROUNDS + EVAL_EVERY).astype(float).values
    return 100 * table.loc[ROUNDS].values


def summarize(measured: Any, tuning: Any) -> pd.DataFrame:
    """Computes one row per endpoint, with Holm's adjustment over all of them."""
    goal, rows = target(tuning), []
    for endpoint in ENDPOINTS:
        names = [endpoint.column, endpoint.reference_column or endpoint.column]
        first, second = (
            values_of(measured, endpoint.federation, method, "" if name == "rounds" else name, goal)
            for method, name in zip((endpoint.claim, endpoint.reference), names, strict=True)
        )
        # Non-inferiority: the difference to the margin is positive.
        margin = 0.0 if endpoint.sign else MARGIN
        gap = paired.interval(first - second)
        test = paired.interval(first - second + margin)
        rows.append(
            {
                "claim": endpoint.claim,
                "federation": endpoint.federation,
                "endpoint": endpoint.text,
                "reference": endpoint.reference,
                "expected": {1: "higher", -1: "lower", 0: f"> -{MARGIN:g}"}[endpoint.sign],
                "method": first.mean(),
                "other": second.mean(),
                "low": gap.low,
                "mean": gap.mean,
                "high": gap.high,
                "p": test.p,
                "has_sign": bool(np.sign(test.mean) == (endpoint.sign or 1)),
            }
        )
    table: Any = pd.DataFrame(rows)
    table["p_holm"] = paired.holm(table["p"].tolist())
    is_significant = table["p_holm"] < 0.05
    table["verdict"] = np.select(
        [is_significant & table["has_sign"], is_significant],
        ["reproduced", "contradicted"],
        "undecided",
    )
    return pd.concat([table.drop(columns="has_sign"), _agreements(measured)], ignore_index=True)


def _agreements(measured: Any) -> pd.DataFrame:
    """Returns one row for IFCA, with the range over seeds in place of an interval."""
    values = 100 * measured.query("round == @ROUNDS")["agreement"].dropna()
    row = {
        "claim": "ifca:num_models=4",
        "federation": "rotations",
        "endpoint": "adjusted Rand index of models and rotations, range over runs",
        "reference": "-",
        "expected": f">= {100 * MIN_AGREEMENT:g}",
        "method": values.mean(),
        "low": values.min(),
        "mean": values.mean(),
        "high": values.max(),
        "verdict": "reproduced" if values.min() >= 100 * MIN_AGREEMENT else "contradicted",
    }
    return pd.DataFrame([row])


def write_tables(file: Path) -> None:
    """Writes tables of endpoints, and of means of all methods, next to the file of runs."""
    measured, tuning = read_rows(file), read_rows(file.with_name("methods-tuning.csv"))
    table = summarize(measured, tuning)
    text, drawn = markdown(table, measured, tuning), figures(table)
    write_study(file.with_name("methods-endpoints"), table, text, drawn)


def figures(table: Any) -> dict[str, Figure]:
    """Draws the differences of all endpoints with a reference, a file for each unit."""
    own = table[table["reference"] != "-"]
    named = pd.DataFrame({
        "method": own["claim"] + " \N{MINUS SIGN} " + own["reference"] + ": " + own["endpoint"],
        "difference": own["mean"], "low": own["low"], "high": own["high"], "p": own["p_holm"],
        "seeds": len(SEEDS),
    })  # fmt: skip
    in_rounds = own["endpoint"].str.startswith("rounds")
    return {
        f"methods-{units}": forests.draw({"all endpoints": rows}, "the reference", units=units)
        for units, rows in (("points", named[~in_rounds]), ("rounds", named[in_rounds]))
    }


def markdown(table: Any, measured: Any, tuning: Any) -> str:
    """Formats the tables as Markdown."""
    endpoints = [
        [
            row["claim"], row["endpoint"], row["reference"], row["expected"],
            f"{row['method']:.1f}", format_number(row["other"], ".1f"),
            f"{row['mean']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})",
            format_p(row["p_holm"]),
            row["verdict"],
        ]
        for row in table.to_dict("records")
    ]  # fmt: skip
    headings = (
        "method", "endpoint", "compared with", "expected difference", "method's value",
        "other value", "difference (95% CI)", "Holm-adjusted p", "verdict",
    )  # fmt: skip
    rates, last = chosen_rates(tuning), measured.query("round == @ROUNDS")
    means = [
        [
            federation, method, f"{rates[federation, method]:g}",
            *(_percent(rows[column]) if column in rows else "-" for column in COLUMNS),
        ]
        for (federation, method), rows in last.groupby(["federation", "algorithm"], sort=False)
    ]  # fmt: skip
    names = (column.replace("_", " ") for column in COLUMNS)
    return "\n".join(
        [
            f"Accuracies and spreads in % after {ROUNDS} rounds, target "
            f"{100 * target(tuning):.1f} %; {measured['seed'].nunique()} seeds.",
            "",
            *markdown_table(headings, endpoints),
            "",
            *markdown_table(("federated dataset", "method", "step size", *names), means),
            "",
        ]
    )


def _percent(values: Any) -> str:
    return "-" if values.isna().all() else f"{100 * values.mean():.1f}"
