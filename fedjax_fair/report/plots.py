"""Figures of learning curves, of values over clients, of the partition and of selected items.

Functions of ``results`` take the Dataset of one or more methods (`fedjax_fair.results`), and return
a figure without global state, in which a method has the same color as in the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_fair.data import FederatedData
from fedjax_fair.metrics.quantities import Quantity
from fedjax_fair.report import drawing
from fedjax_fair.results import loss_gaps, partition_dataset
from fedjax_fair.results.datasets import class_names, has_client_names
from fedjax_fair.results.task_metrics import primary
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "distribution",
    "learning_curves",
    "loss_gap_distribution",
    "partition",
    "representatives",
]

_MAX_CLIENTS = 1000
_MAX_NUMBERED = 30
_LEVELS = (
    "accuracy_mean_clients",
    "accuracy_mean_examples",
    "accuracy_minimum",
    "accuracy_worst_10pct",
    "accuracy_best_10pct",
)


def learning_curves(results: xr.Dataset, metric: str | None = None) -> Figure:
    """Plots a variable over seeds and rounds, one line per method, with 95% intervals.

    Lines begin where methods differ. Noise floors of the final dissimilarity are dotted.

    Args:
        results: Results of one or more methods.
        metric: Name of the variable; by default the mean over clients of what the results measure
            (`fedjax_fair.results.task_metrics.primary`), such as the accuracy.

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
    quantity = primary(results)
    metric = metric or quantity.mean
    values = drawing.to_percent(drawing.by_method(results, metric, ("seed", "round")))
    values, looks = drawing.after_first_difference(values), drawing.styles(values)
    figure, axes = drawing.single_axes(3.8, results)
    drawing.draw_curves(axes, values, looks)
    if metric in _LEVELS and values.notnull().any():
        _stretch_towards_100(axes, values)
    if metric == quantity.dissimilarity:
        floors = drawing.dissimilarity_floors(results)
        for floor, look in zip(floors, looks, strict=False):
            axes.axhline(floor, color=look["color"], linestyle=(0, (1, 3)), linewidth=1.2)
        if floors.size and values.notnull().any():
            drawing.annotate(axes, "dotted: noise floor of finite test sets", (1, 1))
        axes.set_ylim(bottom=0)
    axes.set(xlabel="Communication round", ylabel=drawing.label(values, 36))
    axes.margins(x=0.02)
    drawing.add_legend(figure, drawing.about_seeds(values, "band"))
    return figure


def _stretch_towards_100(axes: Axes, values: xr.DataArray) -> None:
    """Makes the axis logarithmic in the distance from 100%, where accuracies are close together."""
    means = values.mean("seed").values
    missing = max(0.6 * (100 - float(np.nanmax(means))), 0.05)
    low = float(np.nanmin(means))

    def forward(accuracy: Any) -> np.ndarray:
        return -np.log10(np.maximum(100 - np.asarray(accuracy, float), missing))

    axes.set_yscale("function", functions=(forward, lambda stretched: 100 - 10 ** (-stretched)))
    axes.set_ylim(max(low - 0.15 * (100 - low), 0), 100 - missing)
    ticks = np.array([0, 20, 40, 60, 70, 80, 85, 90, 92, 94, 95, 96, 97, 98, 98.5, 99, 99.5, 99.8])
    ticks = ticks[(ticks >= axes.get_ylim()[0]) & (ticks <= 100 - missing)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def distribution(results: xr.Dataset, round: int = -1) -> Figure:
    """Plots the distribution over clients of what they are measured by, pooled over seeds.

    Steeper is fairer; further right is more accurate, or has larger errors. A dot marks the end of
    the worst 10%.

    Args:
        results: Results of one or more methods.
        round: An evaluated round, or -1 for the last of each method.

    Raises:
        ValueError: If ``round`` was not evaluated.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> accuracy = (("seed", "round", "client"), np.array([[[0.25, 0.5, 0.75, 1.0]]]))
        >>> results = xr.Dataset({"test_accuracy": accuracy}, {"round": [10]})
        >>> distribution(results).axes[0].lines[0].get_xdata()[1:].tolist()
        [25.0, 50.0, 75.0, 100.0]
    """
    quantity = primary(results)
    values = drawing.by_method(results, quantity.client, ("seed", "round", "client"))
    rounds = values["round"].values
    if round != -1 and round not in rounds:
        raise ValueError(
            f"round={round!r}: expected -1 or one of {rounds.tolist()}; evaluate more often "
            "(eval_every) to have other rounds."
        )
    return _distribution(drawing.to_percent(values), quantity, results, round)


def loss_gap_distribution(results: xr.Dataset) -> Figure:
    """Plots the distribution over clients of the last loss gaps, pooled over seeds.

    Steeper is fairer; further left is closer to what clients reach alone. A dot marks the start of
    the worst 10%.

    Args:
        results: Results for `fedjax_fair.results.loss_gaps`.

    Raises:
        ValueError: As for `fedjax_fair.results.loss_gaps`.

    Examples:
        >>> import xarray as xr
        >>> dims = ("algorithm", "seed", "round", "client")
        >>> losses = [[[[1.0, 0.8, 2.0]]], [[[0.4, 0.5, 0.9]]]]
        >>> names = {"algorithm": ["fedavg", "local_converged"], "round": [100]}
        >>> figure = loss_gap_distribution(xr.Dataset({"test_loss": (dims, losses)}, names))
        >>> figure.axes[0].lines[0].get_xdata()[1:].round(1).tolist()
        [0.3, 0.6, 1.1]
    """
    gaps = loss_gaps(results)["loss_gap"].transpose("algorithm", "seed", "round", "client")
    unit = gaps.attrs["units"]
    quantity = Quantity("loss_gap", "loss gap", "lower", "Loss gap", unit)
    return _distribution(gaps, quantity, results)


def _distribution(
    values: xr.DataArray, quantity: Quantity, results: xr.Dataset, round: int = -1
) -> Figure:
    """Plots values ``[algorithm, seed, round, client]``; of methods without values, nothing."""
    tenth = 0.1 if quantity.better == "higher" else 0.9
    figure, axes = drawing.single_axes(3.8)
    for method, look in zip(values, drawing.styles(values), strict=True):
        evaluated = method.dropna("round", how="all")
        # Of a method without a value, no round is left.
        shown = evaluated.isel(round=slice(-1, None)) if round == -1 else method.sel(round=round)
        pooled = np.sort(shown.values[~np.isnan(shown.values)])
        if pooled.size:
            axes.ecdf(pooled, **look)
            num_worst = -(-pooled.size // 10)
            worst = pooled[num_worst - 1 if tenth < 0.5 else -num_worst]
            axes.plot(worst, tenth, marker="o", linestyle="", color=look["color"], zorder=3)
    low = 0 if tenth < 0.5 else tenth
    axes.axhspan(low, low + 0.1, color="0.93", zorder=0)
    drawing.annotate(axes, "worst 10%", (1, low + 0.1))
    drawing.style_axes(axes)
    heading = drawing.escape_mathtext(quantity.heading)
    axes.set(
        xlabel=drawing.label(values), ylabel=f"Share of clients with at most this {heading} (%)"
    )
    axes.set(ylim=(0, 1), yticks=np.linspace(0, 1, 6), yticklabels=range(0, 101, 20))
    parts = results.attrs.get("data", ""), "last round" if round == -1 else f"round {round}"
    axes.set_title(", ".join(drawing.escape_mathtext(part) for part in parts if part), loc="left")
    drawing.add_legend(figure)
    return figure


def partition(results: xr.Dataset | FederatedData) -> Figure:
    """Plots the number of training examples per client (columns) and class (rows).

    Examples with targets are in one row. The area of a dot is proportional to the number. At most
    1,000 clients are shown, sorted by ground-truth group and most frequent class.

    Args:
        results: A federated dataset, or results, of which the first partition is shown.

    Raises:
        ValueError: If ``train_examples`` is missing.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> counts = (("client", "class"), np.array([[0, 9], [4, 0], [1, 1]]))
        >>> axes = partition(xr.Dataset({"train_examples": counts})).axes[0]
        >>> len(axes.collections[0].get_offsets())  # One dot per client and class it owns.
        4
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    if isinstance(results, FederatedData):
        results = partition_dataset(results)
    if "train_examples" in results and "seed" in results["train_examples"].dims:
        results = results.isel(seed=0)
    counts = drawing.variable(results, "train_examples", ("client", "class"))
    counts = counts.transpose("client", "class").values
    has_groups = "group" in results
    group = results["group"].values if has_groups else np.zeros(len(counts), int)
    clients = _sorted_clients(counts, group)
    strips, cell = _wrap(len(clients), counts.shape[1])
    columns = -(-len(clients) // strips)
    colors = {
        name: drawing.COLORS[i % len(drawing.COLORS)] for i, name in enumerate(np.unique(group))
    }
    # The inches beside the cells leave room for labels, titles and the legend.
    size = (max(columns * cell + 2.2, 4.5), strips * (counts.shape[1] + 1) * cell + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    for i, axes in enumerate(figure.subplots(strips, squeeze=False)[:, 0]):
        shown = clients[i * columns : (i + 1) * columns]
        diameters = 0.9 * np.sqrt(counts[shown] / counts.max())
        names = class_names(results)
        _dots(axes, diameters, [colors[name] for name in group[shown]], names)
        axes.set_xlim(-0.5, columns - 0.5)
        axes.tick_params(length=2, labelsize=min(8, 65 * cell))  # There are 72 points per inch.
        if len(clients) <= 40:
            if has_client_names(results):
                names = map(drawing.escape_mathtext, results["client"].values[shown])
                axes.set_xticks(range(len(shown)), [*names], size=7, rotation=90)
            else:
                axes.set_xticks(range(len(shown)), shown, size=7)
    thinned = f"{len(clients):,} of " if len(clients) < len(counts) else ""
    text = f"{thinned}{len(counts):,} clients, {counts.sum():,} training examples"
    figure.suptitle(drawing.escape_mathtext(results.attrs.get("data", "")), x=0.01, ha="left")
    figure.axes[0].set_title(f"{text}, largest dot {counts.max():,}", loc="left", size=8)
    if counts.shape[1] > 1:
        figure.supylabel("Class", size=10)
    keys = ["group"] * has_groups + ["most frequent class"] * (counts.shape[1] > 1)
    order = f", sorted by {' and '.join(keys)}" if keys else ""
    figure.supxlabel(f"Clients{order}", size=10)
    if has_groups:
        handles = [Line2D([], [], color=color, lw=0, marker="o") for color in colors.values()]
        drawing.add_legend(
            figure, "Group", handles=handles, labels=map(drawing.escape_mathtext, colors)
        )
    return figure


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

    places, names = _principal_coordinates(rows)
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


def _sorted_clients(counts: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Ids of the clients to draw, in drawing order."""
    share = counts.max(1) / np.maximum(counts.sum(1), 1)
    order = np.lexsort((-share, counts.argmax(1), group))
    num_shown = min(len(order), _MAX_CLIENTS)
    return order[np.linspace(0, len(order) - 1, num_shown).astype(int)]


def _wrap(num_clients: int, num_classes: int) -> tuple[int, float]:
    """Number of strips and cell size in inches, for the largest cells on a 9 x 8 inch page."""
    strips = np.arange(1, num_clients + 1)
    width, height = 9.0 / np.ceil(num_clients / strips), 8.0 / (strips * (num_classes + 1))
    cell = np.minimum(np.minimum(width, height), 0.25)
    best = int(cell.argmax())
    return best + 1, float(cell[best])


def _dots(axes: Axes, diameters: np.ndarray, colors: list[str], names: list[str] | None) -> None:
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
    classes = diameters.shape[1]
    axes.set(aspect="equal", ylim=(classes - 0.5, -0.5), xticks=[])
    ticks = range(0, classes, 1 if classes <= 30 else 10) if classes > 1 else []
    labels = [str(tick) if names is None else names[tick] for tick in ticks]
    axes.set_yticks(ticks, [drawing.escape_mathtext(label) for label in labels])
    axes.spines[:].set_color("0.8")


def _principal_coordinates(rows: np.ndarray) -> tuple[np.ndarray, tuple[str, str]]:
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
