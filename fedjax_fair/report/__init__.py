"""Figures and HTML pages of results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fedjax_fair.report import device_plots, drawing, forest, groups, plots, selection
from fedjax_fair.report.analyses import attained, bias_gaps, contribution_bars, threshold_gaps
from fedjax_fair.report.page import page
from fedjax_fair.results.client_values import has_loss_gaps
from fedjax_fair.results.datasets import swept_settings
from fedjax_fair.results.task_metrics import primary

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = [
    "attained",
    "bias_gaps",
    "contribution_bars",
    "device_plots",
    "forest",
    "groups",
    "page",
    "plots",
    "selection",
    "standard_figures",
    "threshold_gaps",
]


def standard_figures(dataset: xr.Dataset) -> dict[str, Figure]:
    """Plots every standard figure whose variable has values in ``dataset``, by name."""
    quantity = primary(dataset)
    spread = partial(plots.learning_curves, metric=quantity.dissimilarity)
    figures: dict[str, tuple[str, Callable[..., Figure]]] = {
        "learning_curves": (quantity.mean, plots.learning_curves),
        "dissimilarity": (quantity.dissimilarity, spread),
        "distribution": (quantity.client, plots.distribution),
        "group_curves": (quantity.group, groups.group_curves),
        "device_curves": ("virtual_time", device_plots.device_curves),
        "cluster_agreement": ("aggregation_nmi", groups.cluster_agreement),
        "tradeoff": (quantity.dissimilarity, selection.tradeoff),
        "participation": ("cohort_clients", selection.participation),
        "participation_lorenz": ("participation", selection.participation_lorenz),
        "partition": ("train_examples", plots.partition),
    }
    if "algorithm" in dataset.dims and not swept_settings(dataset) and has_loss_gaps(dataset):
        figures["loss_gaps"] = ("test_loss", plots.loss_gap_distribution)
    return {
        name: draw(dataset)
        for name, (needed, draw) in figures.items()
        if drawing.is_known(dataset, needed)
    }
