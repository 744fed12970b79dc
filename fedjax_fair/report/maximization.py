"""Figures of federated maximization: what was chosen, and how much talk it took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.report.drawing import escape_mathtext, style_axes, styles
from fedjax_fair.submodular.federated.comparison import GREEDY

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["chosen_pictures", "figures", "value_against_bits"]


def figures(results: xr.Dataset) -> dict[str, Figure]:
    """All figures that these results can fill, by name."""
    drawn = {"value-against-bits": value_against_bits(results)}
    return drawn | ({"chosen": chosen_pictures(results)} if "picture" in results else {})


def value_against_bits(results: xr.Dataset) -> Figure:
    """Draws how good the set is after so many bits, as a share of what centralized greedy finds.

    Args:
        results: What ``maximize.solve`` returned.

    Returns:
        A figure: a line a method, mean over seeds; those that send nothing are level.

    Examples:
        >>> import xarray as xr
        >>> over = ("algorithm", "seed", "round")
        >>> values, bits = np.array([[[0, 2.0]], [[0, 1.0]]]), np.array([[[0, 0]], [[0, 8]]])
        >>> results = xr.Dataset({
        ...     "value": (over, values), "bits_up": (over, bits), "bits_down": (over, bits),
        ...     "final_value": (over[:2], values[..., 1])}, {"algorithm": [GREEDY, "mine"]})
        >>> line = value_against_bits(results).axes[0].lines[1]
        >>> line.get_xdata().tolist(), line.get_ydata().tolist()
        ([16.0], [0.5])
    """
    from matplotlib.figure import Figure

    means = results.mean("seed")
    share = means["value"] / means["final_value"].sel(algorithm=GREEDY)
    bits = means["bits_up"] + means["bits_down"]
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, style in enumerate(styles(share)):
        name = str(share["algorithm"].values[i])
        spent, reached = bits.values[i], share.values[i]
        talked = np.flatnonzero((spent > 0) & (reached > 0))
        if talked.size:
            axes.plot(
                spent[talked], reached[talked], marker=".", label=escape_mathtext(name), **style
            )
        else:
            last = reached[np.isfinite(reached)][-1]
            axes.axhline(
                last, label=escape_mathtext(name), linewidth=1, linestyle=":", color=style["color"]
            )
    style_axes(axes)
    axes.set(xscale="log", xlabel="Bits to and from all clients so far")
    axes.set_ylabel("Value of the set / that of centralized greedy")
    axes.set_title(escape_mathtext(results.attrs.get("data", "")), loc="left")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def chosen_pictures(results: xr.Dataset) -> Figure:
    """Draws the items that every method chose in its first run, a row a method.

    Args:
        results: What ``maximize.solve`` returned for items that have pictures.

    Returns:
        A figure; items in the order of their labels.

    Examples:
        >>> import xarray as xr
        >>> results = xr.Dataset(
        ...     {"chosen": (("algorithm", "seed", "item"), np.array([[[False, True]]])),
        ...      "final_value": (("algorithm", "seed"), np.ones((1, 1))),
        ...      "picture": (("item", "height", "width"), np.arange(8).reshape(2, 2, 2))},
        ...     {"algorithm": [GREEDY], "label": ("item", ["3", "7"])})
        >>> chosen_pictures(results).axes[0].images[0].get_array().ravel().tolist()
        [4, 5, 6, 7]
    """
    from matplotlib.figure import Figure

    first = results.isel(seed=0)
    methods = [str(name) for name in results["algorithm"].values]
    masks, pictures = first["chosen"].values.astype(bool), results["picture"].values
    order = np.argsort(results["label"].values, kind="stable")
    rows = [order[mask[order]] for mask in masks]
    widest = max(map(len, rows))
    # Titles are wider than pictures, which a layout engine would make room for.
    figure = Figure(figsize=(max(3.5, 0.7 * widest), 0.95 * len(rows)))
    figure.subplots_adjust(left=0.01, right=0.99, top=0.96, bottom=0.01, hspace=0.45, wspace=0.1)
    panels = figure.subplots(len(rows), widest, squeeze=False)
    greedy = float(first["final_value"].sel(algorithm=GREEDY))
    for name, row, items in zip(methods, panels, rows, strict=True):
        share = float(first["final_value"].sel(algorithm=name)) / greedy
        row[0].set_title(
            f"{escape_mathtext(name)}: {100 * share:.1f} % of centralized greedy",
            loc="left",
            size=8,
        )
        for axes, item in zip(row, items, strict=False):
            axes.imshow(pictures[item], cmap="gray_r")
        for axes in row:
            axes.set_axis_off()
    return figure
