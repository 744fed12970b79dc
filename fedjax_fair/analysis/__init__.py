"""Analyses of methods on a common reference, of models on unseen clients, and Pareto fronts."""

from fedjax_fair.analysis.counterfactual import counterfactual
from fedjax_fair.analysis.fronts import Dominance, dominance, front, front_table
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen

__all__ = [
    "Dominance",
    "counterfactual",
    "dominance",
    "evaluate_unseen",
    "front",
    "front_table",
    "has_global_model",
    "undefined_unseen",
]
