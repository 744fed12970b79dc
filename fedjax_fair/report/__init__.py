"""Pictures of results, and a page that holds them."""

from fedjax_fair.report import plots
from fedjax_fair.report.page import page, standard_figures

__all__ = ["page", "plots", "standard_figures"]
