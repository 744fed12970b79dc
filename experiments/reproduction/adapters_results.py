"""Tables and figure of the study of adapters, from its files of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.common import (
    format_interval,
    interval_of,
    markdown_table,
    read_rows,
    write_study,
)
from experiments.reproduction import verdicts
from experiments.reproduction.adapters_plan import ALL, FEDERATIONS, RANKS, ROUNDS
from fedjax_fair.results.formats import format_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["chosen_rates", "figure", "levels", "summarize", "write_tables"]

MEASURES = {
    "accuracy": "mean accuracy",
    "worst": "worst 10% of clients",
    "spread": "standard deviation over clients",
    "dissimilarity": "dissimilarity",
    "gap": "near less far",
}
AT = ("equal rounds", "equal bytes", "equal mean")
"""Moments of full training that a method after its last round is compared with."""


def chosen_rates(tuning: Any, federation: str) -> dict[tuple[str, float], int]:
    """Returns the rounds to train for each method and step size.

    A method has the step size with the highest validation accuracy after the last round. Full
    training has others in addition, the best after the rounds in which it sends as many bytes as
    another method in all of its rounds.
    """
    methods = FEDERATIONS[federation].methods
    rates = {(method, best_rate(tuning, federation, method)): ROUNDS for method in methods}
    for method in methods:
        if rounds := rounds_of_bytes(tuning, federation, method):
            key = ALL, best_rate(tuning, federation, ALL, rounds)
            rates[key] = max(rounds, rates.get(key, 0))
    return rates


def best_rate(tuning: Any, federation: str, method: str, rounds: int = ROUNDS) -> float:
    """Returns the step size with the highest mean validation accuracy after some rounds."""
    rows = _rows(tuning, federation, method).query("round == @rounds")
    return float(rows.groupby("learning_rate")["accuracy"].mean().idxmax())


def rounds_of_bytes(runs: Any, federation: str, method: str) -> int:
    """Returns the last evaluation of full training before it sends more than a method in all.

    It is 0 for full training itself, and for methods that send nothing.
    """
    total = _rows(runs, federation, method).query("round == @ROUNDS")["bytes_up"].iloc[0]
    full = _rows(runs, federation, ALL).groupby("round")["bytes_up"].first()
    return 0 if method == ALL else int(full.index[full <= total].max())


def _rows(runs: Any, federation: str, method: str) -> Any:
    return runs[(runs["federation"] == federation) & (runs["algorithm"] == method)]


def values_of(runs: Any, federation: str, method: str, rate: float, rounds: Any = ROUNDS) -> Any:
    """Returns the measures of each seed after some rounds, in % and points, by seed."""
    rows = _rows(runs, federation, method)
    rows = rows[rows["learning_rate"] == rate].assign(gap=lambda rows: rows["near"] - rows["far"])
    wanted = rounds if isinstance(rounds, int) else rows["seed"].map(rounds)
    return 100 * rows[rows["round"] == wanted].set_index("seed")[[*MEASURES, "near", "far"]]


def nearest_rounds(runs: Any, federation: str, rate: float, accuracy: Any) -> Any:
    """Returns, by seed, the evaluation of full training with the nearest mean accuracy, in %."""
    rows = _rows(runs, federation, ALL)
    table = 100 * rows[rows["learning_rate"] == rate].pivot(
        index="round", columns="seed", values="accuracy"
    )
    return (table - accuracy).abs().idxmin()


def trained(runs: Any) -> list[str]:
    """Returns the federated datasets that have runs."""
    return [name for name in FEDERATIONS if (runs["federation"] == name).any()]


def summarize(runs: Any, tuning: Any) -> pd.DataFrame:
    """Computes one row per method, moment and measure: differences to full training by seed."""
    rows = []
    for federation in trained(runs):
        rate_of_all = best_rate(tuning, federation, ALL)
        for method in FEDERATIONS[federation].methods:
            rounds = rounds_of_bytes(tuning, federation, method)
            if method == ALL:
                continue
            own = values_of(runs, federation, method, best_rate(tuning, federation, method))
            nearest = nearest_rounds(runs, federation, rate_of_all, own["accuracy"])
            others = {
                "equal rounds": (rate_of_all, ROUNDS),
                "equal bytes": (best_rate(tuning, federation, ALL, rounds), rounds),
                "equal mean": (rate_of_all, nearest),
            }
            for at, (rate, when) in others.items():
                if at == "equal bytes" and not rounds:
                    continue
                differences = own - values_of(runs, federation, ALL, rate, when)
                for measure in MEASURES:
                    is_claim = method in RANKS and at == "equal rounds" and measure == "spread"
                    rows.append(
                        {
                            "federation": federation,
                            "method": method,
                            "at": at,
                            "measure": measure,
                            "rounds": np.mean(when),
                            "seeds": len(differences),
                            **interval_of(differences[measure]),
                        }
                        | ({} if is_claim else {"p": np.nan})
                    )
    return verdicts.add_verdicts(pd.DataFrame(rows), above="wider", below="narrower")


def levels(runs: Any, tuning: Any, costs: Any) -> pd.DataFrame:
    """Computes means over seeds: of the base before training, and of methods after all rounds."""
    rows = []
    for federation in trained(runs):
        base = values_of(runs, federation, ALL, best_rate(tuning, federation, ALL), 0)
        rows.append({"federation": federation, "method": "base"} | base.mean().to_dict())
        for method in FEDERATIONS[federation].methods:
            rate = best_rate(tuning, federation, method)
            means = values_of(runs, federation, method, rate).mean().to_dict()
            cost = _rows(costs, federation, method).iloc[0].to_dict()
            rows.append({**cost, "federation": federation, "method": method, "rate": rate} | means)
    return pd.DataFrame(rows).drop(columns="algorithm")


def write_tables(file: Path) -> None:
    """Writes the tables as CSV and Markdown, and the figure, next to the file of runs."""
    runs, tuning, costs = (
        read_rows(file.with_name(f"adapters-{part}.csv")) for part in ("runs", "tuning", "costs")
    )
    table, means = summarize(runs, tuning), levels(runs, tuning, costs)
    figures = {"adapters": figure(runs, tuning, table)}
    write_study(file.with_name("adapters-tables"), table, markdown(table, means), figures)


def markdown(table: Any, means: Any) -> str:
    """Formats the tables of both federated datasets."""
    lines = []
    measures = [*MEASURES, "near", "far"]
    headings = (
        "method", "step size", "trained", "sent per client and round, kB", "operations, G",
        *(MEASURES.get(name, name) for name in measures),
    )  # fmt: skip
    for federation, rows in means.groupby("federation", sort=False):
        cells = [
            [row["method"], *_costs(row), *(f"{row[name]:.1f}" for name in measures)]
            for row in rows.to_dict("records")
        ]
        lines += [f"{federation}, means over seeds after {ROUNDS} rounds, in %:", ""]
        lines += [*markdown_table(headings, cells), ""]
    headings = ("method", "compared with full training at", *MEASURES.values(), "p (Holm)")
    for federation, rows in table.groupby("federation", sort=False):
        cells = []
        for (method, at), group in rows.groupby(["method", "at"], sort=False):
            by_measure = group.set_index("measure")
            parts = [format_interval(by_measure.loc[name], "+.2f") for name in MEASURES]
            p = by_measure.loc["spread", "p_holm"]
            shown = at if at == "equal rounds" else f"{at}, round {group['rounds'].iloc[0]:.3g}"
            cells.append([method, shown, *parts, "" if np.isnan(p) else format_p(p)])
        seeds = rows["seeds"].iloc[0]
        lines += [f"{federation}, differences to full training in points, {seeds} seeds:", ""]
        lines += [*markdown_table(headings, cells), ""]
    return "\n".join(lines)


def _costs(row: dict[str, Any]) -> list[str]:
    if np.isnan(row["parameters"]):
        return [""] * 4
    return [
        f"{row['rate']:g}", f"{row['parameters']:,.0f}", f"{row['bytes'] / 1000:.1f}",
        f"{row['operations'] / 1e9:.2f}",
    ]  # fmt: skip


def figure(runs: Any, tuning: Any, table: Any) -> Figure:
    """Draws accuracies against bytes, and differences in spread to full training."""
    from matplotlib.figure import Figure

    federations = trained(runs)
    drawn = Figure(figsize=(11, 3.2 * len(federations)), layout="constrained")
    axes = drawn.subplots(len(federations), 3, squeeze=False)
    shown = [ALL, "head", *RANKS]
    for row, federation in zip(axes, federations, strict=True):
        for method in shown:
            rate = best_rate(tuning, federation, method)
            own = _rows(runs, federation, method)
            own = own[(own["learning_rate"] == rate) & (own["round"] > 0)]
            means = own.groupby("round")[["bytes_up", "accuracy", "worst"]].mean()
            for axis, measure in zip(row, ("accuracy", "worst"), strict=False):
                axis.plot(means["bytes_up"] / 1e6, 100 * means[measure], label=method)
                axis.set(xscale="log", xlabel="MB sent by clients", title=MEASURES[measure])
        row[0].set_ylabel(f"{federation}: accuracy, %")
        spread = table.query("federation == @federation and measure == 'spread'")
        for shift, at in zip((-0.2, 0, 0.2), AT, strict=True):
            rows = spread[spread["at"] == at].set_index("method").loc[shown[1:]]
            errors = [rows["difference"] - rows["low"], rows["high"] - rows["difference"]]
            row[2].errorbar(np.arange(len(rows)) + shift, rows["difference"], errors, fmt="o",
                            capsize=3, label=at)  # fmt: skip
        row[2].axhline(0, color="0.6", linewidth=0.8)
        row[2].set(
            title="spread less that of full training",
            ylabel="points (95% CI)",
            xticks=range(len(shown) - 1),
        )
        row[2].set_xticklabels(shown[1:])
    axes[0, 0].legend(fontsize="small")
    axes[0, 2].legend(fontsize="small")
    return drawn
