"""Figures and HTML pages of results."""

from fedjax_fair.report import groups, plots, selection
from fedjax_fair.report.page import page
from fedjax_fair.report.standard import standard_figures

__all__ = ["groups", "page", "plots", "selection", "standard_figures"]
