"""Analyses of methods: on a common reference, on unseen clients, of contributions and of fronts."""

from fedjax_fair.analysis.contributions import Contributions, contributions
from fedjax_fair.analysis.counterfactual import counterfactual
from fedjax_fair.analysis.fronts import Dominance, dominance, front, front_table
from fedjax_fair.analysis.round_contributions import approximate_contributions
from fedjax_fair.analysis.simulate import expected_parity, simulate
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen

__all__ = [
    "Contributions",
    "Dominance",
    "approximate_contributions",
    "contributions",
    "counterfactual",
    "dominance",
    "evaluate_unseen",
    "expected_parity",
    "front",
    "front_table",
    "has_global_model",
    "simulate",
    "undefined_unseen",
]
