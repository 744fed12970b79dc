"""Figures of device classes against virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedjax_fair.report import drawing
from fedjax_fair.results.datasets import by_model
from fedjax_fair.results.task_metrics import primary

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["device_curves"]


def device_curves(results: xr.Dataset, metric: str | None = None) -> Figure:
    """Plots a variable of device classes against virtual time, one panel per class.

    A curve has the value of the last evaluation until then, and ends with the shortest run.

    Args:
        results: Results of methods with a schedule.
        metric: Name of the variable; by default the mean over the clients of a class of what the
            results measure (`fedjax_fair.results.task_metrics.primary`).

    Raises:
        ValueError: If there is no such variable, or no virtual time.

    Examples:
        >>> import xarray as xr
        >>> over = ("seed", "round")
        >>> accuracy = ((*over, "device_class"), [[[0.1, 0.1], [0.9, 0.5]]])
        >>> times = (over, [[0.0, 30.0]])
        >>> results = xr.Dataset({"class_device_accuracy": accuracy, "virtual_time": times})
        >>> figure = device_curves(results)
        >>> [axes.lines[0].get_ydata()[-1].item() for axes in figure.axes]
        [90.0, 50.0]
    """
    import xarray as xr

    results = by_model(results)
    metric = metric or f"class_device_{primary(results).name}"
    values = drawing.by_method(results, metric, ("device_class", "seed", "round"))
    values = drawing.to_percent(values)
    times = drawing.by_method(results, "virtual_time", ("seed", "round"))
    figure, panels = drawing.panels(values.sizes["device_class"])
    for axes, of_class in zip(panels, values.transpose("device_class", ...), strict=True):
        curves = drawing.by_time(of_class, times)
        for (at, runs), look in zip(curves, drawing.styles(values), strict=True):
            dims = ("algorithm", "seed", "virtual_time")
            drawing.draw_curves(axes, xr.DataArray(runs[None], {"virtual_time": at}, dims), [look])
        if "device_class" in values.coords:
            name = of_class["device_class"].item()
            axes.set_title(drawing.escape_mathtext(name), size=10, loc="left")
    figure.supxlabel("Virtual time (s)", fontsize=10)
    figure.supylabel(drawing.label(values, 30), fontsize=10)
    drawing.add_legend(figure, drawing.about_seeds(values, "band"), handles=panels[0].lines)
    return figure
