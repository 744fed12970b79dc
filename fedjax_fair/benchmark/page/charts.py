"""Charts of the page as inline SVG, which needs no script; names and numbers are text in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_fair.benchmark.page import measures
from fedjax_fair.benchmark.page.contents import Frame
from fedjax_fair.report.document import text

__all__ = ["curve", "interval", "legend", "limits", "tradeoff", "unsurpassed"]

_COLORS = 7
_SHAPES = (
    "M-5 0A5 5 0 1 1 5 0A5 5 0 1 1 -5 0Z",
    "M-4.5 -4.5H4.5V4.5H-4.5Z",
    "M0 -6L5.5 4.5H-5.5Z",
    "M0 -6.5L6 0L0 6.5L-6 0Z",
)
"""Markers of about equal size: circle, square, triangle, diamond."""

_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 42
_CHARACTER = 6.6
"""Approximate width of a character of a label."""


def limits(frame: Frame) -> tuple[float, float]:
    """Returns the range of the finite numbers of a table, which includes zero.

    Examples:
        >>> import pandas as pd
        >>> limits(pd.DataFrame({"low": [0.1, float("nan")], "high": [0.3, 0.2]}))
        (0.0, 0.3)
    """
    values = np.append(frame.to_numpy(float).ravel(), 0.0)
    values = values[np.isfinite(values)]
    return float(values.min()), float(values.max())


def interval(point: float, low: float, high: float, ends: tuple[float, float]) -> str:
    """Draws a difference and its interval on an axis with a line at zero."""
    width, height, pad = 150, 16, 6
    start, spread = ends[0], (ends[1] - ends[0]) or 1.0

    def x(number: float) -> str:
        return f"{pad + (width - 2 * pad) * (number - start) / spread:.1f}"

    bar = ""
    if np.isfinite(low) and np.isfinite(high):
        bar = f'<path d="M{x(low)} 8H{x(high)}" stroke="currentColor" stroke-width="2"/>'
    is_separated = low > 0 or high < 0
    fill = "currentColor" if is_separated else "var(--paper)"
    return (
        f'<svg class="interval" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-hidden="true"><path d="M{x(0)} 0V{height}" stroke="var(--muted)"/>{bar}'
        f'<circle cx="{x(point)}" cy="8" r="4" fill="{fill}" stroke="currentColor" '
        'stroke-width="2"/></svg>'
    )


def look(place: int) -> tuple[str, str]:
    """Returns the color and the marker of a kind of methods."""
    return f"var(--m{place % _COLORS})", _SHAPES[place % len(_SHAPES)]


def legend(kinds: Sequence[str]) -> str:
    """Lists kinds of methods with their markers."""
    items = []
    for place, kind in enumerate(kinds):
        color, shape = look(place)
        items.append(
            f'<li><svg width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true">'
            f'<path d="{shape}" fill="{color}"/></svg>{text(kind)}</li>'
        )
    return f'<ul class="kinds">{"".join(items)}</ul>'


def tradeoff(results: Frame, kinds: Sequence[str]) -> str:
    """Draws accuracy against the standard deviation over clients, a marker per method.

    Methods that no other surpasses in both are labeled; the names of all are shown on hover.

    Args:
        results: Rows of one federation.
        kinds: All kinds of methods, in the order of the legend.
    """
    rows = [
        row
        for row in results.to_dict("records")
        if np.isfinite(row["accuracy"]) and np.isfinite(row["standard_deviation"])
    ]
    if not rows:
        return '<p class="how">No method has both measures.</p>'
    across = 100 * np.array([row["standard_deviation"] for row in rows])
    up = 100 * np.array([row["accuracy"] for row in rows])
    x_ticks, y_ticks = (
        _ticks(np.concatenate([values - half, values + half]))
        for values, half in (
            (across, _halves(rows, "standard_deviation")),
            (up, _halves(rows, "accuracy")),
        )
    )
    x = _scale(x_ticks, _LEFT, _WIDTH - _RIGHT)
    y = _scale(y_ticks, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        _axes(x_ticks, y_ticks, x, y, "standard deviation over clients (points)", "accuracy (%)")
    ]
    marks, taken, labeled = [], [], unsurpassed(results)
    order = np.argsort(-up, kind="stable")
    for place in order:
        row, at = rows[place], (x(across[place]), y(up[place]))
        color, shape = look(list(kinds).index(row["kind"]))
        about = (
            f"{row['method']} ({row['kind']}): accuracy {measures.value('accuracy', row)}%, "
            f"SD {measures.value('standard_deviation', row)} points"
        )
        bars = _bars(row, float(across[place]), float(up[place]), x, y)
        style = 'fill-opacity=".25" ' if row["is_reference"] else ""
        marks.append(
            f'<g class="mark" tabindex="0" role="img" aria-label="{text(about)}">'
            f"<title>{text(about)}</title>"
            f'<path class="bars-of" d="{bars}" stroke="{color}"/>'
            f'<path d="{shape}" transform="translate({at[0]:.1f} {at[1]:.1f})" fill="{color}" '
            f'stroke="{color}" {style}/></g>'
        )
        if row["method"] in labeled:
            parts.append(_label(str(row["method"]), at, taken))
    return (
        f'<svg class="tradeoff" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="group" '
        f'aria-label="Accuracy and standard deviation">{"".join(parts)}{"".join(marks)}</svg>'
    )


def unsurpassed(results: Frame) -> list[str]:
    """Returns methods that no other surpasses in accuracy and in standard deviation.

    Args:
        results: Rows of one federation.
    """
    rows = results[["method", "accuracy", "standard_deviation"]].dropna().to_numpy().tolist()
    return [
        name
        for name, accuracy, spread in rows
        if not any(other > accuracy and less < spread for _, other, less in rows)
    ]


def _halves(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """Returns half of each 95% interval in percent, zero where it is missing."""
    return 100 * np.nan_to_num([float(row.get(f"{name}_half", np.nan)) for row in rows])


def _bars(row: dict[str, Any], across: float, up: float, x: Any, y: Any) -> str:
    """Returns the path of the 95% intervals of a marker."""
    halves = [
        100 * float(row.get(f"{name}_half", np.nan)) for name in ("standard_deviation", "accuracy")
    ]
    path = ""
    if np.isfinite(halves[0]):
        path += f"M{x(across - halves[0]):.1f} {y(up):.1f}H{x(across + halves[0]):.1f}"
    if np.isfinite(halves[1]):
        path += f"M{x(across):.1f} {y(up - halves[1]):.1f}V{y(up + halves[1]):.1f}"
    return path


def _label(name: str, at: tuple[float, float], taken: list[tuple[float, float, float]]) -> str:
    """Places a name right or left of a marker; empty if it would cover another name."""
    width = _CHARACTER * len(name)
    is_right = at[0] + 10 + width < _WIDTH
    left = at[0] + 10 if is_right else at[0] - 10 - width
    top = at[1] + 4
    if left < _LEFT or any(
        left < end and left + width > start and abs(top - other) < 14 for start, end, other in taken
    ):
        return ""
    taken.append((left, left + width, top))
    x, side = (at[0] + 10, "start") if is_right else (at[0] - 10, "end")
    return f'<text class="name" x="{x:.1f}" y="{top:.1f}" text-anchor="{side}">{text(name)}</text>'


def curve(method: Frame, baseline: Frame, title: str) -> str:
    """Draws the accuracy of a method and, in gray, of the baseline over rounds.

    Args:
        method: Rows of ``curves`` of one federation and method.
        baseline: Those of the baseline, possibly none.
        title: Name of the federation.
    """
    both = [frame.sort_values("round") for frame in (method, baseline)]
    values = np.concatenate([
        _percent(frame[["accuracy", "low", "high"]]).ravel() for frame in both
    ])  # fmt: skip
    if not np.isfinite(method["accuracy"].to_numpy(float)).any():
        return ""
    rounds = np.concatenate([frame["round"].to_numpy(float) for frame in both])
    x_ticks, y_ticks = _ticks(rounds, 3), _ticks(values[np.isfinite(values)], 3)
    width, height = 260, 170
    x, y = _scale(x_ticks, 36, width - 10), _scale(y_ticks, height - 34, 8)
    parts = [_axes(x_ticks, y_ticks, x, y, "round", "")]
    for frame, color in ((both[1], "var(--muted)"), (both[0], "var(--m0)")):
        frame = frame[np.isfinite(frame["accuracy"].to_numpy(float))]
        if frame.empty:
            continue
        at = frame["round"].to_numpy(float)
        mean, low, high = (_percent(frame[name]) for name in ("accuracy", "low", "high"))
        known = np.isfinite(low) & np.isfinite(high)
        if known.any():
            band = [*zip(at[known], high[known], strict=True)]
            band += [*zip(at[known], low[known], strict=True)][::-1]
            parts.append(f'<path d="{_path(band, x, y)}Z" fill="{color}" opacity=".18"/>')
        line = _path([*zip(at, mean, strict=True)], x, y)
        parts.append(f'<path d="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        if len(at) == 1:
            parts.append(
                f'<circle cx="{x(at[0]):.1f}" cy="{y(mean[0]):.1f}" r="3" fill="{color}"/>'
            )
    about = f"Validation accuracy in % on {title}"
    return (
        f"<figure><figcaption>{text(title)}</figcaption>"
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{text(about)}">{"".join(parts)}</svg></figure>'
    )


def _percent(fractions: Frame) -> np.ndarray:
    """Returns accuracies in percent; ends of intervals may lie beyond what is possible."""
    return 100 * fractions.to_numpy(float).clip(0, 1)


def _path(points: Sequence[tuple[float, float]], x: Any, y: Any) -> str:
    return "M" + "L".join(f"{x(across):.1f} {y(up):.1f}" for across, up in points)


def _ticks(values: np.ndarray, count: int = 5) -> np.ndarray:
    """Returns about ``count`` round numbers that span the values."""
    from matplotlib.ticker import MaxNLocator

    low, high = float(values.min()), float(values.max())
    margin = 0.06 * ((high - low) or 1.0) if count > 3 else 0.0
    if high == low:
        margin = 0.5
    locator = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10])
    return np.asarray(locator.tick_values(low - margin, high + margin))


def _scale(ticks: np.ndarray, start: float, end: float) -> Any:
    low, high = ticks[0], ticks[-1]
    return lambda number: start + (end - start) * (number - low) / (high - low)


def _axes(
    x_ticks: np.ndarray, y_ticks: np.ndarray, x: Any, y: Any, x_label: str, y_label: str
) -> str:
    left, right = x(x_ticks[0]), x(x_ticks[-1])
    bottom = y(y_ticks[0])
    parts = []
    for tick in y_ticks:
        parts.append(
            f'<path class="grid-line" d="M{left:.1f} {y(tick):.1f}H{right:.1f}"/>'
            f'<text x="{left - 6:.1f}" y="{y(tick) + 4:.1f}" text-anchor="end">'
            f"{_number(tick)}</text>"
        )
    for tick in x_ticks:
        parts.append(
            f'<text x="{x(tick):.1f}" y="{bottom + 16:.1f}" text-anchor="middle">'
            f"{_number(tick)}</text>"
        )
    middle = (left + right) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{bottom + 32:.1f}" text-anchor="middle">{x_label}</text>'
    )
    if y_label:
        parts.append(f'<text x="{left + 4:.1f}" y="{y(y_ticks[-1]) + 12:.1f}">{y_label}</text>')
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:.10g}".replace("-", "\N{MINUS SIGN}")
