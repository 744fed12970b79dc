"""What all figures share: which variable to draw, the look of a method, the look of axes."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.report.intervals import student
from fedjax_fair.results import final_metrics
from fedjax_fair.text import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

__all__ = [
    "COLORS",
    "MOST_POINTS",
    "NOISE_FLOOR",
    "band",
    "by_method",
    "escape_mathtext",
    "first_difference",
    "is_percent",
    "label",
    "percent_axis",
    "points_as_methods",
    "settings_of",
    "style_axes",
    "styles",
    "to_percent",
    "variable",
]

NOISE_FLOOR = "client_dissimilarity_noise"
"""What test sets alone add to the dissimilarity of clients, as evaluations estimate it."""
# Okabe and Ito's colors, which color-blind readers can distinguish; yellow is too pale for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MOST_POINTS = 10
"""Points of a sweep in a figure, more than which cannot be distinguished."""

_DASHES = ("-", "--", ":")
_POINT = "algorithm_and_settings"


def variable(results: xr.Dataset, name: str, dims: tuple[str, ...]) -> xr.DataArray:
    """The variable, which must have these dimensions and may have those of methods besides."""
    besides = {"algorithm", *settings_of(results)}
    fitting = [str(key) for key, v in results.items() if set(v.dims) - besides == set(dims)]
    if name not in fitting:
        raise ValueError(
            f"no {name!r} over {', '.join(dims)} in results: expected one of {sorted(fitting)}."
        )
    return results[name]


def by_method(
    results: xr.Dataset, name: str, dims: tuple[str, ...], most: int | None = MOST_POINTS
) -> xr.DataArray:
    """The variable, with ``algorithm`` as a dimension even if there is but one.

    The points of a sweep are methods, named by their settings; ``most`` of them, the most accurate.
    """
    variable(results, name, dims)
    needed = results[[key for key in {name, "accuracy_mean_clients"} if key in results]]
    values = points_as_methods(needed, most)[name]
    if "algorithm" in values.dims:
        return values
    return values.expand_dims(
        "algorithm" if "algorithm" in values.coords else {"algorithm": ["run"]}
    )


def settings_of(results: xr.Dataset) -> list[str]:
    """The dimensions that a sweep varied; none in results of a run."""
    level = results.get("accuracy_mean_clients")
    known = ("algorithm", "seed", "round")
    return [] if level is None else [str(name) for name in level.dims if name not in known]


def points_as_methods(results: xr.Dataset, most: int | None = None) -> xr.Dataset:
    """A sweep with a method for each of its points, named by settings; other results as they are.

    A setting that changed nothing for a method, as it does not read it, is left out of its points.

    Args:
        results: Results of a sweep, or others.
        most: Points to keep: those that serve clients best in the end, the best first. All by
            default, in their order.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> accuracy = [[[[0.5]], [[0.5]]], [[[0.4]], [[0.6]]]]
        >>> swept = xr.Dataset(
        ...     {"accuracy_mean_clients": (("algorithm", "prox", "seed", "round"), accuracy)},
        ...     {"algorithm": ["random", "fedprox"], "prox": [0.0, 0.1]},
        ... )
        >>> points_as_methods(swept)["algorithm"].values.tolist()
        ['random', 'fedprox, prox=0', 'fedprox, prox=0.1']
    """
    settings = settings_of(results)
    if not settings:
        return results
    import xarray as xr

    whole = "algorithm" in results.dims
    dims = ["algorithm", *settings] if whole else settings
    level = results["accuracy_mean_clients"]
    read = {
        method: [name for name in settings if not _is_constant(own, name)]
        for method, own in (level.groupby("algorithm") if whole else [(None, level)])
    }
    places: dict[str, int] = {}
    for place, values in enumerate(product(*(results[dim].values.tolist() for dim in dims))):
        point = dict(zip(dims, values, strict=True))
        method = point.get("algorithm")
        chosen = [f"{name}={_short(point[name])}" for name in read[method]]
        places.setdefault(", ".join([method, *chosen] if whole else chosen or ["run"]), place)
    if most is not None:
        reached = (
            final_metrics(results[[level.name]])[level.name].mean("seed").transpose(*dims).values
        )
        best = sorted(places, key=lambda name: -reached.flat[places[name]])[:most]
        places = {name: places[name] for name in best}
    indices = np.unravel_index(list(places.values()), [results.sizes[dim] for dim in dims])
    point_by_point = {
        dim: xr.DataArray(own, dims=_POINT) for dim, own in zip(dims, indices, strict=True)
    }
    return (
        results.isel(point_by_point)
        .drop_vars({"algorithm", *dims}, errors="ignore")
        .rename({_POINT: "algorithm"})
        .assign_coords(algorithm=list(places))
    )


def _is_constant(values: xr.DataArray, dim: str) -> bool:
    whole = values.transpose(dim, ...).values
    return bool(((whole == whole[:1]) | (np.isnan(whole) & np.isnan(whole[:1]))).all())


def _short(value: object) -> str:
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def is_percent(values: xr.DataArray) -> bool:
    """Whether a variable is an accuracy, or a difference of some, and is drawn in percent."""
    name = str(values.name)
    return (
        any(part in name for part in ("accuracy", "sigma_acc", "dissimilarity"))
        and not any(part in name for part in ("gini", "jain"))
        and values.attrs.get("units", "1") == "1"
    )


def to_percent(values: xr.DataArray) -> xr.DataArray:
    """What is drawn of a variable: accuracies and differences of them in percent."""
    return 100 * values if is_percent(values) else values


def first_difference(values: xr.DataArray) -> xr.DataArray:
    """From the first round on at which methods differ, as they do not before training."""
    means = values.mean("seed").transpose("round", "algorithm", ...).values
    lowest, highest = np.fmin.reduce(means, axis=1), np.fmax.reduce(means, axis=1)
    alone = (~np.isnan(means)).sum(axis=1) == 1
    differ = np.flatnonzero(((highest > lowest) | alone).reshape(len(means), -1).any(axis=1))
    return values.isel(round=slice(int(differ[0]), None)) if differ.size else values


def percent_axis(axes: Axes, values: xr.DataArray) -> None:
    """Stretches an axis of accuracies in percent towards 100, where they are close together."""
    means = values.mean("seed").values
    missing = max(0.6 * (100 - float(np.nanmax(means))), 0.05)
    low = float(np.nanmin(means))

    def forward(accuracy: Any) -> np.ndarray:
        return -np.log10(np.maximum(100 - np.asarray(accuracy, float), missing))

    axes.set_yscale("function", functions=(forward, lambda stretched: 100 - 10 ** (-stretched)))
    axes.set_ylim(max(low - 0.15 * (100 - low), 0), 100 - missing)
    marks = np.array([0, 20, 40, 60, 70, 80, 85, 90, 92, 94, 95, 96, 97, 98, 98.5, 99, 99.5, 99.8])
    shown = marks[(marks >= axes.get_ylim()[0]) & (marks <= 100 - missing)]
    axes.set_yticks(shown, [f"{mark:g}" for mark in shown])
    axes.minorticks_off()


def band(axes: Axes, rounds: np.ndarray, runs: np.ndarray, color: str) -> None:
    """The 95 % interval of the mean of ``runs``, ``[rounds, seeds]``, if there are several."""
    if runs.shape[1] > 1:
        _, low, high = student(runs)
        axes.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)


def styles(values: xr.DataArray) -> list[dict[str, Any]]:
    """Color and dashes of each method; dashes distinguish those beyond the last color."""
    num_colors = len(COLORS)
    return [
        {"color": COLORS[i % num_colors], "linestyle": _DASHES[i // num_colors % len(_DASHES)]}
        for i in range(values.sizes["algorithm"])
    ]


def label(values: xr.DataArray) -> str:
    """Name and unit for an axis."""
    name = escape_mathtext(values.attrs.get("long_name", values.name))
    unit = "%" if is_percent(values) else escape_mathtext(values.attrs.get("units", "1"))
    return name if unit == "1" else f"{name} ({unit})"


def escape_mathtext(text: object) -> str:
    r"""A name that others chose, of which matplotlib reads nothing as a formula.

    Examples:
        >>> escape_mathtext("$x$")
        '\\$x\\$'
    """
    return escape_control_chars(text).replace("$", r"\$")


def style_axes(axes: Axes) -> None:
    """Leaves a light grid and two spines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
