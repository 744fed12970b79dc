"""Pictures of results, and a page that holds them."""

from fedjax_fair.report import plots, selection
from fedjax_fair.report.page import page, standard_figures

__all__ = ["page", "plots", "selection", "standard_figures"]
