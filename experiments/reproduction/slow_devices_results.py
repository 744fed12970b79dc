"""Tables and figure of the study of slow devices, from its file of runs."""

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
from fedjax_fair.results.formats import format_mean, format_p, student

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure", "summarize", "write_tables"]

REFERENCE = "fedavg"
MEASURES = ("accuracy_slow", "accuracy_fast", "late_accuracy_slow", "late_accuracy_fast")
CLAIM = "accuracy_slow"


def values_of(runs: Any, speeds: str, method: str) -> Any:
    """Returns the rows of a method by seed, accuracies in %."""
    rows = runs[(runs["speeds"] == speeds) & (runs["algorithm"] == method)].set_index("seed")
    return rows.assign(**{name: 100 * rows[name] for name in MEASURES})


def summarize(runs: Any) -> pd.DataFrame:
    """Computes differences to the reference by seed: one row per speeds, method and measure."""
    rows = []
    for speeds in runs["speeds"].unique():
        reference = values_of(runs, speeds, REFERENCE)
        for method in runs["algorithm"].unique():
            if method == REFERENCE:
                continue
            differences = values_of(runs, speeds, method)[[*MEASURES]] - reference[[*MEASURES]]
            for measure in MEASURES:
                row = {"speeds": speeds, "method": method, "measure": measure}
                row |= {"seeds": len(differences), **interval_of(differences[measure])}
                rows.append(row if measure == CLAIM else row | {"p": np.nan})
    return verdicts.add_verdicts(pd.DataFrame(rows), above="better", below="worse")


def write_tables(file: Path) -> None:
    """Writes the tables as CSV and Markdown, and the figure, next to the file of runs."""
    runs = read_rows(file)
    table, stem = summarize(runs), file.with_name("slow-devices-tables")
    write_study(stem, table, markdown(runs, table), {"slow-devices": figure(runs)})


def markdown(runs: Any, table: Any) -> str:
    """Formats the tables of both assignments of speeds."""
    lines = []
    for speeds, differences in table.groupby("speeds", sort=False):
        seeds = differences["seeds"].iloc[0]
        lines += [f"{speeds}, means over {seeds} seeds, accuracies in % with 95% intervals:", ""]
        lines += [*_levels(runs, speeds), ""]
        lines += [f"{speeds}, differences to {REFERENCE} in points, {seeds} seeds:", ""]
        lines += [*_differences(differences), ""]
    return "\n".join(lines)


def _levels(runs: Any, speeds: str) -> list[str]:
    headings = (
        "method", "step size", "own setting", "slow", "fast", "slow, 300 to 600 s",
        "fast, 300 to 600 s", "results of slow (%)", "weight of slow (%)",
        "staleness slow / fast", "results", "client hours",
    )  # fmt: skip
    cells = []
    for method in runs["algorithm"].unique():
        rows = values_of(runs, speeds, method)
        mean = rows.mean(numeric_only=True)
        own = "" if np.isnan(mean["own"]) else f"{mean['own']:g}"
        shares = [f"{100 * mean[name]:.0f}" for name in ("share_slow", "weight_slow")]
        staleness = f"{mean['staleness_slow']:.1f} / {mean['staleness_fast']:.1f}"
        costs = [f"{mean['results']:,.0f}", f"{mean['client_seconds'] / 3600:.2f}"]
        accuracies = [format_mean(rows[name].to_numpy()) for name in MEASURES]
        cells.append(
            [method, f"{mean['learning_rate']:g}", own, *accuracies, *shares, staleness, *costs]
        )
    return markdown_table(headings, cells)


def _differences(table: Any) -> list[str]:
    headings = (
        "method", "slow", "p (Holm)", "verdict", "fast", "slow, 300 to 600 s",
        "fast, 300 to 600 s",
    )  # fmt: skip
    cells = []
    for method, group in table.groupby("method", sort=False):
        rows = group.set_index("measure")
        slow, fast, *late = (format_interval(rows.loc[name], "+.1f") for name in MEASURES)
        claim = rows.loc[CLAIM]
        cells.append([method, slow, format_p(claim["p_holm"]), claim["verdict"], fast, *late])
    return markdown_table(headings, cells)


def figure(runs: Any) -> Figure:
    """Draws the accuracies of slow and fast devices of all methods, with 95% intervals."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9.5, 3.6), layout="constrained")
    methods, titles = list(runs["algorithm"].unique()), list(runs["speeds"].unique())
    panels = drawing.subplots(1, len(titles), sharex=True, sharey=True, squeeze=False)[0]
    heights = np.arange(len(methods))[::-1]
    for panel, speeds in zip(panels, titles, strict=True):
        for kind, color, marker in (("slow", "C1", "o"), ("fast", "C0", "s")):
            values = [
                values_of(runs, speeds, method)[f"accuracy_{kind}"].to_numpy() for method in methods
            ]
            mean, low, high = student(values)
            panel.errorbar(
                mean, heights, xerr=[mean - low, high - mean], fmt=marker, color=color,
                capsize=2, label=f"{kind} devices",
            )  # fmt: skip
        panel.set_title(f"Speeds {speeds} {'with' if speeds == 'correlated' else 'of'} labels")
        panel.set_xlabel("accuracy after 600 virtual seconds (%)")
        panel.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(heights, methods)
    panels[-1].legend(loc="lower left")
    return drawing
