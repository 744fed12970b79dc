"""Analyses of methods on a common reference."""

from fedjax_fair.analysis.counterfactual import counterfactual

__all__ = ["counterfactual"]
