"""Figures about groups of clients: how each is served, whether they are found, where they lie."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.report.drawing import (
    COLORS,
    band,
    by_method,
    escape_mathtext,
    first_difference,
    label,
    style_axes,
    styles,
    to_percent,
)

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

__all__ = ["cluster_agreement", "embedding", "group_curves"]

_MARKERS = "os^Dv<>P"


def group_curves(results: xr.Dataset, metric: str = "group_accuracy") -> Figure:
    """Draws how each planted group is served over rounds, one panel a method.

    Args:
        results: Results of one or more methods on a federation with planted groups.
        metric: A variable over seeds, rounds and groups.

    Returns:
        A figure: means over seeds as lines and, with more than one seed, their 95 % intervals as
        bands. Groups have the same color in every panel.

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
    from matplotlib.figure import Figure

    values = by_method(results, metric, ("seed", "round", "planted_group"))
    drawn = first_difference(to_percent(values))
    names = [str(name) for name in values["algorithm"].values]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.0 * columns + 1.0, 2.4 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        own = drawn.sel(algorithm=name).dropna("round", how="all")
        for group in range(values.sizes["planted_group"]):
            curve = own.isel(planted_group=group).transpose("round", "seed")
            rounds, color = curve["round"].values, COLORS[group % len(COLORS)]
            axes.plot(rounds, curve.mean("seed").values, color=color)
            band(axes, rounds, curve.values, color)
        axes.set_title(escape_mathtext(name), fontsize=10, loc="left")
        style_axes(axes)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    figure.supxlabel("Communication round", fontsize=10)
    figure.supylabel(textwrap.fill(label(values), 30), fontsize=10)
    groups = range(values.sizes["planted_group"])
    named = [f"group {group}" for group in groups]
    figure.legend(panels[0].lines, named, loc="outside right upper", frameon=False)
    return figure


def cluster_agreement(results: xr.Dataset, measure: str = "nmi") -> Figure:
    """Draws how well the clusters that were found match the planted groups, round by round.

    Args:
        results: Results with a method that looks for clusters.
        measure: Which info of the aggregator, ``"nmi"`` or ``"ari"``.

    Returns:
        A figure: for each method that looks for clusters the mean over all rounds up to each and
        over seeds, with its 95 % interval as a band.

    Raises:
        ValueError: If no method has this info.

    Examples:
        >>> import xarray as xr
        >>> values = np.array([[0.0, 1.0]])
        >>> results = xr.Dataset({"aggregation_nmi": (("seed", "training_round"), values)})
        >>> cluster_agreement(results).axes[0].lines[0].get_ydata().tolist()
        [0.0, 0.5]
    """
    from matplotlib.figure import Figure

    values = by_method(results, f"aggregation_{measure}", ("seed", "training_round"))
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for i, style in enumerate(styles(values)):
        own = values.isel(algorithm=i).transpose("seed", ...).values
        if np.isnan(own).all():
            continue
        rounds = np.arange(1, own.shape[1] + 1)
        so_far = np.cumsum(own, axis=1) / rounds
        name = str(values["algorithm"].values[i])
        axes.plot(rounds, so_far.mean(axis=0), label=escape_mathtext(name), **style)
        band(axes, rounds, so_far.T, style["color"])
    style_axes(axes)
    axes.set(
        xlabel="Communication round",
        ylabel=f"{measure.upper()}, mean over rounds so far",
        ylim=(-0.03, 1.03),
    )
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def embedding(points: ArrayLike, found: ArrayLike, planted: ArrayLike | None = None) -> Figure:
    """Draws clients in the plane of two coordinates, by found cluster and planted group.

    Args:
        points: Coordinates, ``[clients, 2 or more]``, of which the first two are drawn; of a
            spectral embedding, whose first one is nearly constant, pass ``points[:, 1:]``.
        found: Cluster of each client.
        planted: Its planted group, if known.

    Returns:
        A figure: colors are clusters, shapes are groups.

    Raises:
        ValueError: If the lengths differ or there are fewer than two coordinates.

    Examples:
        >>> figure = embedding([[0.0, 1.0], [1.0, 0.0]], found=[0, 1], planted=[0, 0])
        >>> len(figure.axes[0].collections)
        2
    """
    from matplotlib.figure import Figure

    points, found = np.asarray(points, float), np.asarray(found)
    groups = np.zeros_like(found) if planted is None else np.asarray(planted)
    if points.ndim != 2 or points.shape[1] < 2 or not len(points) == len(found) == len(groups):
        raise ValueError(
            f"{points.shape=}, {found.shape=}, {groups.shape=}: expected two or more coordinates, "
            "one cluster and one group for each client."
        )
    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for cluster, group in sorted(set(zip(found.tolist(), groups.tolist(), strict=True))):
        own = (found == cluster) & (groups == group)
        axes.scatter(
            *points[own, :2].T,
            color=COLORS[cluster % len(COLORS)],
            marker=_MARKERS[group % len(_MARKERS)],
            s=60,
            alpha=0.8,
            label=f"cluster {cluster}" + ("" if planted is None else f", group {group}"),
        )
    style_axes(axes)
    axes.set(xlabel="First coordinate", ylabel="Second coordinate")
    figure.legend(loc="outside right upper", frameon=False)
    return figure
