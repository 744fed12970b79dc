"""Parts that figures share: variables by method, styles, axes and curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from fedjax_fair.metrics import fairness
from fedjax_fair.results.datasets import configurations_as_methods, swept_settings
from fedjax_fair.results.intervals import student
from fedjax_fair.text import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLORS",
    "MAX_CONFIGURATIONS",
    "NOISE_FLOOR",
    "add_legend",
    "annotate",
    "by_method",
    "draw_curves",
    "escape_mathtext",
    "first_difference",
    "gini_indices",
    "is_percent",
    "label",
    "single_axes",
    "style_axes",
    "styles",
    "to_percent",
    "variable",
]

NOISE_FLOOR = "client_dissimilarity_noise"
"""Dissimilarity expected from finite test sets if all clients had equal accuracy."""
# Okabe and Ito's colors, which color-blind readers can distinguish, without yellow, which is too
# pale for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MAX_CONFIGURATIONS = 10
"""Configurations of a sweep in a figure; more could not be distinguished."""

_DASHES = ("-", "--", ":")


def variable(results: xr.Dataset, name: str, dims: tuple[str, ...]) -> xr.DataArray:
    """Returns a variable over ``dims`` and possibly those of methods and settings.

    Raises:
        ValueError: If there is no such variable.
    """
    optional = {"algorithm", *swept_settings(results)}
    valid = [str(key) for key, v in results.items() if set(v.dims) - optional == set(dims)]
    if name not in valid:
        raise ValueError(
            f"no {name!r} over {', '.join(dims)} in results: expected one of {sorted(valid)}."
        )
    return results[name]


def by_method(
    results: xr.Dataset, name: str, dims: tuple[str, ...], num_best: int | None = MAX_CONFIGURATIONS
) -> xr.DataArray:
    """Returns a variable over ``algorithm`` and ``dims``, in this order, also of a single method.

    Configurations of a sweep are methods here, see `configurations_as_methods`.
    """
    variable(results, name, dims)
    needed = results[[key for key in {name, "accuracy_mean_clients"} if key in results]]
    values = configurations_as_methods(needed, num_best)[name]
    if "algorithm" not in values.dims:
        named = "algorithm" if "algorithm" in values.coords else {"algorithm": ["run"]}
        values = values.expand_dims(named)
    return values.transpose("algorithm", *dims)


def is_percent(values: xr.DataArray) -> bool:
    """Returns whether a variable is an accuracy or a difference of accuracies."""
    name = str(values.name)
    return (
        any(part in name for part in ("accuracy", "sigma_acc", "dissimilarity"))
        and not any(part in name for part in ("gini", "jain"))
        and values.attrs.get("units", "1") == "1"
    )


def to_percent(values: xr.DataArray) -> xr.DataArray:
    """Scales accuracies and differences of accuracies to percent."""
    return 100 * values if is_percent(values) else values


def first_difference(values: xr.DataArray) -> int:
    """Returns the first evaluated round at which methods differ, or else the first one."""
    means = values.mean("seed").transpose("round", "algorithm", ...).values
    lowest, highest = np.fmin.reduce(means, axis=1), np.fmax.reduce(means, axis=1)
    is_alone = (~np.isnan(means)).sum(axis=1) == 1
    differ = ((highest > lowest) | is_alone).reshape(len(means), -1).any(axis=1)
    return int(values["round"][differ.argmax()])


def gini_indices(counts: np.ndarray) -> list[float]:
    """Returns the Gini index of each row."""
    return [float(fairness.gini(jnp.asarray(row, jnp.float32))) for row in counts]


def draw_curves(
    axes: Axes, runs: xr.DataArray, looks: list[dict[str, Any]], names: list[str] | None = None
) -> None:
    """Plots means over seeds as lines and, of several seeds, their 95% intervals as bands.

    Args:
        axes: Where to plot.
        runs: ``[curves, seeds, rounds]``. Rounds without values are omitted, and so are curves.
        looks: Color and line style of each curve.
        names: Labels of the lines.
    """
    for i, look in enumerate(looks):
        curve = runs[i].dropna(runs.dims[2], how="all")
        if not curve.size:
            continue
        rounds = curve[runs.dims[2]].values
        text = escape_mathtext(names[i]) if names else None
        axes.plot(rounds, curve.mean("seed").values, label=text, **look)
        if curve.sizes["seed"] > 1:
            _, low, high = student(curve.values.T)
            axes.fill_between(rounds, low, high, color=look["color"], alpha=0.15, linewidth=0)
    style_axes(axes)


def styles(values: xr.DataArray) -> list[dict[str, Any]]:
    """Returns the color and line style of each method."""
    num_colors = len(COLORS)
    return [
        {"color": COLORS[i % num_colors], "linestyle": _DASHES[i // num_colors % len(_DASHES)]}
        for i in range(values.sizes["algorithm"])
    ]


def label(values: xr.DataArray) -> str:
    """Returns the name and unit of a variable for an axis."""
    name = escape_mathtext(values.attrs.get("long_name", values.name))
    unit = "%" if is_percent(values) else escape_mathtext(values.attrs.get("units", "1"))
    return name if unit == "1" else f"{name} ({unit})"


def escape_mathtext(text: object) -> str:
    r"""Escapes a name so that matplotlib does not parse it as a formula.

    Examples:
        >>> escape_mathtext("$x$")
        '\\$x\\$'
    """
    return escape_control_chars(text).replace("$", r"\$")


def single_axes(height: float, results: xr.Dataset | None = None) -> tuple[Figure, Axes]:
    """Creates a figure with one pair of axes, 7 inches wide, titled with the name of the data."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, height), layout="constrained")
    axes = figure.add_subplot()
    if results is not None:
        axes.set_title(escape_mathtext(results.attrs.get("data", "")), loc="left")
    return figure, axes


def add_legend(figure: Figure, title: str | None = None, **settings: Any) -> None:
    """Adds a legend to the right of the axes."""
    figure.legend(
        loc="outside right upper", title=title, frameon=False, alignment="left", **settings
    )


def annotate(axes: Axes, text: str, at: tuple[float, float], right: bool = True) -> None:
    """Writes a small gray note below a point, given in fractions of the axes."""
    side = -4 if right else 4
    axes.annotate(text, at, (side, -4), "axes fraction", "offset points", va="top",
                  ha="right" if right else "left", size=8, color="0.35")  # fmt: skip


def style_axes(axes: Axes) -> None:
    """Leaves a light grid and two spines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
