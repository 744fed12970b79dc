"""Forest plots: differences to a baseline with their intervals, one row per method.

The figure and the picture of the HTML report show the same rows. Filled points are statistically
significant; a diamond is a published difference.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.report import drawing
from fedjax_fair.report.document import text
from fedjax_fair.results.comparison import MIN_SEEDS, describe_seeds, unit_of
from fedjax_fair.results.datasets import method_of
from fedjax_fair.results.formats import format_number, format_p
from fedjax_fair.results.task_metrics import digits

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["differences", "html_rows"]

_WIDTH = 48
"""Characters of a heading that fit below a panel."""


def differences(
    compared: xr.Dataset | Sequence[xr.Dataset],
    published: Mapping[str, float] | None = None,
) -> Figure:
    """Plots differences to a baseline with 95% intervals.

    Args:
        compared: What `fedjax_fair.results.compare` returned, for one or more metrics with the same
            baseline; each has a panel.
        published: Differences of the first metric that a paper reports, by method, in the unit of
            the axis (points if it is in percent); of others none.

    Raises:
        ValueError: If there is nothing to plot, or a published method is not among the compared.

    Examples:
        >>> import xarray as xr
        >>> from fedjax_fair import results
        >>> accuracy = [[[0.7], [0.9], [0.8]], [[0.8], [1.0], [0.8]]]
        >>> runs = xr.Dataset(
        ...     {"accuracy_mean_clients": (("algorithm", "seed", "round"), accuracy)},
        ...     {"algorithm": ["fedavg", "divfl"], "round": [10]},
        ... )
        >>> compared = results.compare(runs, "accuracy_mean_clients")
        >>> axes = differences(compared, {"divfl": 5.0}).axes[0]
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['divfl']
    """
    import xarray as xr
    from matplotlib.figure import Figure

    panels = [compared] if isinstance(compared, xr.Dataset) else list(compared)
    if not panels:
        raise ValueError(
            "compared=[]: expected one or more comparisons; pass the result of results.compare."
        )
    names = [str(name) for name in panels[0]["algorithm"].values]
    if unknown := set(published or {}) - set(names):
        raise ValueError(
            f"published={sorted(unknown)}: expected some of {names}; remove other methods."
        )
    size = (2.5 + 3.2 * len(panels), 1.3 + 0.28 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    for place, (axes, one) in enumerate(
        zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)
    ):
        rows = _rows(one, published if place == 0 else None)
        for height, row in enumerate(rows):
            color = drawing.COLORS[0]
            axes.hlines(height, row.low, row.high, color=color, linewidth=1.5)
            fill = color if row.is_significant else "white"
            axes.plot(row.difference, height, "o", color=color, markerfacecolor=fill)
            if not np.isnan(row.published):
                # Above the line, so that it does not hide the point.
                axes.plot(row.published, height - 0.3, "D", color=drawing.COLORS[1], markersize=4)
        axes.axvline(0, color="0.5", linewidth=1)
        drawing.style_axes(axes)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        labels = [drawing.escape_mathtext(row.method) for row in rows] if place == 0 else []
        axes.set_yticks(range(len(rows)), labels or [""] * len(rows))
        heading = textwrap.fill(drawing.escape_mathtext(_heading(one)), _WIDTH)
        axes.set_xlabel(heading, size=9)
    note = f"95% CI over {describe_seeds(panels[0])}; filled: p below .05 (Holm), "
    note += f"{MIN_SEEDS} seeds or more" + ("; diamonds: published" if published else "")
    figure.supxlabel(drawing.escape_mathtext(note), size=8, color="0.35")
    return figure


def html_rows(compared: xr.Dataset) -> str:
    """Renders a comparison for an HTML page: a row of text and a picture for each method.

    Only the pictures are scaled to the width of the page, so that text keeps its size.

    Args:
        compared: As for `differences`, one metric.
    """
    rows = _rows(compared)
    ends = np.array([[row.low, row.difference, row.high] for row in rows])
    ends = np.append(ends[np.isfinite(ends)], 0.0)
    low, high = float(ends.min()), float(ends.max())
    spread = (high - low) or 1.0
    form = f"+.{_digits(compared)}f"

    def x(value: float) -> str:
        return f"{4 + 92 * (value - low) / spread:.2f}%"

    parts = []
    for row in rows:
        drawn = f'<line x1="{x(0)}" x2="{x(0)}" y1="0" y2="100%" opacity=".4"/>'
        numbers = "no pairs of seeds"
        if np.isfinite(row.difference):
            numbers = format_number(row.difference, form)
            if np.isfinite(row.low) and np.isfinite(row.high):
                drawn += f'<line x1="{x(row.low)}" x2="{x(row.high)}" y1="50%" y2="50%"/>'
                ends = (format_number(end, form) for end in (row.low, row.high))
                numbers += f" ({' to '.join(ends)})"
            # Equal differences of all seeds have no p value.
            numbers += f", p {format_p(row.p)}" if np.isfinite(row.p) else ""
            fill = "currentColor" if row.is_significant else "var(--paper)"
            drawn += f'<circle cx="{x(row.difference)}" cy="50%" r="5" fill="{fill}"/>'
        parts.append(
            f"<span>{text(row.method)}</span>"
            f'<svg aria-hidden="true" stroke="currentColor" stroke-width="2">{drawn}</svg>'
            f'<span class="number">{numbers}</span>'
        )
    return (
        f'<figure class="forest"><figcaption>{text(_heading(compared))}</figcaption>'
        f"{''.join(parts)}</figure>"
    )


def _rows(compared: xr.Dataset, published: Mapping[str, float] | None = None) -> list[Any]:
    """Returns a tuple per method, in the unit of the axis; limits are NaN for a single seed."""
    in_unit = ["difference", "low", "high"]
    frame = compared[[*in_unit, "p", "is_significant"]].to_dataframe()
    frame[in_unit] *= 100 if unit_of(compared) == "%" else 1
    frame["method"] = frame.index.astype(str)
    frame["published"] = [(published or {}).get(name, np.nan) for name in frame["method"]]
    return list(frame.itertuples())


def _digits(compared: xr.Dataset) -> int:
    metric = compared.attrs["metric"]
    values = np.append(compared["mean"].values, compared["baseline_mean"].values)
    shown = compared["mean"].__class__(values, attrs={"units": compared.attrs.get("units") or "1"})
    return digits(shown.to_dataset(name=metric), metric)


def _heading(compared: xr.Dataset) -> str:
    name = compared.attrs.get("long_name") or compared.attrs["metric"]
    unit = {"1": "", "%": " (points)"}.get(unit_of(compared), f" ({unit_of(compared)})")
    return f"{name}: difference to {method_of(compared.attrs['baseline'])}{unit}"
