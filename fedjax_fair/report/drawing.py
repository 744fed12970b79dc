"""Parts that figures share: variables by method, styles, axes and curves."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.metrics import fairness
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results import task_metrics
from fedjax_fair.results.comparison import noise_floor
from fedjax_fair.results.datasets import by_model, configurations_as_methods, swept_settings
from fedjax_fair.results.formats import student
from fedjax_fair.results.task_metrics import primary, validation
from fedjax_fair.roles import PERSONALIZED
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which color-blind readers can distinguish, without yellow, which is too
# pale for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MAX_CONFIGURATIONS = 10
"""Configurations of a sweep in a figure; more could not be distinguished."""

_gini = jax.jit(jax.vmap(fairness.gini))
_DASHES = ("-", "--", ":")
_MAX_MARKED = 3
"""Evaluations of a curve that are marked; a line through a single one would be invisible."""
_PLACES = 121
"""Times of a curve; between two of them a line is drawn, although values are steps."""


def variable(results: xr.Dataset, name: str, dims: tuple[str, ...]) -> xr.DataArray:
    """Returns a variable over ``dims``, and over methods and settings if it has them.

    Raises:
        ValueError: If there is no such variable.
    """
    optional = {"algorithm", *swept_settings(results)}
    valid = [str(key) for key, v in results.items() if set(v.dims) - optional == set(dims)]
    if name not in valid:
        raise ValueError(
            f"no {name!r} over {', '.join(dims)} in results: expected one of {sorted(valid)}; "
            "choose one, or train again with this metric."
        )
    return results[name]


def by_method(
    results: xr.Dataset, name: str, dims: tuple[str, ...], num_best: int | None = MAX_CONFIGURATIONS
) -> xr.DataArray:
    """Returns a variable over ``algorithm`` and ``dims``, in this order, also of a single method.

    Configurations of a sweep are methods here, see `configurations_as_methods`. Personalized models
    are methods too, see `by_model`; of a sweep, the models that serve the clients.
    """
    variable(results, name, dims)
    level = primary(results).mean
    names = {name, level, validation(level), "test_loss_mean_clients"}
    if f"{PERSONALIZED}{name}" in results or swept_settings(results):
        names |= {f"{PERSONALIZED}{key}" for key in names}
    needed = results[[key for key in results if key in names]]
    needed = by_model(needed, serving=bool(swept_settings(results)))
    values = configurations_as_methods(needed, num_best)[name]
    if "algorithm" not in values.dims:
        named = "algorithm" if "algorithm" in values.coords else {"algorithm": ["run"]}
        values = values.expand_dims(named)
    return values.transpose("algorithm", *dims)


def dissimilarity_floors(results: xr.Dataset) -> np.ndarray:
    """Returns the noise floor of each method's dissimilarity in percent; empty if unknown.

    Only the dissimilarity of accuracies has one.
    """
    import xarray as xr

    is_accuracy = primary(results) == ACCURACY
    if not is_accuracy or not {"accuracy_mean_examples", "test_examples"} <= set(results):
        return np.empty(0)
    accuracy = by_method(results, "accuracy_mean_examples", ("seed", "round"))
    parts = {accuracy.name: accuracy, "test_examples": results["test_examples"]}
    return 100 * noise_floor(xr.Dataset(parts), ["client_dissimilarity"]).to_array().values[0]


def is_known(results: xr.Dataset, name: str) -> bool:
    """Returns whether a variable, of global or personalized models, has a value."""
    names = {name, f"{PERSONALIZED}{name}"} & set(results)
    return any(bool(results[each].notnull().any()) for each in names)


def is_percent(values: xr.DataArray) -> bool:
    """Returns whether a variable is shown in percent."""
    return task_metrics.is_percent(str(values.name), values.attrs.get("units", "1"))


def to_percent(values: xr.DataArray) -> xr.DataArray:
    """Scales a variable to percent if it is shown so."""
    return (100 * values).assign_attrs(values.attrs) if is_percent(values) else values


def first_difference(values: xr.DataArray) -> int:
    """Returns the first evaluated round at which methods differ, or else the first one.

    At least two evaluations follow from it, so that there is a line.
    """
    means = values.mean("seed").transpose("round", "algorithm", ...).values
    lowest, highest = np.fmin.reduce(means, axis=1), np.fmax.reduce(means, axis=1)
    is_alone = (~np.isnan(means)).sum(axis=1) == 1
    differ = ((highest > lowest) | is_alone).reshape(len(means), -1).any(axis=1)
    return int(values["round"][min(differ.argmax(), max(len(differ) - 2, 0))])


def after_first_difference(values: xr.DataArray) -> xr.DataArray:
    """Omits evaluations before the `first_difference`."""
    return values.sel(round=slice(first_difference(values), None))


def mean_so_far(results: xr.Dataset, name: str) -> xr.DataArray:
    """Returns the mean of a variable over the training rounds so far, which count from 1."""
    values = by_method(results, name, ("seed", "training_round"))
    rounds = np.arange(1, values.sizes["training_round"] + 1)
    sums = values.cumsum("training_round", skipna=False)
    return sums.assign_coords(training_round=rounds) / rounds


def by_time(values: xr.DataArray, times: xr.DataArray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the times and the values of the last evaluations until then, for each method.

    Args:
        values: Over ``algorithm``, ``seed`` and ``round``.
        times: Times of the evaluations, with the same axes. A curve ends with the shortest run.

    Returns:
        Pairs of arrays ``[times]`` and ``[seeds, times]``; empty for a method without time.
    """
    curves = []
    for method, of_method in zip(values.values, times.values, strict=True):
        known = ~np.isnan(of_method)
        if not known.any(axis=1).all():
            curves.append((np.empty(0), np.empty((len(method), 0))))
            continue
        end = min(time[is_known].max() for time, is_known in zip(of_method, known, strict=True))
        at = np.linspace(0, end, _PLACES)
        runs = [
            run[is_known][np.searchsorted(time[is_known], at, side="right") - 1]
            for run, time, is_known in zip(method, of_method, known, strict=True)
        ]
        curves.append((at, np.stack(runs)))
    return curves


def gini_indices(counts: np.ndarray) -> np.ndarray:
    """Returns the Gini index of each row."""
    return np.asarray(_gini(jnp.asarray(counts, jnp.float32)), np.float64)


def draw_curves(axes: Axes, runs: xr.DataArray, looks: list[dict[str, Any]]) -> None:
    """Plots means over seeds as lines and, of several seeds, their 95% intervals as bands.

    ``runs`` are ``[curves, seeds, rounds]``, of which those without values are omitted.
    """
    from matplotlib.ticker import MaxNLocator

    for values, look in zip(runs, looks, strict=True):
        curve = values.dropna(runs.dims[2], how="all")
        if not curve.size:
            continue
        rounds = curve[runs.dims[2]].values
        marker = "o" if len(rounds) <= _MAX_MARKED else None
        axes.plot(rounds, curve.mean("seed").values, marker=marker, **look)
        if curve.sizes["seed"] > 1:
            _, low, high = student(curve.values.T)
            axes.fill_between(rounds, low, high, color=look["color"], alpha=0.15, linewidth=0)
            if len(rounds) == 1:  # A band of no width is invisible.
                axes.vlines(rounds, low, high, color=look["color"], linewidth=1)
    if not axes.has_data():
        annotate(axes, "no values", (1, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    style_axes(axes)


def styles(values: xr.DataArray) -> list[dict[str, Any]]:
    """Returns the color, line style and label of each method."""
    return [
        {
            "color": COLORS[i % len(COLORS)],
            "linestyle": _DASHES[i // len(COLORS) % len(_DASHES)],
            "label": escape_mathtext(name),
        }
        for i, name in enumerate(values["algorithm"].values)
    ]


def label(values: xr.DataArray, width: int = 100) -> str:
    """Returns the name and unit of a variable for an axis, wrapped."""
    name = escape_mathtext(values.attrs.get("long_name", values.name))
    unit = "%" if is_percent(values) else escape_mathtext(values.attrs.get("units", "1"))
    return textwrap.fill(name if unit == "1" else f"{name} ({unit})", width)


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


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Creates a figure with panels of common axes, at most three in a row."""
    from matplotlib.figure import Figure

    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.0 * columns + 1.0, 2.4 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for empty in axes[count:]:
        empty.set_axis_off()
    return figure, axes[:count]


def add_legend(figure: Figure, title: str | None = None, **settings: Any) -> None:
    """Adds a legend to the right of the axes, if anything is drawn."""
    if "handles" not in settings and not any(
        axes.get_legend_handles_labels()[0] for axes in figure.axes
    ):
        return
    place = {"loc": "outside right upper", "frameon": False, "alignment": "left"}
    figure.legend(title=title, **place, **settings)


def about_seeds(values: xr.DataArray | xr.Dataset, intervals: str = "") -> str:
    """Returns the title of a legend of means over seeds, with the name of intervals if any."""
    seeds = values.sizes["seed"]
    drawn = f",\n{intervals}: 95% CI" if intervals else ""
    return f"mean of {seeds} seeds{drawn}" if seeds > 1 else "one seed"


def annotate(axes: Axes, text: str, at: tuple[float, float], right: bool = True) -> None:
    """Writes a small gray note below a point, given in fractions of the axes."""
    side = -4 if right else 4
    axes.annotate(text, at, (side, -4), "axes fraction", "offset points", va="top",
                  ha="right" if right else "left", size=8, color="0.35")  # fmt: skip


def label_points(axes: Axes, points: Mapping[str, Sequence[float]]) -> None:
    """Writes names beside their points; a name that would cover another or a point is left out."""
    from matplotlib.transforms import Bbox

    points = {name: point for name, point in points.items() if np.isfinite(point).all()}
    right, middle = axes.get_xlim()[1], sum(axes.get_xlim()) / 2
    axes.set_xlim(right=right)
    centers = axes.transData.transform(np.reshape(list(points.values()), (-1, 2)))
    taken = [Bbox.from_bounds(x - 2, y - 2, 4, 4) for x, y in centers]
    for name, (x, y) in sorted(points.items(), key=lambda point: -point[1][1]):
        inner = 1 if x < middle else -1
        for side, above in ((inner, True), (inner, False), (-inner, True), (-inner, False)):
            label = axes.annotate(
                escape_mathtext(name), (x, y), (4 * side, 4 if above else -4), size=7, color="0.2",
                textcoords="offset points", ha="left" if side > 0 else "right",
                va="baseline" if above else "top",
            )  # fmt: skip
            label.set_in_layout(False)
            box, frame = label.get_window_extent(), axes.bbox
            if not box.count_overlaps(taken) and frame.x0 <= box.x0 and box.x1 <= frame.x1:
                taken.append(box)
                break
            label.remove()


def style_axes(axes: Axes) -> None:
    """Leaves a light grid and two spines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
