"""Forest plots of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.reproduction import verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "share_axis"]


def draw(
    panels: Mapping[str, Any],
    baseline: str,
    *,
    units: str = "points",
    published: Mapping[str, float] | None = None,
) -> Figure:
    """Draws differences to a baseline, with a panel per table.

    Points with p below .05 are filled.

    Args:
        panels: Tables by the headings of their panels, with the same ``method`` in their rows, and
            the columns ``difference``, ``low``, ``high``, ``p`` (adjusted, NaN if there is none)
            and ``seeds``.
        baseline: Name of the baseline.
        units: Unit of all differences.
        published: Published differences by method, drawn in the first panel.
    """
    from fedjax_fair.report import forest

    found = []
    for heading, table in panels.items():
        columns = table.set_index("method")[["difference", "low", "high", "p", "seeds"]]
        one: Any = columns.assign(is_significant=columns["p"] < verdicts.LEVEL)
        one = one.to_xarray().rename(method="algorithm")
        found.append(one.assign_attrs(
            metric=heading, long_name=heading, units=units, paired=1, baseline=baseline,
        ))  # fmt: skip
    drawn = forest.differences(found, published)
    # Long names leave little room for the headings of the panels.
    longest = max(map(len, next(iter(panels.values()))["method"]))
    drawn.set_figwidth(1.8 + 3.2 * len(panels) + 0.075 * longest)
    return drawn


def share_axis(figure: Figure) -> Figure:
    """Gives the panels of a forest plot the same limits."""
    low, high = zip(*(axes.get_xlim() for axes in figure.axes), strict=True)
    for axes in figure.axes:
        axes.set_xlim(min(low), max(high))
    return figure
