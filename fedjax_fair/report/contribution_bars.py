"""Figure of the contributions of clients."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.report import drawing
from fedjax_fair.results.intervals import student
from fedjax_fair.results.units import is_percent

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["contribution_bars"]

_LABELS = {"shapley_value": "Shapley value", "leave_one_out": "leave-one-out"}


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
    from matplotlib.figure import Figure

    metric, about = results.attrs["metric"], results["utility"].attrs
    factor = 100 if is_percent(metric, about.get("units", "1")) else 1
    panels = results if "algorithm" in results.dims else results.expand_dims("algorithm")
    num_panels, num_clients = panels.sizes["algorithm"], panels.sizes["client"]
    figure = Figure(figsize=(7.0, 0.6 + 2.4 * num_panels), layout="constrained")
    for place, axes in enumerate(figure.subplots(num_panels, 1, squeeze=False)[:, 0]):
        panel = panels.isel(algorithm=place)
        for number, (name, label) in enumerate(_LABELS.items()):
            runs = factor * panel[name].transpose("client", "seed").values
            mean, low, high = student(runs)
            at = np.arange(num_clients) + 0.4 * (number - 0.5)
            color = drawing.COLORS[number]
            axes.bar(at, mean, 0.38, color=color, label=label if place == 0 else None)
            if runs.shape[1] > 1:
                axes.vlines(at, low, high, color="0.2", linewidth=1.2)
        axes.axhline(0, color="0.5", linewidth=1)
        drawing.style_axes(axes)
        axes.grid(False, axis="x")
        names = map(drawing.escape_mathtext, panel["client"].values)
        axes.set_xticks(np.arange(num_clients), list(names))
        if "algorithm" in results.dims:
            axes.set_title(drawing.escape_mathtext(panel["algorithm"].item()), loc="left")
    name = textwrap.fill(drawing.escape_mathtext(about.get("long_name", metric)), 36)
    unit = "%" if factor == 100 else drawing.escape_mathtext(about.get("units", "1"))
    figure.supxlabel("Client", size=10)
    figure.supylabel(f"Contribution to\n{name}" + f" ({unit})" * (unit != "1"), size=10)
    drawing.add_legend(figure, drawing.about_seeds(panels["shapley_value"], "lines"))
    return figure
