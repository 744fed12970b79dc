"""Figures from results: how training went, how evenly clients are served, who owns what.

All but ``representatives`` take the ``xarray.Dataset`` of one run or of several methods (see
`fedjax_fair.results`). Each returns a ``matplotlib.figure.Figure`` to save or to show; no window is
opened and no global state touched. A method has the same color in every figure of a Dataset.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.data import FederatedData
from fedjax_fair.report.drawing import (
    COLORS,
    NOISE_FLOOR,
    band,
    by_method,
    escape_mathtext,
    first_difference,
    label,
    percent_axis,
    style_axes,
    styles,
    to_percent,
    variable,
)
from fedjax_fair.report.representatives import representatives
from fedjax_fair.results import partition_dataset

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_distribution", "learning_curves", "partition", "representatives"]

_MAX_CLIENTS_SHOWN = 1000
_LEVELS = (
    "accuracy_mean_clients",
    "accuracy_mean_examples",
    "accuracy_minimum",
    "accuracy_worst_10pct",
    "accuracy_best_10pct",
)


def learning_curves(results: xr.Dataset, metric: str = "accuracy_mean_clients") -> Figure:
    """Draws a summary metric against rounds, one line per method.

    Args:
        results: Results of one or more methods.
        metric: A variable over seeds and rounds, such as the name of a summary metric.

    Returns:
        A figure: means over seeds as lines and, with more than one seed, their 95 % intervals as
        bands, from the first round at which methods differ. Accuracies are in percent, on an axis
        that is stretched towards 100. Dissimilarity has its noise floor as dotted lines.

    Raises:
        ValueError: If ``metric`` is not such a variable.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> accuracy = (("seed", "round"), np.array([[0.1, 0.5], [0.1, 0.7]]))
        >>> results = xr.Dataset({"accuracy_mean_clients": accuracy}, {"round": [0, 10]})
        >>> line = learning_curves(results).axes[0].lines[0]
        >>> np.round(line.get_ydata(), 3).tolist()
        [10.0, 60.0]
    """
    from matplotlib.figure import Figure

    values = by_method(results, metric, ("seed", "round"))
    drawn = first_difference(to_percent(values))
    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for i, style in enumerate(styles(values)):
        curve = drawn.isel(algorithm=i).dropna("round", how="all").transpose("round", "seed")
        rounds = curve["round"].values
        name = str(values["algorithm"].values[i])
        axes.plot(rounds, curve.mean("seed").values, label=escape_mathtext(name), **style)
        band(axes, rounds, curve.values, style["color"])
    style_axes(axes)
    if metric in _LEVELS:
        percent_axis(axes, drawn)
    if metric == "client_dissimilarity" and NOISE_FLOOR in results:
        _floors(axes, by_method(results, NOISE_FLOOR, ("seed", "round")).sel(round=drawn["round"]))
    axes.set(xlabel="Communication round", ylabel=textwrap.fill(label(values), 36))
    axes.set_title(escape_mathtext(results.attrs.get("data", "")), loc="left")
    axes.margins(x=0.02)
    seeds = values.sizes["seed"]
    legend = f"mean of {seeds} seeds,\nband: 95 % interval" if seeds > 1 else "one seed"
    figure.legend(loc="outside right upper", title=legend, frameon=False, alignment="left")
    return figure


def accuracy_distribution(results: xr.Dataset, round: int = -1) -> Figure:
    """Draws how test accuracy is distributed over clients, all seeds pooled.

    A curve gives the share of clients that have at most an accuracy: one further right serves
    clients better, a steeper one more evenly. A dot marks where the worst tenth of clients ends.

    Args:
        results: Results of one or more methods.
        round: One of the evaluated rounds, or -1 for the last of each method.

    Returns:
        A figure, in percent.

    Raises:
        ValueError: If there is no such round.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> accuracy = (("seed", "round", "client"), np.array([[[0.25, 0.5, 0.75, 1.0]]]))
        >>> results = xr.Dataset({"test_accuracy": accuracy}, {"round": [10]})
        >>> accuracy_distribution(results).axes[0].lines[0].get_xdata()[1:].tolist()
        [25.0, 50.0, 75.0, 100.0]
    """
    from matplotlib.figure import Figure

    values = by_method(results, "test_accuracy", ("seed", "round", "client"))
    rounds = values["round"].values
    if round != -1 and round not in rounds:
        raise ValueError(f"round={round!r}: expected -1 or one of {rounds.tolist()}.")
    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for i, style in enumerate(styles(values)):
        pooled = np.sort(100 * _pool(values.isel(algorithm=i), round))
        axes.ecdf(pooled, label=escape_mathtext(values["algorithm"].values[i]), **style)
        if pooled.size:
            worst = pooled[-(-pooled.size // 10) - 1]
            axes.plot(worst, 0.1, marker="o", linestyle="", color=style["color"], zorder=3)
    axes.axhspan(0, 0.1, color="0.93", zorder=0)
    axes.annotate("worst tenth", (1, 0.1), (-4, -4), "axes fraction", "offset points",
                  ha="right", va="top", size=8, color="0.35")  # fmt: skip
    style_axes(axes)
    axes.set(xlabel=label(values), ylabel="Share of clients that have at most this (%)")
    axes.set(ylim=(0, 1), yticks=np.linspace(0, 1, 6), yticklabels=range(0, 101, 20))
    when = "last round" if round == -1 else f"round {round}"
    axes.set_title(
        ", ".join(filter(None, [escape_mathtext(results.attrs.get("data", "")), when])), loc="left"
    )
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def partition(results: xr.Dataset | FederatedData) -> Figure:
    """Draws who owns which training examples: a column per client, a row per class.

    The area of a dot is proportional to the number of examples; the largest fills its cell. Clients
    are sorted by planted group, if there is one (a color each), then by the class of which they own
    most, and wrapped into strips like lines of text. Of more than a thousand clients every
    so-many-th is drawn.

    Args:
        results: A federation; or results with ``train_examples`` over clients and classes and, if
            groups are planted, ``group`` over clients. Of partitions that differ between seeds the
            first is drawn.

    Returns:
        A figure whose title names the data set.

    Raises:
        ValueError: If ``train_examples`` is missing.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> counts = (("client", "class"), np.array([[0, 9], [4, 0], [1, 1]]))
        >>> axes = partition(xr.Dataset({"train_examples": counts})).axes[0]
        >>> len(axes.collections[0].get_offsets())  # one dot per client and class it owns
        4
    """
    from matplotlib.figure import Figure

    if isinstance(results, FederatedData):
        results = partition_dataset(results)
    if "train_examples" in results and "seed" in results["train_examples"].dims:
        results = results.isel(seed=0)
    counts = variable(results, "train_examples", ("client", "class"))
    counts = counts.transpose("client", "class").values
    group = results["group"].values if "group" in results else np.zeros(len(counts), int)
    clients = _sorted_clients(counts, group)
    strips, cell = _wrap(len(clients), counts.shape[1])
    columns = -(-len(clients) // strips)
    full, colors = counts.max(), _group_colors(group)
    # The inches beside the cells leave room for labels, titles and the legend.
    size = (max(columns * cell + 2.2, 4.5), strips * (counts.shape[1] + 1) * cell + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    for i, axes in enumerate(figure.subplots(strips, squeeze=False)[:, 0]):
        shown = clients[i * columns : (i + 1) * columns]
        diameters = 0.9 * np.sqrt(counts[shown] / full)
        _dots(axes, diameters, [colors[g] for g in group[shown]])
        axes.set_xlim(-0.5, columns - 0.5)
        axes.tick_params(length=2, labelsize=min(8, 65 * cell))  # Of 72 points an inch.
        if len(clients) <= 40:
            axes.set_xticks(range(len(shown)), shown, size=7)
    _describe(figure, counts, len(clients), results.attrs.get("data", ""))
    planted = "group and " if "group" in results else ""
    figure.supxlabel(f"Clients, sorted by {planted}the class they own most of", size=10)
    if planted:
        _group_legend(figure, colors)
    return figure


def _sorted_clients(counts: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Ids of the clients to draw, in the order of drawing."""
    share = counts.max(1) / np.maximum(counts.sum(1), 1)
    order = np.lexsort((-share, counts.argmax(1), group))
    shown = min(len(order), _MAX_CLIENTS_SHOWN)
    return order[np.linspace(0, len(order) - 1, shown).astype(int)]


def _wrap(num_clients: int, num_classes: int) -> tuple[int, float]:
    """Number of strips and side of a cell in inches, for the largest cells on a 9 x 8 inch page."""
    strips = np.arange(1, num_clients + 1)
    width, height = 9.0 / np.ceil(num_clients / strips), 8.0 / (strips * (num_classes + 1))
    cell = np.minimum(np.minimum(width, height), 0.25)
    best = int(cell.argmax())
    return best + 1, float(cell[best])


def _dots(axes: Axes, diameters: np.ndarray, colors: list[str]) -> None:
    from matplotlib.collections import EllipseCollection

    client, label = np.nonzero(diameters)
    diameter = diameters[client, label]
    axes.add_collection(
        EllipseCollection(
            diameter,
            diameter,
            np.zeros_like(diameter),
            units="xy",
            offsets=np.stack([client, label], axis=1),
            offset_transform=axes.transData,
            facecolors=[colors[c] for c in client],
            linewidths=0,
            clip_on=False,
        )
    )
    axes.set(aspect="equal", ylim=(diameters.shape[1] - 0.5, -0.5), xticks=[])
    classes = diameters.shape[1]
    axes.set_yticks(range(0, classes, 1 if classes <= 30 else 10))
    axes.spines[:].set_color("0.8")


def _describe(figure: Figure, counts: np.ndarray, num_shown: int, name: str) -> None:
    shown = f"{num_shown:,} of " if num_shown < len(counts) else ""
    text = f"{shown}{len(counts):,} clients, {counts.sum():,} training examples"
    figure.suptitle(escape_mathtext(name), x=0.01, ha="left")
    figure.axes[0].set_title(f"{text}, largest dot {counts.max():,}", loc="left", size=8)
    figure.supylabel("Class", size=10)


def _group_colors(group: np.ndarray) -> dict[Any, str]:
    return {g: COLORS[i % len(COLORS)] for i, g in enumerate(np.unique(group))}


def _group_legend(figure: Figure, colors: dict[Any, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, lw=0, marker="o") for color in colors.values()]
    figure.legend(
        handles,
        map(escape_mathtext, colors),
        loc="outside right upper",
        title="Group",
        frameon=False,
    )


def _pool(values: xr.DataArray, round: int) -> np.ndarray:
    """Accuracies of all clients and seeds at a round, those without left out."""
    measured = values.dropna("round", how="all")
    chosen = measured.isel(round=-1) if round == -1 else values.sel(round=round)
    flat = chosen.values.ravel()
    return flat[~np.isnan(flat)]


def _floors(axes: Axes, floors: xr.DataArray) -> None:
    for i, style in enumerate(styles(floors)):
        floor = 100 * floors.isel(algorithm=i).mean("seed").dropna("round")
        dotted = {"color": style["color"], "linestyle": (0, (1, 3)), "linewidth": 1.2}
        axes.plot(floor["round"].values, floor.values, label="_", **dotted)
    axes.annotate("dotted: noise floor of finite test sets", (1, 1), (-4, -4), "axes fraction",
                  "offset points", ha="right", va="top", size=8, color="0.35")  # fmt: skip
    axes.set_ylim(bottom=0)
