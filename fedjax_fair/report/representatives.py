"""Figure of selected items and their gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedjax_fair.report import drawing
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["representatives"]

_MAX_NUMBERED = 30


def representatives(points: ArrayLike, items: ArrayLike, gains: ArrayLike) -> Figure:
    """Plots points in two dimensions with the selected items, and the gain of each.

    More than two coordinates are projected onto the first two principal components.

    Args:
        points: Coordinates of all items, ``[n, width]``, ``width >= 2``.
        items: Selected items, ``[k]``, in order, such as ``ranking_`` of an estimator; -1 for none.
        gains: Gain of each selected item, ``[k]``.

    Raises:
        ValueError: If shapes do not match, an item is not a row of ``points``, or a coordinate is
            not finite.

    Examples:
        >>> figure = representatives([[0, 0], [0, 1], [5, 5], [5, 6]], [1, 2], [20.0, 12.0])
        >>> figure.axes[0].collections[1].get_offsets().tolist()
        [[0.0, 1.0], [5.0, 5.0]]
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows, selected, values = np.asarray(points, float), np.asarray(items), np.asarray(gains)
    if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < 2:
        raise ValueError(
            f"points: expected shape [n, width >= 2], got {rows.shape}; pass one row per item."
        )
    if not np.isfinite(rows).all():
        raise ValueError("points: NaN or infinity; expected finite coordinates; remove such rows.")
    if selected.ndim != 1 or selected.shape != values.shape:
        raise ValueError(
            f"gains: expected shape {selected.shape}, one per item, got {values.shape}; pass the "
            "gains of the same selection."
        )
    selected, values = selected[selected != -1], values[selected != -1]
    checks.items("items", selected, len(rows))

    places, names = _flat(rows)
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    left.scatter(*places.T, s=8, color="0.75", linewidths=0, rasterized=True)
    left.scatter(*places[selected].T, s=36, color=drawing.COLORS[0])
    if len(selected) <= _MAX_NUMBERED:
        for order, place in enumerate(places[selected], start=1):
            left.annotate(str(order), place, (4, 4), textcoords="offset points", size=8)
    left.set(xlabel=names[0], ylabel=names[1])
    left.set_title(f"{len(selected)} of {len(rows):,} items", loc="left")
    right.plot(np.arange(1, len(selected) + 1), values, marker=".", color=drawing.COLORS[0])
    right.set(xlabel="Pick", ylabel="Gain")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_title(f"sum of gains {values.sum():.4g}", loc="left")
    for axes in (left, right):
        drawing.style_axes(axes)
    return figure


def _flat(rows: np.ndarray) -> tuple[np.ndarray, tuple[str, str]]:
    """Two coordinates of each row, and their names."""
    if rows.shape[1] == 2:
        return rows, ("First coordinate", "Second coordinate")
    centered = rows - rows.mean(axis=0)
    spread, directions = np.linalg.eigh(centered.T @ centered)
    shares = spread[::-1] / max(spread.sum(), np.finfo(float).tiny)
    first, second = (f"{share:.0%} of variance" for share in shares[:2])
    return (
        centered @ directions[:, :-3:-1],
        (f"First component ({first})", f"Second component ({second})"),
    )
