"""The figures that every run gets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fedjax_fair.report import groups, plots, selection

if TYPE_CHECKING:
    from collections.abc import Callable

    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["standard_figures"]


class _Standard(NamedTuple):
    """A figure of all results that hold the variable it needs."""

    draw: Callable[[xr.Dataset], Figure]
    needs: str = "accuracy_mean_clients"


_FIGURES = {
    "learning_curves": _Standard(plots.learning_curves),
    "dissimilarity": _Standard(
        partial(plots.learning_curves, metric="client_dissimilarity"), "client_dissimilarity"
    ),
    "accuracy_distribution": _Standard(plots.accuracy_distribution, "test_accuracy"),
    "group_curves": _Standard(groups.group_curves, "group_accuracy"),
    "cluster_agreement": _Standard(groups.cluster_agreement, "aggregation_nmi"),
    "tradeoff": _Standard(selection.tradeoff, "client_dissimilarity"),
    "participation": _Standard(selection.participation, "cohort_clients"),
    "participation_lorenz": _Standard(selection.participation_lorenz, "participation"),
    "partition": _Standard(plots.partition, "train_examples"),
}


def standard_figures(dataset: xr.Dataset) -> dict[str, Figure]:
    """The figures that every run gets, by name.

    Args:
        dataset: Results of one or more methods.

    Returns:
        Learning curves, the distribution of accuracy over clients, who trained, and who owns what;
        where clients have planted groups, how these are served and whether they were found.
    """
    return {
        name: figure.draw(dataset) for name, figure in _FIGURES.items() if figure.needs in dataset
    }
