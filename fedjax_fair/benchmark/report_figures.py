"""Five figures of a benchmark for a paper, as PDF and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.benchmark.federations import quantity_of
from fedjax_fair.benchmark.measure_labels import MEASURES, heading, measure_of
from fedjax_fair.benchmark.report_contents import (
    BASELINE,
    OVERALL,
    RANKED,
    Contents,
    by_method,
    unit_of,
)
from fedjax_fair.report import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "curves", "ranking", "tradeoffs", "unsurpassed", "write_figures"]

_AXES = ("standard_deviation", "accuracy")
_COLUMNS, _LEGEND_COLUMNS = 3, 4
_MARKERS = ("o", "s", "^", "D")
_LOOKS: Any = tuple(
    {"color": color, "linestyle": dash} for dash in ("-", "--") for color in drawing.COLORS
)
"""Colors and dashes of curves, as many as can be told apart."""
_LOOK_OF_OTHERS: Any = {"color": "0.8", "linestyle": "-"}


def write_figures(contents: Contents, folder: Path) -> list[Path]:
    """Writes the figures that the contents have values for.

    Args:
        contents: What the figures show.
        folder: An existing folder, or a new one.

    Returns:
        Paths of a PDF and a PNG per figure, see `FIGURES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in FIGURES.items():
        figure = draw(contents)
        if figure is None:
            continue
        for form, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
            paths.append(folder / f"{name}.{form}")
            figure.savefig(paths[-1], dpi=200, metadata=metadata)
    return paths


def ranking(contents: Contents, scope: str = OVERALL) -> Figure | None:
    """Differences to the baseline in a scope, with 95% intervals, the best on top."""
    from matplotlib.figure import Figure

    table = by_method(contents, scope)
    rows = table[(table["method"] != BASELINE)].to_dict("records")
    if not rows:
        return None
    figure = Figure(figsize=(7.0, 1.1 + 0.24 * len(rows)), layout="constrained")
    color = drawing.COLORS[0]
    for axes, name in zip(figure.subplots(1, 2, sharey=True), RANKED, strict=True):
        unit, scale = unit_of(scope, name)
        for height, row in enumerate(rows):
            point, low, high = (
                scale * float(row[f"{name}_{key}"]) for key in ("difference", "low", "high")
            )
            axes.hlines(height, low, high, color=color, linewidth=1.5)
            fill = color if row[f"{name}_verdict"] in ("better", "worse") else "white"
            axes.plot(point, height, "o", color=color, markerfacecolor=fill, markersize=5)
        axes.axvline(0, color="0.5", linewidth=1)
        drawing.style_axes(axes)
        axes.set_xlabel(f"{measure_of(scope, name).label} ({unit})", size=9)
    labels = [drawing.escape_mathtext(row["method"]) for row in rows]
    figure.axes[0].set_yticks(range(len(rows)), labels, size=8)
    figure.axes[0].set_ylim(len(rows) - 0.5, -0.5)
    note = f"Difference to {BASELINE}, 95% CI; filled: adjusted p < .05"
    figure.supxlabel(drawing.escape_mathtext(note), size=8, color="0.35")
    return figure


def tradeoffs(contents: Contents) -> Figure | None:
    """Accuracy against the standard deviation over clients, a panel per federation."""
    figure, panels = _panels(contents, 2.6)
    kinds = list(dict.fromkeys(contents.results["kind"]))
    for axes, name in panels:
        rows = contents.results[contents.results["federation"] == name]
        places, halves = [], []
        for row in rows.to_dict("records"):
            look, at = _marker(kinds.index(row["kind"])), _place(row)
            bars = _place({key: row.get(f"{key}_half", np.nan) for key in _AXES} | {
                "federation": name})  # fmt: skip
            axes.errorbar(
                *at, xerr=bars[0], yerr=bars[1], **look, markersize=5, elinewidth=0.7,
                markerfacecolor="white" if row["is_reference"] else look["color"],
            )  # fmt: skip
            places.append(at)
            halves.append(bars)
        _limit(axes, np.array(places), np.array(halves))
        labeled = unsurpassed(rows)
        shown = rows[rows["method"].isin(labeled)].to_dict("records")
        drawing.label_points(axes, {row["method"]: _place(row) for row in shown})
        axes.set_xlabel(heading(name, _AXES[0]).replace("SD", "SD over clients"), size=8)
    _label_levels(panels)
    _draw_legend(figure, dict(zip(kinds, map(_marker, range(len(kinds))), strict=True)))
    return figure


def _limit(axes: Axes, places: np.ndarray, halves: np.ndarray) -> None:
    """Shows all points, and intervals of up to the median length; a long one would hide points."""
    places = places[np.isfinite(places).all(axis=1)]
    if not len(places):
        return
    low, high = places.min(axis=0), places.max(axis=0)
    margins = 1.1 * np.median(np.nan_to_num(halves), axis=0) + 0.05 * (high - low)
    for place, (limits, set_limits) in enumerate(
        ((axes.get_xlim(), axes.set_xlim), (axes.get_ylim(), axes.set_ylim))
    ):
        lowest, highest = low[place] - margins[place], high[place] + margins[place]
        set_limits(max(limits[0], lowest), min(limits[1], highest))


def _place(row: Mapping[str, Any]) -> list[float]:
    """Returns the coordinates of a method, in the units of its federated dataset."""
    return [measure_of(row["federation"], key).scale * float(row[key]) for key in _AXES]


def _label_levels(panels: list[tuple[Axes, str]], of: str = "") -> None:
    """Labels the first vertical axis, and those with another unit."""
    labels = [f"{of}{heading(name, RANKED[0])}" for _, name in panels]
    for place, (axes, _) in enumerate(panels):
        if place == 0 or labels[place] != labels[0]:
            axes.set_ylabel(labels[place], size=8)


def unsurpassed(results: Any) -> list[str]:
    """Returns methods that no other surpasses in accuracy, or error, and in standard deviation.

    Args:
        results: Rows of one federation.
    """
    rows = results[["method", "accuracy", "standard_deviation"]].dropna().to_numpy().tolist()
    known = results["federation"].iloc[:1] if "federation" in results else ()
    if any(quantity_of(name).better == "lower" for name in known):
        rows = [(name, -error, spread) for name, error, spread in rows]
    return [
        name
        for name, accuracy, spread in rows
        if not any(other > accuracy and less < spread for _, other, less in rows)
    ]


def _marker(place: int) -> dict[str, Any]:
    """Returns the look of the markers of a kind of methods, or of a measure."""
    color = drawing.COLORS[place % len(drawing.COLORS)]
    return {"linestyle": "", "color": color, "marker": _MARKERS[place % len(_MARKERS)]}


def _draw_legend(
    figure: Figure,
    looks: Mapping[str, Any],
    columns: int = _LEGEND_COLUMNS,
    size: float = 8,
    title: str | None = None,
) -> None:
    """Draws the looks of lines by their labels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], **look, label=drawing.escape_mathtext(name)) for name, look in looks.items()
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=size,
        title=title, title_fontsize=size,
    )  # fmt: skip


def worst_off(contents: Contents) -> Figure | None:
    """Shares of clients that are worse off than with a reference, a panel per federation."""
    names = ("worse_than_local_converged", "worse_than_fine_tuned")
    return _pairs(contents, names, "clients with lower accuracy (%)")


def unseen(contents: Contents) -> Figure | None:
    """Accuracy on unseen clients without and after local steps, a panel per federation."""
    names = ("unseen_accuracy", "adapted_accuracy")
    return _pairs(contents, names, "accuracy on unseen clients (%)")


def _pairs(contents: Contents, names: tuple[str, str], label: str) -> Figure | None:
    """Draws two measures per method, joined by a line; None if no method has any."""
    have = [name for name in names if name in contents.results]
    if not have or not contents.results[have].notna().to_numpy().any():
        return None
    methods = list(dict.fromkeys(contents.results["method"]))
    figure, panels = _panels(contents, 0.9 + 0.19 * len(methods), sharey=True)
    for axes, federation in panels:
        rows = contents.results[contents.results["federation"] == federation]
        for row in rows.to_dict("records"):
            height = methods.index(row["method"])
            ends = [
                measure_of(federation, name).scale * float(row.get(name, np.nan)) for name in names
            ]
            axes.plot(ends, [height, height], color="0.75", linewidth=1, zorder=1)
            for place, end in enumerate(ends):
                axes.plot(end, height, **_marker(place), markersize=4.5)
        labels = [drawing.escape_mathtext(name) for name in methods]
        axes.set_yticks(range(len(methods)), labels, size=7)
        axes.set_ylim(len(methods) - 0.5, -0.5)
    looks = {MEASURES[name].label: _marker(place) for place, name in enumerate(names)}
    _draw_legend(figure, looks, columns=2, title=label)
    return figure


def curves(contents: Contents) -> Figure | None:
    """Validation accuracy over rounds, a panel per federation."""
    if contents.curves.empty:
        return None
    methods = _most_accurate(contents)
    looks = dict(zip(methods, _LOOKS, strict=False))
    named = looks | ({"others": _LOOK_OF_OTHERS} if len(methods) > len(looks) else {})
    figure, panels = _panels(contents, 2.6, legend_rows=-(-len(named) // _LEGEND_COLUMNS))
    for axes, federation in panels:
        table = contents.curves[contents.curves["federation"] == federation]
        for name, rows in table.groupby("method", sort=False):
            rows = rows.sort_values("round")
            look = looks.get(str(name), _LOOK_OF_OTHERS)
            scale = measure_of(federation, RANKED[0]).scale
            at = rows["round"].to_numpy(float)
            marker = "o" if len(at) == 1 else None
            axes.plot(at, scale * rows["accuracy"], **look, marker=marker, linewidth=1.2,
                      markersize=3, zorder=2 if name in looks else 1)  # fmt: skip
            if name in looks:
                axes.fill_between(at, scale * rows["low"], scale * rows["high"],
                                  color=look["color"], alpha=0.1, linewidth=0)  # fmt: skip
        axes.set_xlabel("round", size=8)
    _label_levels(panels, "validation ")
    _draw_legend(figure, named, size=7)
    return figure


def _most_accurate(contents: Contents) -> list[str]:
    """Returns the methods of the curves: the baseline, and the others by accuracy if it matters."""
    methods = list(dict.fromkeys(contents.curves["method"]))
    if len(methods) <= len(_LOOKS):
        return methods
    last: Any = contents.curves.sort_values("round").groupby(["federation", "method"])["accuracy"]
    accuracy = last.last().unstack()
    gain = accuracy.sub(accuracy.mean(axis=1), axis=0).mean()
    return sorted(methods, key=lambda name: (name != BASELINE, -gain[name]))


def _panels(
    contents: Contents, height: float, sharey: bool = False, legend_rows: int = 0
) -> tuple[Figure, list[tuple[Axes, str]]]:
    """Creates a figure with a titled panel per federation."""
    from matplotlib.figure import Figure

    names = contents.federations
    columns = min(len(names), _COLUMNS)
    rows = -(-len(names) // columns)
    of_legend = 0.6 + max(0, legend_rows - 3) * 0.16
    figure = Figure(figsize=(7.0, height * rows + of_legend), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()
    for axes, name in zip(grid, names, strict=False):
        axes.set_title(drawing.escape_mathtext(name), loc="left", size=9)
        axes.tick_params(labelsize=7)
        drawing.style_axes(axes)
    for axes in grid[len(names) :]:
        axes.set_visible(False)
    return figure, list(zip(grid, names, strict=False))


FIGURES = {
    "ranking": ranking,
    "tradeoffs": tradeoffs,
    "worst_off": worst_off,
    "curves": curves,
    "unseen": unseen,
}
"""Functions that draw a figure, or return None where there is nothing to draw, by file name."""
