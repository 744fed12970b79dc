"""Figures and HTML pages of results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fedjax_fair.report import forest, groups, plots, selection
from fedjax_fair.report.page import page

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["forest", "groups", "page", "plots", "selection", "standard_figures"]

_dissimilarity = partial(plots.learning_curves, metric="client_dissimilarity")
_FIGURES: dict[str, tuple[str, Callable[..., Figure]]] = {
    "learning_curves": ("accuracy_mean_clients", plots.learning_curves),
    "dissimilarity": ("client_dissimilarity", _dissimilarity),
    "accuracy_distribution": ("test_accuracy", plots.accuracy_distribution),
    "group_curves": ("group_accuracy", groups.group_curves),
    "cluster_agreement": ("aggregation_nmi", groups.cluster_agreement),
    "tradeoff": ("client_dissimilarity", selection.tradeoff),
    "participation": ("cohort_clients", selection.participation),
    "participation_lorenz": ("participation", selection.participation_lorenz),
    "partition": ("train_examples", plots.partition),
}
"""Functions by name of the figure, with a variable that they need."""


def standard_figures(dataset: xr.Dataset) -> dict[str, Figure]:
    """Plots every standard figure whose variable is in ``dataset``, by name."""
    return {name: draw(dataset) for name, (needed, draw) in _FIGURES.items() if needed in dataset}
