"""Analyses of methods: on a common reference, on unseen clients, and of contributions."""

from fedjax_fair.analysis.contributions import Contributions, contributions
from fedjax_fair.analysis.counterfactual import counterfactual
from fedjax_fair.analysis.round_contributions import approximate_contributions
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen

__all__ = [
    "Contributions",
    "approximate_contributions",
    "contributions",
    "counterfactual",
    "evaluate_unseen",
    "has_global_model",
    "undefined_unseen",
]
