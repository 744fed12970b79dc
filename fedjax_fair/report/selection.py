"""Figures of client selection: participation, representation, and their cost in accuracy."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedjax_fair.report.drawing import (
    COLORS,
    NOISE_FLOOR,
    by_method,
    escape_mathtext,
    is_percent,
    label,
    settings_of,
    style_axes,
    styles,
    to_percent,
)
from fedjax_fair.report.intervals import student

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["participation", "participation_lorenz", "selected_clients", "tradeoff"]

_MAX_IN_LEGEND = 12


def participation(results: xr.Dataset, seed: int | None = None) -> Figure:
    """Draws who trained in which round: a panel per method, a row per client, a column per round.

    Clients are sorted by how often they trained, most often at the top of each panel. Of several
    seeds the darkness is the share of those in which a client trained; where clients differ
    between seeds, a row is a place in the order of each.

    Args:
        results: Results of one or more methods.
        seed: One of the seeds, counted from 0; all by default.

    Returns:
        A figure.

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

    cohorts = by_method(results, "cohort_clients", ("seed", "training_round", "slot"))
    cohorts = cohorts.transpose("algorithm", "seed", "training_round", "slot")
    seeds = cohorts.sizes["seed"]
    if seed is not None and not 0 <= seed < seeds:
        raise ValueError(f"seed={seed!r}: expected one of {seeds} seeds from 0.")
    num_clients = results.sizes["client"]
    differ = "train_examples" in results and "seed" in results["train_examples"].dims
    methods = [str(method) for method in cohorts["algorithm"].values]
    figure = Figure(figsize=(7.0, 0.5 + 1.6 * len(methods)), layout="constrained")
    panels = figure.subplots(len(methods), 1, sharex=True, squeeze=False)[:, 0]
    for i, axes in enumerate(panels):
        runs = cohorts.values[i] if seed is None else cohorts.values[i, [seed]]
        trained = np.stack([_trained(run, num_clients) for run in runs])
        ever = (trained.sum(axis=2) > 0).sum(axis=1)
        if differ:
            trained = np.stack([_busiest_first(run) for run in trained])
        shares = _busiest_first(trained.mean(axis=0))
        colors = LinearSegmentedColormap.from_list("", ["#f4f4f4", styles(cohorts)[i]["color"]])
        axes.imshow(shares, cmap=colors, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        title = f"{escape_mathtext(methods[i])}: {ever.mean():.3g} of {num_clients} clients"
        axes.set_title(title + (", mean over seeds" if len(runs) > 1 else ""), loc="left", size=9)
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    figure.supxlabel("Communication round", size=10)
    figure.supylabel("Clients, by rounds they trained in", size=10)
    return figure


def participation_lorenz(results: xr.Dataset) -> Figure:
    """Draws how evenly training was shared out: Lorenz curves of participation, all seeds pooled.

    A curve gives the share of all participation that the least busy clients have; on the diagonal
    all clients trained equally often.

    Args:
        results: Results of one or more methods.

    Returns:
        A figure with the Gini index of every method in its legend.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> counts = (("seed", "round", "client"), np.array([[[1, 1, 2]]]))
        >>> results = xr.Dataset({"participation": counts}, {"round": [2]})
        >>> participation_lorenz(results).axes[0].lines[0].get_ydata().tolist()
        [0.0, 0.25, 0.5, 1.0]
    """
    from matplotlib.figure import Figure

    counts = by_method(results, "participation", ("seed", "round", "client"))
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, style in enumerate(styles(counts)):
        last = counts.isel(algorithm=i).dropna("round", how="all").isel(round=-1)
        # Each seed by itself, since a client is another one in every seed.
        ordered = np.sort(last.transpose("seed", "client").values, axis=1).astype(float)
        shares = np.insert(np.cumsum(ordered, axis=1), 0, 0.0, axis=1)
        curve = np.mean(shares / np.maximum(shares[:, -1:], 1), axis=0)
        places = np.linspace(0, 1, curve.size)
        gini = 1 - 2 * np.trapezoid(curve, places)
        name = str(last["algorithm"].item())
        axes.plot(places, curve, label=f"{escape_mathtext(name)} ({gini:.2f})", **style)
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    style_axes(axes)
    axes.set(
        xlabel="Fraction of clients, least busy first",
        ylabel="Their share of participation",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    axes.set_aspect("equal")
    figure.legend(
        loc="outside right upper", title="method (Gini index)", frameon=False, alignment="left"
    )
    return figure


def selected_clients(
    similarity: ArrayLike, clients: ArrayLike, group: ArrayLike | None = None
) -> Figure:
    """Draws a matrix of similarities, or distances, with the chosen clients marked on its edges.

    Args:
        similarity: ``[clients, clients]``.
        clients: Ids of the chosen clients.
        group: Something to sort clients by, for example the class they own most of.

    Returns:
        A figure.

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
        raise ValueError(f"similarity: expected a square matrix, got shape {matrix.shape}.")
    if selected.size and not (selected.min() >= 0 and selected.max() < size):
        raise ValueError(f"clients={selected.tolist()}: expected ids in [0, {size}).")
    order = np.argsort(np.zeros(size) if group is None else np.asarray(group), kind="stable")
    places = np.flatnonzero(np.isin(order, selected))
    figure = Figure(figsize=(5.6, 4.8), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(matrix[np.ix_(order, order)], cmap="viridis", interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8)
    # Marks lie just outside of the matrix, on its left and below it.
    outside = np.full(places.size, -0.025)
    mark = {"color": COLORS[1], "linestyle": "", "markersize": 6, "clip_on": False}
    axes.plot(places, outside, marker="^", transform=axes.get_xaxis_transform(), **mark)
    axes.plot(outside, places, marker=">", transform=axes.get_yaxis_transform(), **mark)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"{places.size} of {size} clients", loc="left")
    return figure


def tradeoff(
    results: xr.Dataset,
    across: str = "client_dissimilarity",
    up: str = "accuracy_mean_clients",
    average_last: int = 1,
) -> Figure:
    """Draws one metric against another, a point per method or point of a sweep.

    Both axes have one scale if both are in percent, and show ten points at least, so that chance
    does not look like an effect. What lies below the noise floor of dissimilarity is shaded.

    Args:
        results: Results of methods, or of a sweep.
        across: A metric over seeds and rounds.
        up: Another one.
        average_last: Evaluations to average over, from the last one back.

    Returns:
        A figure; points are means over seeds, bars their 95 % intervals. Of more than a dozen
        points of a sweep the legend has the methods alone.

    Raises:
        ValueError: If there is no such metric.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> both = (("seed", "round"), np.array([[0.1, 0.5], [0.1, 0.7]]))
        >>> results = xr.Dataset({"client_dissimilarity": both, "accuracy_mean_clients": both})
        >>> len(tradeoff(results).axes[0].containers)
        1
    """
    from matplotlib.figure import Figure

    pair = [by_method(results, name, ("seed", "round"), most=None) for name in (across, up)]
    names = [str(name) for name in pair[0]["algorithm"].values]
    looks, labels = styles(pair[0]), names
    if settings_of(results) and len(names) > _MAX_IN_LEGEND:
        methods = [name.partition(", ")[0] for name in names]
        first = {name: place for place, name in reversed(list(enumerate(methods)))}
        places = [sorted(first.values()).index(first[name]) for name in methods]
        looks = [looks[place] for place in places]
        labels = ["_" if first[name] != i else name for i, name in enumerate(methods)]
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, style in enumerate(looks):
        x, y = (student(_latest(values, i, average_last)) for values in pair)
        bars = {
            name: None if np.isnan(found.low) else float(found.mean - found.low)
            for name, found in (("xerr", x), ("yerr", y))
        }
        axes.errorbar(
            x.mean, y.mean, **bars, marker="o", capsize=2, label=escape_mathtext(labels[i]), **style
        )
    style_axes(axes)
    if all(map(is_percent, pair)):
        _honest_scale(axes)
    if across == "client_dissimilarity" and NOISE_FLOOR in results:
        floors = by_method(results, NOISE_FLOOR, ("seed", "round"), most=None)
        floor = np.nanmean([_latest(floors, i, average_last).mean() for i in range(len(names))])
        left, right = axes.get_xlim()
        axes.axvspan(left, float(np.clip(floor, left, right)), color="0.94", zorder=0)
        axes.set_xlim(left, right)
        axes.annotate("below the noise floor", (0, 1), (4, -4), "axes fraction", "offset points",
                      va="top", size=8, color="0.35")  # fmt: skip
    axes.set(xlabel=textwrap.fill(label(pair[0]), 44), ylabel=textwrap.fill(label(pair[1]), 36))
    axes.set_title(escape_mathtext(results.attrs.get("data", "")), loc="left")
    seeds = pair[0].sizes["seed"]
    title = f"mean of {seeds} seeds,\nbars: 95 % interval" if seeds > 1 else "one seed"
    figure.legend(loc="outside right upper", title=title, frameon=False, alignment="left")
    return figure


def _latest(values: xr.DataArray, method: int, average_last: int) -> np.ndarray:
    """One number a seed: the mean of the last evaluations."""
    runs = to_percent(values).transpose("algorithm", "seed", "round").isel(algorithm=method)
    return runs.dropna("round", how="all")[..., -average_last:].mean("round").values


def _honest_scale(axes: Axes) -> None:
    """As many points on one axis as on the other, ten or more."""
    limits = axes.get_xlim(), axes.get_ylim()
    span = max(10.0, *(high - low for low, high in limits))
    for set_limits, (low, high) in zip((axes.set_xlim, axes.set_ylim), limits, strict=True):
        start = (low + high - span) / 2
        start = min(max(start, 0.0), max(100.0 - span, 0.0))
        set_limits(start, start + span)
    axes.set_aspect("equal")


def _busiest_first(trained: np.ndarray) -> np.ndarray:
    return trained[np.argsort(-trained.sum(axis=1), kind="stable")]


def _trained(cohorts: np.ndarray, num_clients: int) -> np.ndarray:
    """Participation, ``[clients, rounds]``; ids below 0 or NaN stand for an empty slot."""
    rounds, slots = np.nonzero(np.nan_to_num(cohorts, nan=-1) >= 0)
    trained = np.zeros((num_clients, cohorts.shape[0]), int)
    trained[cohorts[rounds, slots].astype(int), rounds] = 1
    return trained
