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
from fedjax_fair.report.drawing import COLORS, by_method, label, styles, tidy, variable, words
from fedjax_fair.report.representatives import representatives
from fedjax_fair.results import ownership

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_distribution", "learning_curves", "partition", "representatives"]

_MOST_CLIENTS_SHOWN = 1000


def learning_curves(results: xr.Dataset, metric: str = "accuracy_mean_clients") -> Figure:
    """Draws a summary metric against rounds, one line per method.

    Args:
        results: Results of one or more methods.
        metric: A variable over seeds and rounds, such as the name of a summary metric.

    Returns:
        A figure: means over seeds as lines and, with more than one seed, the range from the lowest
        to the highest seed as bands.

    Raises:
        ValueError: If ``metric`` is not such a variable.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> accuracy = (("seed", "round"), np.array([[0.1, 0.5], [0.1, 0.7]]))
        >>> results = xr.Dataset({"accuracy_mean_clients": accuracy}, {"round": [0, 10]})
        >>> line = learning_curves(results).axes[0].lines[0]
        >>> np.round(line.get_ydata(), 3).tolist()
        [0.1, 0.6]
    """
    from matplotlib.figure import Figure

    values = by_method(results, metric, ("seed", "round"))
    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for i, style in enumerate(styles(values)):
        curve = values.isel(algorithm=i).dropna("round", how="all")
        rounds = curve["round"].values
        axes.plot(
            rounds, curve.mean("seed").values, label=words(curve["algorithm"].item()), **style
        )
        if curve.sizes["seed"] > 1:
            low, high = curve.min("seed").values, curve.max("seed").values
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)
    tidy(axes)
    axes.set(xlabel="Communication round", ylabel=textwrap.fill(label(values), 36))
    axes.set_title(words(results.attrs.get("data", "")), loc="left")
    axes.margins(x=0.02)
    seeds = values.sizes["seed"]
    legend = f"mean of {seeds} seeds,\nband: lowest to highest" if seeds > 1 else "one seed"
    figure.legend(loc="outside right upper", title=legend, frameon=False, alignment="left")
    return figure


def accuracy_distribution(results: xr.Dataset, round: int = -1) -> Figure:
    """Draws how test accuracy is distributed over clients, all seeds pooled.

    Above, the fraction of clients that reach at most an accuracy: a curve further right serves
    clients better, a steeper one more evenly. Below, the same as boxes: quartiles, whiskers to the
    worst and the best 10 % of clients, a dot at the mean.

    Args:
        results: Results of one or more methods.
        round: One of the evaluated rounds, or -1 for the last of each method.

    Returns:
        A figure of two panels that share the accuracy axis.

    Raises:
        ValueError: If there is no such round.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> accuracy = (("seed", "round", "client"), np.array([[[0.25, 0.5, 0.75, 1.0]]]))
        >>> results = xr.Dataset({"test_accuracy": accuracy}, {"round": [10]})
        >>> [len(axes.lines) > 0 for axes in accuracy_distribution(results).axes]
        [True, True]
    """
    from matplotlib.figure import Figure

    values = by_method(results, "test_accuracy", ("seed", "round", "client"))
    rounds = values["round"].values
    if round != -1 and round not in rounds:
        raise ValueError(f"round={round!r}: expected -1 or one of {rounds.tolist()}.")
    methods = [words(method) for method in values["algorithm"].values]
    pooled = [_pool(values.isel(algorithm=i), round) for i in range(len(methods))]
    figure = Figure(figsize=(7.0, 3.8 + 0.3 * len(methods)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.8, 0.4 + 0.3 * len(methods)))
    for accuracies, style in zip(pooled, styles(values), strict=True):
        above.ecdf(accuracies, **style)
    _boxes(below, pooled, methods, styles(values))
    for axes in (above, below):
        tidy(axes)
    above.set(ylabel="Fraction of clients", ylim=(0, 1.02))
    below.set_xlabel(label(values))
    below.set_title("box: quartiles, whiskers: 10 % and 90 %, dot: mean", loc="right", size=8)
    when = "last round" if round == -1 else f"round {round}"
    above.set_title(
        ", ".join(filter(None, [words(results.attrs.get("data", "")), when])), loc="left"
    )
    return figure


def partition(results: xr.Dataset | FederatedData) -> Figure:
    """Draws who owns which training examples: a column per client, a row per class.

    The area of a dot is proportional to the number of examples; only the largest hundredth of the
    dots fill or exceed their cell. Clients are sorted by planted group, if there is one (a
    color each), then by the class of which they own most, and wrapped into strips like lines
    of text. Of more than a thousand clients every so-many-th is drawn.

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
        results = ownership(results)
    if "train_examples" in results and "seed" in results["train_examples"].dims:
        results = results.isel(seed=0)
    counts = variable(results, "train_examples", ("client", "class"))
    counts = counts.transpose("client", "class").values
    group = results["group"].values if "group" in results else np.zeros(len(counts), int)
    clients = _sorted_clients(counts, group)
    strips, cell = _wrap(len(clients), counts.shape[1])
    columns = -(-len(clients) // strips)
    full, colors = np.percentile(counts[counts > 0], 99), _group_colors(group)
    # The inches beside the cells leave room for labels, titles and the legend.
    size = (max(columns * cell + 2.2, 4.5), strips * (counts.shape[1] + 1) * cell + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    for i, axes in enumerate(figure.subplots(strips, squeeze=False)[:, 0]):
        shown = clients[i * columns : (i + 1) * columns]
        diameters = 0.9 * np.sqrt(counts[shown] / full)
        _dots(axes, diameters, [colors[g] for g in group[shown]])
        axes.set_xlim(-0.5, columns - 0.5)
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
    shown = min(len(order), _MOST_CLIENTS_SHOWN)
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
    from matplotlib.ticker import MaxNLocator

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
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[:].set_color("0.8")
    axes.tick_params(length=2, labelsize=8)


def _describe(figure: Figure, counts: np.ndarray, num_shown: int, name: str) -> None:
    shown = f"{num_shown:,} of " if num_shown < len(counts) else ""
    text = f"{shown}{len(counts):,} clients, {counts.sum():,} training examples"
    figure.suptitle(words(name), x=0.01, ha="left")
    figure.axes[0].set_title(f"{text}, largest dot {counts.max():,}", loc="left", size=8)
    figure.supylabel("Class", size=10)


def _group_colors(group: np.ndarray) -> dict[Any, str]:
    return {g: COLORS[i % len(COLORS)] for i, g in enumerate(np.unique(group))}


def _group_legend(figure: Figure, colors: dict[Any, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, lw=0, marker="o") for color in colors.values()]
    figure.legend(
        handles, map(words, colors), loc="outside right upper", title="Group", frameon=False
    )


def _pool(values: xr.DataArray, round: int) -> np.ndarray:
    """Accuracies of all clients and seeds at a round, those without left out."""
    measured = values.dropna("round", how="all")
    chosen = measured.isel(round=-1) if round == -1 else values.sel(round=round)
    flat = chosen.values.ravel()
    return flat[~np.isnan(flat)]


def _boxes(axes: Axes, pooled: list[np.ndarray], names: list[str], styles: list[dict]) -> None:
    drawn = axes.boxplot(
        pooled,
        orientation="horizontal",
        tick_labels=names,
        whis=(10, 90),
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        widths=0.55,
        medianprops={"color": "black"},
        meanprops={
            "marker": "o",
            "markerfacecolor": "white",
            "markeredgecolor": "black",
            "markersize": 4,
        },
    )
    for box, style in zip(drawn["boxes"], styles, strict=True):
        box.set(facecolor=style["color"], alpha=0.6)
    axes.invert_yaxis()
