"""Figures of ground-truth groups: values per group, agreement with clusters, embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.report import drawing
from fedjax_fair.results.task_metrics import primary

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

__all__ = ["cluster_agreement", "embedding", "group_curves"]

_MARKERS = "os^Dv<>P"


def group_curves(results: xr.Dataset, metric: str | None = None) -> Figure:
    """Plots a variable over seeds, rounds and ground-truth groups, one panel per method.

    Args:
        results: Results of data with ground-truth groups.
        metric: Name of the variable; by default the mean over the clients of a group of what the
            results measure (`fedjax_fair.results.task_metrics.primary`).

    Raises:
        ValueError: If ``metric`` is not such a variable.

    Examples:
        >>> import xarray as xr
        >>> accuracy = np.array([[[0.1, 0.1], [0.9, 0.5]]])
        >>> dims = ("seed", "round", "planted_group")
        >>> figure = group_curves(xr.Dataset({"group_accuracy": (dims, accuracy)}))
        >>> [line.get_ydata()[-1].item() for line in figure.axes[0].lines]
        [90.0, 50.0]
    """
    metric = metric or primary(results).group
    values = drawing.by_method(results, metric, ("planted_group", "seed", "round"))
    values = drawing.after_first_difference(drawing.to_percent(values))
    figure, panels = drawing.panels(values.sizes["algorithm"])
    looks = [
        {"color": drawing.COLORS[group % len(drawing.COLORS)], "label": f"group {group}"}
        for group in range(values.sizes["planted_group"])
    ]
    for axes, method in zip(panels, values, strict=True):
        drawing.draw_curves(axes, method, looks)
        axes.set_title(drawing.escape_mathtext(method["algorithm"].item()), size=10, loc="left")
    figure.supxlabel("Communication round", fontsize=10)
    figure.supylabel(drawing.label(values, 30), fontsize=10)
    drawn = [panel.lines for panel in panels if panel.lines]
    drawing.add_legend(figure, handles=drawn[0] if drawn else [])
    return figure


def cluster_agreement(results: xr.Dataset, measure: str = "nmi") -> Figure:
    """Plots the agreement of clusters with ground-truth groups, mean over the rounds so far.

    Args:
        results: Results with a method that clusters clients.
        measure: ``"nmi"`` or ``"ari"``.

    Raises:
        ValueError: If no method has it.

    Examples:
        >>> import xarray as xr
        >>> values = np.array([[0.0, 1.0]])
        >>> results = xr.Dataset({"aggregation_nmi": (("seed", "training_round"), values)})
        >>> cluster_agreement(results).axes[0].lines[0].get_ydata().tolist()
        [0.0, 0.5]
    """
    values = drawing.mean_so_far(results, f"aggregation_{measure}")
    figure, axes = drawing.single_axes(3.4)
    drawing.draw_curves(axes, values, drawing.styles(values))
    axes.set(
        xlabel="Communication round",
        ylabel=f"{measure.upper()}, mean over rounds so far",
        ylim=(-0.03, 1.03),
    )
    drawing.add_legend(figure)
    return figure


def embedding(points: ArrayLike, clusters: ArrayLike, groups: ArrayLike | None = None) -> Figure:
    """Plots clients in two coordinates, by cluster (color) and ground-truth group (marker).

    Args:
        points: Coordinates, ``[clients, 2 or more]``, of which the first two are shown.
        clusters: Cluster of each client.
        groups: Ground-truth group of each client.

    Raises:
        ValueError: If the lengths differ or there are fewer than two coordinates.

    Examples:
        >>> figure = embedding([[0.0, 1.0], [1.0, 0.0]], clusters=[0, 1], groups=[0, 0])
        >>> len(figure.axes[0].collections)
        2
    """
    points, labels = np.asarray(points, float), np.asarray(clusters)
    truth = np.zeros_like(labels) if groups is None else np.asarray(groups)
    if points.ndim != 2 or points.shape[1] < 2 or not len(points) == len(labels) == len(truth):
        raise ValueError(
            f"points of shape {points.shape}, {len(labels)} clusters, {len(truth)} groups: "
            "expected two or more coordinates, one cluster and one group for each client; pass "
            "arrays of equal length."
        )
    figure, axes = drawing.single_axes(4.0)
    for cluster, group in sorted(set(zip(labels.tolist(), truth.tolist(), strict=True))):
        members = (labels == cluster) & (truth == group)
        axes.scatter(
            *points[members, :2].T,
            color=drawing.COLORS[cluster % len(drawing.COLORS)],
            marker=_MARKERS[group % len(_MARKERS)],
            s=60,
            alpha=0.8,
            label=f"cluster {cluster}" + ("" if groups is None else f", group {group}"),
        )
    drawing.style_axes(axes)
    axes.set(xlabel="First coordinate", ylabel="Second coordinate")
    drawing.add_legend(figure)
    return figure
