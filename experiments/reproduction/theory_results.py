"""Verdict, table and figure of part D of docs/reproduction/protocol.md.

There are 18 kinds of instances with six numbers of responses. Instances below a positive bound are
counted for each number. A kind is within the bound if every count is at most the quantile that the
protocol allows; its p value is the smallest one times the number of counts (Bonferroni). The
theorems' ``n`` is the number of items.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.common import markdown_table
from experiments.reproduction import verdicts
from experiments.reproduction.pages import replace_tables
from fedjax_fair.metrics import paired

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "judge", "levels", "table", "write"]

KIND = ["family", "size", "k"]
PAGE = "federated-maximization.md"
NAME = "protocol-theory"
"""Stem of the files, and name of the table on the page."""


def write(folder: Path, output: Path) -> str:
    """Writes table and figure, replaces the table on the page, and returns the verdict.

    Args:
        folder: Folder with the runs of part D, all of them.
        output: Folder of the results and of the page.
    """
    runs = pd.concat(pd.read_csv(file) for file in sorted(folder.glob("*.csv")))
    counted = levels(runs)
    shown = "\n".join([*table(counted), ""])
    counted.to_csv(output / f"{NAME}.csv", index=False, float_format="%.4f")
    (output / f"{NAME}.md").write_text(shown, "utf8")
    draw(counted).savefig(output / f"{NAME}.png", dpi=90)
    if (page := output / PAGE).exists():
        page.write_text(replace_tables(page.read_text("utf8"), {NAME: shown}), "utf8")
    return judge(counted)


def levels(runs: pd.DataFrame) -> pd.DataFrame:
    """Counts instances below a positive published bound, by kind and number of responses.

    Args:
        runs: Rows of ``protocol_theory.run``.

    Returns:
        One row per kind and number of responses: ``instances``, those with a ``positive`` bound and
        those ``below`` it; the ``allowed`` count (95% quantile of the binomial distribution), the
        ``p`` value of as many or more; mean and lowest values over instances; and ``margin``, the
        lowest difference of share and published bound.
    """
    from scipy import stats

    runs = runs.assign(
        positive=runs["published_bound"] > 0,
        margin=runs["share"] - runs["published_bound"],
        below=(runs["published_bound"] > 0) & (runs["share"] < runs["published_bound"]),
    )
    table = runs.groupby([*KIND, "clients", "responses"], as_index=False).agg(
        instances=("seed", "nunique"), positive=("positive", "sum"), below=("below", "sum"),
        published_bound=("published_bound", "mean"), bound=("bound", "mean"),
        share=("share", "mean"), lowest_share=("share", "min"), margin=("margin", "min"),
    )  # fmt: skip
    trials, chance = table["instances"], 1 / table["size"]
    table["allowed"] = stats.binom.ppf(0.95, trials, chance).astype(int)
    table["p"] = stats.binom.sf(table["below"] - 1, trials, chance)
    return table


def judge(counted: pd.DataFrame) -> str:
    """Returns the verdict of part D, from the counts of ``levels``."""
    positive: Any = counted[counted["positive"] > 0]
    if not (positive["responses"] < positive["clients"] / 2).any():
        return "undecided"
    kinds = positive.groupby(KIND)["p"]
    if (paired.holm(np.minimum(kinds.min() * kinds.size(), 1).tolist()) < verdicts.LEVEL).any():
        return "refuted"
    return "reproduced" if (positive["below"] <= positive["allowed"]).all() else "undecided"


def table(counted: Any) -> list[str]:
    """Returns a row per kind: its first positive bound, and the largest count below a bound."""
    headings = (
        "objective", "items", "k", "first positive bound at, responses", "bound", "lowest share",
        "lowest share less bound, all positive bounds", "instances below, at most", "allowed",
    )  # fmt: skip
    rows = []
    for (family, size, k), own in counted.groupby(KIND, sort=False):
        cells = ["none", *[""] * 4]
        if len(positive := own[own["positive"] > 0]):
            first = positive.iloc[0]
            cells = [
                f"{first['responses']:,}", f"{first['published_bound']:.3f}",
                f"{first['lowest_share']:.3f}", f"{positive['margin'].min():.3f}",
                f"{positive['below'].max()} of {first['instances']}",
            ]  # fmt: skip
        rows.append([family.replace("_", " "), size, k, *cells, own["allowed"].iloc[0]])
    return markdown_table(headings, rows)


def draw(counted: Any) -> Figure:
    """Draws measured shares and published bounds over the number of responses."""
    from matplotlib.figure import Figure

    from fedjax_fair.report.drawing import COLORS, style_axes

    families, sizes = counted["family"].unique(), sorted(counted["size"].unique())
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    panels = figure.subplots(len(families), 3, sharex=True, sharey=True, squeeze=False)
    for (family, k), own in counted.groupby(["family", "k"]):
        axes = panels[list(families).index(family)][int(k) - 1]
        for size, color in zip(sizes, COLORS, strict=False):
            rows = own[own["size"] == size]
            x = rows["responses"]
            axes.plot(x, rows["lowest_share"], "o-", color=color, ms=4, label=f"{size} items")
            bound = rows["published_bound"].where(rows["published_bound"] > 0)
            axes.plot(x, bound, "v--", color=color, ms=4)
        axes.set(xscale="log", ylim=(0, 1.03), title=f"{family.replace('_', ' ')}, k = {k}")
        style_axes(axes)
    clients = counted["clients"].iloc[0]
    figure.supxlabel(f"Expected responses of {clients:,} clients", size=10)
    figure.supylabel("Share of the optimum", size=10)
    handles, labels = panels[0][0].get_legend_handles_labels()
    handles += panels[0][0].plot([], [], "o-", color="0.4") + panels[0][0].plot(
        [], [], "v--", color="0.4"
    )
    labels += ["lowest of 20 instances", "published bound, above zero"]
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    return figure
