"""Analyses of methods on a common reference, and of models on unseen clients."""

from fedjax_fair.analysis.counterfactual import counterfactual
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen

__all__ = ["counterfactual", "evaluate_unseen", "has_global_model", "undefined_unseen"]
