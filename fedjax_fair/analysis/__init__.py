"""Analyses of methods: on a common reference, on unseen clients, of contributions and of fronts.

`post_process` fits thresholds of clients and sensitive groups to trained models.
"""

from fedjax_fair.analysis.contributions import Contributions, contributions
from fedjax_fair.analysis.counterfactual import counterfactual
from fedjax_fair.analysis.fronts import Dominance, dominance, front, front_table
from fedjax_fair.analysis.post_processing import (
    PostProcessed,
    group_rates_table,
    post_process,
    post_processing_table,
)
from fedjax_fair.analysis.round_contributions import approximate_contributions
from fedjax_fair.analysis.simulate import expected_parity, simulate
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen

__all__ = [
    "Contributions",
    "Dominance",
    "PostProcessed",
    "approximate_contributions",
    "contributions",
    "counterfactual",
    "dominance",
    "evaluate_unseen",
    "expected_parity",
    "front",
    "front_table",
    "group_rates_table",
    "has_global_model",
    "post_process",
    "post_processing_table",
    "simulate",
    "undefined_unseen",
]
