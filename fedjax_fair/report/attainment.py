"""Figure of Pareto fronts: accuracy that is attained at each unfairness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.metrics import paired
from fedjax_fair.report import drawing

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["attained"]

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
    is_named = points.sizes["algorithm"] <= _MAX_NAMED
    for is_shown, label, fill in (
        (is_often, "on the front", color),
        (~is_often, "surpassed", "none"),
    ):
        own = points.isel(algorithm=np.flatnonzero(is_shown))
        place = [factor[key] * own[key].mean("seed").values for key in ("unfairness", "accuracy")]
        axes.scatter(*place, s=22, facecolors=fill, edgecolors=color, label=label)
        for x, y, name in zip(*place, own["algorithm"].values, strict=True) if is_named else ():
            text = drawing.escape_mathtext(name)
            axes.annotate(text, (x, y), (4, 3), textcoords="offset points", size=7)
    for key, set_label in (("unfairness", axes.set_xlabel), ("accuracy", axes.set_ylabel)):
        unit = ", %" if factor[key] == 100 else ""
        set_label(f"{points[key].attrs['metric']}{unit}")
    drawing.add_legend(figure, drawing.about_seeds(points["accuracy"], "band"))
    return figure
