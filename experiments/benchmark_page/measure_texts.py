"""Explanations of measures, and reasons for missing values."""

from __future__ import annotations

from fedjax_fair.benchmark.measure_labels import GROUPS

__all__ = ["ABOUT", "missing"]

ABOUT = {
    "accuracy": "mean over clients",
    "worst_10pct": "mean over the 10% least accurate clients",
    "standard_deviation": "standard deviation of accuracy over clients",
    "noise_floor": "SD if all clients were equally accurate, by finite test sets",
    "dissimilarity": "mean difference of two clients",
    "gini": "Gini index of accuracies of clients",
    "loss": "mean over clients",
    "worse_than_local_converged": (
        "clients with lower accuracy than with own training until convergence"
    ),
    "worse_than_fine_tuned": "clients with lower accuracy than with the fine-tuned model of fedavg",
    "loss_gap_maximum": "largest loss of a client less its loss with local_converged",
    "loss_gap_standard_deviation": "over clients, of losses less those with local_converged",
    "unseen_accuracy": "global model on clients that never trained",
    "unseen_worst_10pct": "global model on clients that never trained",
    "adapted_accuracy": "after local steps on the unseen client",
    "adapted_worst_10pct": "after local steps on the unseen client",
    "demographic_parity_difference": "largest difference of two groups, all clients together",
    "equal_opportunity_difference": "largest difference of two groups, all clients together",
    "client_demographic_parity_difference": "mean of the differences within clients",
    "client_equal_opportunity_difference": "mean of the differences within clients",
    "megabytes_up": "all clients, whole training",
    "megabytes_down": "all clients, whole training",
    "rounds_to_target": "until the stated mean accuracy",
    "megabytes_to_target": "of all clients until the stated mean accuracy",
    "relative_compute": "floating-point operations in products of training, of clients and server",
    "trained_share": "of methods that train a part of the network",
}
"""What each measure is."""


def missing(measure: str) -> str:
    """Returns the reason of a missing value."""
    if measure.startswith(("worse_than_", "loss_gap_")):
        return "the reference was not run"
    if measure in GROUPS["unseen clients"]:
        return "the federation has no unseen clients, or the method has no such model"
    if measure in GROUPS["group fairness"]:
        return "the federation has no sensitive feature"
    if measure == "trained_share":
        return "the whole network is trained"
    return "the target was not reached" if measure.endswith("_to_target") else "not measured"
