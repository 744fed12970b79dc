"""Figures of analyses: Pareto fronts, contributions and bias of clients."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.metrics import paired
from fedjax_fair.report import drawing
from fedjax_fair.results.formats import student
from fedjax_fair.results.task_metrics import is_percent

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["attained", "bias_gaps", "contribution_bars", "threshold_gaps"]

_MAX_NAMED = 20
"""Points up to which each has its name; the settings of a sweep are more."""


def attained(points: xr.Dataset) -> Figure:
    """Plots methods or settings, and the best accuracy with at most some unfairness.

    The line is the mean over seeds with its 95% interval, where all seeds attain an accuracy, and
    dotted where some do. Filled points are on the front of half of the seeds or more.

    Args:
        points: Result of `fedjax_fair.analysis.front`.

    Examples:
        >>> import xarray as xr
        >>> from fedjax_fair.analysis import front
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "accuracy_mean_clients": (dims, [[[0.84]], [[0.83]]]),
        ...         "client_dissimilarity": (dims, [[[0.18]], [[0.1]]]),
        ...     },
        ...     {"algorithm": ["fedavg", "ditto"], "seed": [0]},
        ... )
        >>> attained(front(runs)).axes[0].get_xlabel()
        'client_dissimilarity, %'
    """
    figure, axes = drawing.single_axes(3.8)
    factor = {name: points[name].attrs["scale"] for name in ("accuracy", "unfairness")}
    levels = factor["unfairness"] * points["level"].values
    best = factor["accuracy"] * points["attainment"].transpose("level", "seed").values
    is_complete = np.isfinite(best).all(axis=1)
    ends = [paired.interval(row) for row in best]
    means = np.array([np.nanmean(row) for row in best])
    low, high = (np.array([getattr(end, side) for end in ends]) for side in ("low", "high"))
    color = drawing.COLORS[0]
    shown = np.where(is_complete, means, np.nan)
    axes.step(levels, means, where="post", color=color, linestyle=":", linewidth=1)
    axes.step(levels, shown, where="post", color=color, label="attained")
    axes.fill_between(levels, low, high, step="post", color=color, alpha=0.2, where=is_complete)
    is_often = points["share"].values >= 0.5
    places: dict[str, tuple[float, float]] = {}
    for is_shown, label, fill in (
        (is_often, "on the front", color),
        (~is_often, "surpassed", "none"),
    ):
        own = points.isel(algorithm=np.flatnonzero(is_shown))
        place = [factor[key] * own[key].mean("seed").values for key in ("unfairness", "accuracy")]
        axes.scatter(*place, s=22, facecolors=fill, edgecolors=color, label=label)
        places |= dict(zip(own["algorithm"].values.tolist(), zip(*place, strict=True), strict=True))
    if len(places) <= _MAX_NAMED:
        drawing.label_points(axes, places)
    for key, set_label in (("unfairness", axes.set_xlabel), ("accuracy", axes.set_ylabel)):
        unit = ", %" if factor[key] == 100 else ""
        set_label(f"{points[key].attrs['metric']}{unit}")
    drawing.add_legend(figure, drawing.about_seeds(points["accuracy"], "band"))
    return figure


def bias_gaps(table: pd.DataFrame) -> Figure:
    """Plots the gap in base rates of each client, with the requested one.

    Lines are two standard deviations over random examples, so that a line across zero may be of a
    client without bias.

    Args:
        table: Result of `fedjax_fair.data.describe_bias`.

    Examples:
        >>> import pandas as pd
        >>> row = {"client": "a", "feature": "sex", "value": "M", "gap": 0.1, "gap_sd": 0.02}
        >>> bias_gaps(pd.DataFrame([row])).axes[0].get_title(loc="left")
        'sex'
    """
    features = list(dict.fromkeys(table["feature"]))
    figure, panels = _panels(len(features), 2.2)
    for axes, feature in zip(panels, features, strict=True):
        own = table[table["feature"] == feature]
        clients, values = (list(dict.fromkeys(own[name])) for name in ("client", "value"))
        width = 0.7 / len(values)
        for number, value in enumerate(values):
            rows = own[own["value"] == value]
            at = np.array([clients.index(each) for each in rows["client"]])
            at = at + width * (number - (len(values) - 1) / 2)
            color = drawing.COLORS[number % len(drawing.COLORS)]
            gap, ends = 100 * rows["gap"], 200 * rows["gap_sd"]
            label = f"{drawing.escape_mathtext(value)} less other values"
            axes.plot(at, gap, "o", color=color, markersize=5, label=label)
            axes.vlines(at, gap - ends, gap + ends, color=color, linewidth=1.2)
            if "requested_gap" in rows:
                requested = 100 * rows["requested_gap"]
                label = "requested" if number == 0 else ""
                ends = at - width / 2, at + width / 2
                axes.hlines(requested, *ends, color="0.2", linewidth=1.5, label=label)
        _style_clients(axes, clients, feature)
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.supxlabel("Client", size=10)
    figure.supylabel("Gap in base rates (points)", size=10)
    return figure


def contribution_bars(results: xr.Dataset) -> Figure:
    """Plots the Shapley value and leave-one-out of every client, with 95% intervals over seeds.

    Args:
        results: The ``dataset`` of `fedjax_fair.analysis.Contributions`; or several along
            ``algorithm``, which have a panel each.

    Examples:
        >>> import xarray as xr
        >>> values = (("seed", "client"), [[0.1, 0.2, 0.3]])
        >>> results = xr.Dataset(
        ...     {"shapley_value": values, "leave_one_out": values, "utility": 0.0},
        ...     attrs={"metric": "accuracy_mean_examples"},
        ... )
        >>> heights = [bar.get_height() for bar in contribution_bars(results).axes[0].patches]
        >>> [round(height) for height in heights]
        [10, 20, 30, 10, 20, 30]
    """
    metric, about = results.attrs["metric"], results["utility"].attrs
    factor = 100 if is_percent(metric, about.get("units", "1")) else 1
    panels = results if "algorithm" in results.dims else results.expand_dims("algorithm")
    figure, rows = _panels(panels.sizes["algorithm"], 2.4)
    for place, axes in enumerate(rows):
        panel = panels.isel(algorithm=place)
        labels = {"shapley_value": "Shapley value", "leave_one_out": "leave-one-out"}
        for number, (name, label) in enumerate(labels.items()):
            runs = factor * panel[name].transpose("client", "seed").values
            mean, low, high = student(runs)
            at = np.arange(len(runs)) + 0.4 * (number - 0.5)
            color = drawing.COLORS[number]
            axes.bar(at, mean, 0.38, color=color, label=label if place == 0 else None)
            if runs.shape[1] > 1:
                axes.vlines(at, low, high, color="0.2", linewidth=1.2)
        title = panel["algorithm"].item() if "algorithm" in results.dims else ""
        _style_clients(axes, panel["client"].values, title)
    name = textwrap.fill(drawing.escape_mathtext(about.get("long_name", metric)), 36)
    unit = "%" if factor == 100 else drawing.escape_mathtext(about.get("units", "1"))
    figure.supxlabel("Client", size=10)
    figure.supylabel(f"Contribution to\n{name}" + f" ({unit})" * (unit != "1"), size=10)
    drawing.add_legend(figure, drawing.about_seeds(panels["shapley_value"], "lines"))
    return figure


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Creates a figure with a panel in each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 0.6 + height * count), layout="constrained")
    return figure, figure.subplots(count, 1, squeeze=False)[:, 0].tolist()


def _style_clients(axes: Axes, clients: Iterable[object], title: object) -> None:
    """Adds the names of clients and a line at zero."""
    axes.axhline(0, color="0.5", linewidth=1)
    drawing.style_axes(axes)
    axes.grid(False, axis="x")
    names = [drawing.escape_mathtext(each) for each in clients]
    axes.set_xticks(range(len(names)), names)
    axes.set_title(drawing.escape_mathtext(title), loc="left")


def threshold_gaps(results: xr.Dataset) -> Figure:
    """Plots the gap of all people and of each client on test examples, by model and thresholds.

    Values are means over seeds. Dashed bounds hold on validation examples. The gap that finite
    groups with equal rates would have is a gray bar, of clients its mean over clients.

    Args:
        results: The ``dataset`` of `fedjax_fair.analysis.PostProcessed`.

    Examples:
        >>> import xarray as xr
        >>> dims, floor = ("seed", "part", "predictions"), (("seed", "part"), [[0.02]])
        >>> found = xr.Dataset(
        ...     {
        ...         "global_gap": (dims, [[[0.3, 0.1]]]),
        ...         "client_gap": ((*dims, "client"), [[[[0.4, 0.2], [0.1, 0.1]]]]),
        ...         "global_gap_floor": floor,
        ...         "local_gap_mean_floor": floor,
        ...     },
        ...     {"part": ["test"], "predictions": ["model", "thresholds"]},
        ...     {"constraint": "demographic_parity", "data": "people"}
        ...     | {"max_global_gap": 0.05, "max_local_gap": float("inf")},
        ... )
        >>> threshold_gaps(found).axes[0].lines[0].get_ydata().round().tolist()
        [30.0, 40.0, 20.0]
    """
    figure, axes = drawing.single_axes(3.2, results)
    tested = 100 * results.sel(part="test", drop=True).mean("seed")
    number = results.sizes["client"]
    at = np.array([0, *np.arange(number) + 1.5])  # All people are apart from clients.
    ends = at - 0.35, at + 0.35
    floors = [tested["global_gap_floor"].item(), *[tested["local_gap_mean_floor"].item()] * number]
    axes.bar(at, floors, 0.7, color="0.88", label="noise floor")
    for place, (kind, look) in enumerate({"model": "o", "thresholds": "D"}.items()):
        own = tested.sel(predictions=kind)
        gaps = [own["global_gap"].item(), *own["client_gap"].values]
        axes.plot(at, gaps, look, color=drawing.COLORS[place], markersize=5, label=kind)
    for kind, chosen in (("global", slice(1)), ("local", slice(1, None))):
        bound = results.attrs[f"max_{kind}_gap"]
        if np.isfinite(bound):
            low, high = (end[chosen] for end in ends)
            levels = np.full(len(low), 100 * bound)
            axes.hlines(levels, low, high, "0.2", "--", label=f"{kind} bound")
    names = [drawing.escape_mathtext(name) for name in results["client"].values]
    axes.set_xticks(at, ["all people", *names])
    drawing.style_axes(axes)
    axes.grid(False, axis="x")
    criterion = results.attrs["constraint"].replace("_", " ")
    axes.set(xlabel="Client", ylabel=f"Gap of test examples in\n{criterion} (points)")
    axes.set_ylim(bottom=0)
    drawing.add_legend(figure, drawing.about_seeds(results))
    return figure
