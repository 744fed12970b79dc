"""Figures of client selection: participation, selected clients, accuracy against fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_fair.report import drawing
from fedjax_fair.results.datasets import swept_settings
from fedjax_fair.results.formats import student
from fedjax_fair.results.task_metrics import primary

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["participation", "participation_lorenz", "selected_clients", "tradeoff"]

_MAX_IN_LEGEND = 12


def participation(results: xr.Dataset, seed: int | None = None) -> Figure:
    """Plots participation: a panel per method, a row per client, a column per round.

    Clients are sorted by number of rounds. Darkness is the share of seeds in which a client
    trained; if partitions differ between seeds, a row is a rank instead of a client.

    Args:
        results: Results of one or more methods.
        seed: Index of a seed; by default all.

    Raises:
        ValueError: If there is no such seed.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> clients = (("seed", "training_round", "slot"), np.array([[[0, 1], [1, 2]]]))
        >>> participated = (("seed", "round", "client"), np.array([[[1, 2, 1]]]))
        >>> results = xr.Dataset({"cohort_clients": clients, "participation": participated})
        >>> np.asarray(participation(results).axes[0].images[0].get_array()).tolist()
        [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    cohorts = drawing.by_method(results, "cohort_clients", ("seed", "training_round", "slot"))
    num_methods, seeds = cohorts.sizes["algorithm"], cohorts.sizes["seed"]
    if seed is not None and not 0 <= seed < seeds:
        raise ValueError(
            f"seed={seed!r}: expected an index of one of the {seeds} seeds, from 0; pass None for "
            "all seeds."
        )
    num_clients = results.sizes["client"]
    differ = "train_examples" in results and "seed" in results["train_examples"].dims
    figure = Figure(figsize=(7.0, 0.5 + 1.6 * num_methods), layout="constrained")
    panels = figure.subplots(num_methods, 1, sharex=True, squeeze=False)[:, 0]
    for axes, method, look in zip(panels, cohorts, drawing.styles(cohorts), strict=True):
        runs = method.values if seed is None else method.values[[seed]]
        trained = np.stack([_trained(run, num_clients) for run in runs])
        ever = (trained.sum(axis=2) > 0).sum(axis=1)
        if differ:
            trained = np.stack([_most_frequent_first(run) for run in trained])
        shares = _most_frequent_first(trained.mean(axis=0))
        colors = LinearSegmentedColormap.from_list("", ["#f4f4f4", look["color"]])
        place = (0.5, shares.shape[1] + 0.5, len(shares), 0)  # The first round is 1.
        axes.imshow(shares, cmap=colors, vmin=0, vmax=1, aspect="auto", interpolation="nearest",
                    extent=place)  # fmt: skip
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        title = f"{look['label']}: {ever.mean():.3g} of {num_clients} clients"
        axes.set_title(title + (", mean over seeds" if len(runs) > 1 else ""), loc="left", size=9)
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    figure.supxlabel("Communication round", size=10)
    figure.supylabel("Clients, by number of rounds", size=10)
    return figure


def _most_frequent_first(trained: np.ndarray) -> np.ndarray:
    return trained[np.argsort(-trained.sum(axis=1), kind="stable")]


def _trained(cohorts: np.ndarray, num_clients: int) -> np.ndarray:
    """Participation, ``[clients, rounds]``; negative ids and NaN are empty slots."""
    rounds, slots = np.nonzero(np.nan_to_num(cohorts, nan=-1) >= 0)
    trained = np.zeros((num_clients, cohorts.shape[0]), int)
    trained[cohorts[rounds, slots].astype(int), rounds] = 1
    return trained


def participation_lorenz(results: xr.Dataset) -> Figure:
    """Plots Lorenz curves of participation, mean over seeds.

    The legend has the Gini index of each method.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> counts = (("seed", "round", "client"), np.array([[[1, 1, 2]]]))
        >>> results = xr.Dataset({"participation": counts}, {"round": [2]})
        >>> participation_lorenz(results).axes[0].lines[0].get_ydata().tolist()
        [0.0, 0.25, 0.5, 1.0]
    """
    counts = drawing.by_method(results, "participation", ("seed", "round", "client"))
    figure, axes = drawing.single_axes(4.2)
    for method, look in zip(counts, drawing.styles(counts), strict=True):
        last = method.dropna("round", how="all").isel(round=-1).values
        ordered = np.sort(last, axis=1).astype(float)
        shares = np.insert(np.cumsum(ordered, axis=1), 0, 0.0, axis=1)
        curve = np.mean(shares / np.maximum(shares[:, -1:], 1), axis=0)
        gini = np.mean(drawing.gini_indices(last))
        look["label"] += f" ({gini:.2f})"
        axes.plot(np.linspace(0, 1, curve.size), curve, **look)
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    drawing.style_axes(axes)
    axes.set(
        xlabel="Fraction of clients, least frequent first",
        ylabel="Their share of participation",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
    drawing.add_legend(figure, "method (Gini index)")
    return figure


def selected_clients(
    similarity: ArrayLike, clients: ArrayLike, group: ArrayLike | None = None
) -> Figure:
    """Plots a matrix of similarities or distances, with selected clients marked on its edges.

    Args:
        similarity: Array ``[clients, clients]``.
        clients: Ids of the selected clients.
        group: A sort key per client, for example its most frequent class.

    Raises:
        ValueError: If the matrix is not square or a client is not in it.

    Examples:
        >>> figure = selected_clients([[0.0, 1.0], [1.0, 0.0]], [1])
        >>> figure.axes[0].get_title(loc="left")
        '1 of 2 clients'
    """
    from matplotlib.figure import Figure

    matrix, selected = np.asarray(similarity), np.asarray(clients)
    size = matrix.shape[0]
    if matrix.shape != (size, size):
        raise ValueError(
            f"similarity: expected a square matrix, got shape {matrix.shape}; pass one row and one "
            "column per client."
        )
    if selected.size and not (selected.min() >= 0 and selected.max() < size):
        raise ValueError(
            f"clients={selected.tolist()}: expected ids in [0, {size}); pass ids of rows of "
            "similarity."
        )
    order = np.argsort(np.zeros(size) if group is None else np.asarray(group), kind="stable")
    places = np.flatnonzero(np.isin(order, selected))
    figure = Figure(figsize=(5.6, 4.8), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(matrix[np.ix_(order, order)], cmap="viridis", interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8)
    # Marks are just outside of the matrix, on its left and below it.
    outside = np.full(places.size, -0.025)
    mark = {"color": drawing.COLORS[1], "linestyle": "", "markersize": 6, "clip_on": False}
    axes.plot(places, outside, marker="^", transform=axes.get_xaxis_transform(), **mark)
    axes.plot(outside, places, marker=">", transform=axes.get_yaxis_transform(), **mark)
    axes.set(xticks=[], yticks=[])
    axes.set_title(f"{places.size} of {size} clients", loc="left")
    return figure


def tradeoff(
    results: xr.Dataset,
    across: str | None = None,
    up: str | None = None,
    average_last: int = 1,
) -> Figure:
    """Plots one metric against another, a point per method or configuration of a sweep.

    Axes in percent have the same scale. Dissimilarities below the noise floor are shaded.

    Args:
        results: Results of methods, or of a sweep.
        across: Horizontal metric; by default the dissimilarity over clients of what the results
            measure (`fedjax_fair.results.task_metrics.primary`).
        up: Vertical metric; by default its mean over clients.
        average_last: Number of last evaluations to average.

    Raises:
        ValueError: If there is no such metric.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> both = (("seed", "round"), np.array([[0.1, 0.5], [0.1, 0.7]]))
        >>> results = xr.Dataset({"client_dissimilarity": both, "accuracy_mean_clients": both})
        >>> len(tradeoff(results).axes[0].containers)
        1
    """
    quantity = primary(results)
    across, up = across or quantity.dissimilarity, up or quantity.mean
    pair = [
        drawing.to_percent(drawing.by_method(results, name, ("seed", "round"), num_best=None))
        for name in (across, up)
    ]
    looks = drawing.styles(pair[0])
    if swept_settings(results) and len(looks) > _MAX_IN_LEGEND:
        methods = [look["label"].partition(", ")[0] for look in looks]
        looks = [
            looks[list(dict.fromkeys(methods)).index(name)]
            | {"label": name if methods.index(name) == i else "_"}
            for i, name in enumerate(methods)
        ]
    figure, axes = drawing.single_axes(4.2, results)
    for runs, look in zip(zip(*pair, strict=True), looks, strict=True):
        last = [v.dropna("round", how="all")[:, -average_last:].mean("round") for v in runs]
        if not all(value.notnull().any() for value in last):
            continue
        (x, left, _), (y, bottom, _) = (student(values) for values in last)
        has_bars = runs[0].sizes["seed"] > 1
        settings: dict[str, Any] = look | (
            {"xerr": x - left, "yerr": y - bottom} if has_bars else {}
        )
        axes.errorbar(x, y, marker="o", capsize=2, **settings)
    drawing.style_axes(axes)
    if all(map(drawing.is_percent, pair)):
        _equal_scale(axes)
    floors = drawing.dissimilarity_floors(results)
    if across == quantity.dissimilarity and not np.isnan(floors).all():
        left, right = axes.get_xlim()
        floor = float(np.nanmean(floors))
        if floor > left:  # Otherwise the floor is off the axis, and no point is below it.
            axes.axvspan(left, min(floor, right), color="0.94", zorder=0)
            axes.set_xlim(left, right)
            drawing.annotate(axes, "below the noise floor", (0, 1), right=False)
    axes.set(xlabel=drawing.label(pair[0], 44), ylabel=drawing.label(pair[1], 36))
    drawing.add_legend(figure, drawing.about_seeds(pair[0], "bars"))
    return figure


def _equal_scale(axes: Axes) -> None:
    """Makes both axes span equally many points, at least 10, within 0 to 100."""
    limits = axes.get_xlim(), axes.get_ylim()
    span = max(10.0, *(high - low for low, high in limits))
    for set_limits, (low, high) in zip((axes.set_xlim, axes.set_ylim), limits, strict=True):
        start = (low + high - span) / 2
        start = min(max(start, 0.0), max(100.0 - span, 0.0))
        set_limits(start, start + span)
    axes.set_aspect("equal")
