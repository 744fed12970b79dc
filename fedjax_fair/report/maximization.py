"""Figures of the results of ``maximize.solve``: value against communication, and selected items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.report import drawing
from fedjax_fair.submodular.federated.method_comparison import GREEDY

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["chosen_pictures", "figures", "value_against_bits"]


def figures(results: xr.Dataset) -> dict[str, Figure]:
    """Returns the figures of a maximization by name."""
    drawn = {"value-against-bits": value_against_bits(results)}
    return drawn | ({"chosen": chosen_pictures(results)} if "picture" in results else {})


def value_against_bits(results: xr.Dataset) -> Figure:
    """Plots the value of the set, as a share of that of centralized greedy, against bits sent.

    Methods that send nothing are horizontal lines.
    """
    means = results.mean("seed")
    shares = means["value"] / means["final_value"].sel(algorithm=GREEDY, drop=True)
    totals = means["bits_up"] + means["bits_down"]
    figure, axes = drawing.single_axes(4.2, results)
    for share, total, look in zip(shares, totals, drawing.styles(shares), strict=True):
        values, bits = share.values, total.values
        sent = (bits > 0) & (values > 0)
        if sent.any():
            axes.plot(bits[sent], values[sent], marker=".", **look)
        else:
            last = values[np.isfinite(values)][-1]
            axes.axhline(last, **look | {"linewidth": 1, "linestyle": ":"})
    drawing.style_axes(axes)
    axes.set(xscale="log", xlabel="Bits to and from all clients so far")
    axes.set_ylabel("Value of the set / that of centralized greedy")
    drawing.add_legend(figure)
    return figure


def chosen_pictures(results: xr.Dataset) -> Figure:
    """Plots the items that every method selected with the first seed, a row per method.

    Items, which must have pictures, are in the order of their labels.
    """
    from matplotlib.figure import Figure

    first = results.isel(seed=0)
    pictures = results["picture"].values
    order = np.argsort(results["label"].values, kind="stable")
    rows = [order[mask[order]] for mask in first["chosen"].values.astype(bool)]
    columns = max(map(len, rows))
    # A layout engine would make room for titles, which are wider than pictures.
    figure = Figure(figsize=(max(3.5, 0.7 * columns), 0.95 * len(rows)))
    figure.subplots_adjust(left=0.01, right=0.99, top=0.96, bottom=0.01, hspace=0.45, wspace=0.1)
    panels = figure.subplots(len(rows), columns, squeeze=False)
    shares = first["final_value"] / first["final_value"].sel(algorithm=GREEDY, drop=True)
    for share, row, items in zip(shares, panels, rows, strict=True):
        title = drawing.escape_mathtext(share["algorithm"].item())
        title += f": {100 * share.item():.1f}% of centralized greedy"
        row[0].set_title(title, loc="left", size=8)
        for axes, item in zip(row, items, strict=False):
            axes.imshow(pictures[item], cmap="gray_r")
        for axes in row:
            axes.set_axis_off()
    return figure
