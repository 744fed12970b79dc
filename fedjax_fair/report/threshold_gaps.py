"""Figure of the gaps between sensitive groups before and after thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.report import drawing

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["threshold_gaps"]


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
