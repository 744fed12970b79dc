"""Definitions of all metrics and of the terms in tables, for a terminal and for docs/metrics.md."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from fedjax_fair.metrics.noise import OF_SPREAD
from fedjax_fair.metrics.people_definitions import OF_PEOPLE, SECTION
from fedjax_fair.metrics.sensitive import DIFFERENCES, PEOPLE_SUMMARIES
from fedjax_fair.metrics.summaries import GROUP_SUMMARIES, SEQUENCE_SUMMARIES, SUMMARIES
from fedjax_fair.roles import Metric

__all__ = ["HINT", "SYMBOLS", "TERMS", "columns", "page"]

SYMBOLS = (
    "Client i of m clients has test accuracy a_i, test loss l_i and n_i test examples, training "
    "loss t_i and k_i training examples, and trained r_i times, once per slot of a cohort. p is "
    "the accuracy on the pooled test examples, A_g and L_g are the means of a_i and l_i over the "
    "clients of group g. People of group u, by sensitive features, have selection rate S_u, true "
    "positive rate T_u, false positive rate F_u, accuracy C_u, mean loss M_u and calibration error "
    "E_u; these are of pooled people, or of client i with an index i."
)


class _Details(NamedTuple):
    formula: str
    range: str
    better: str = "-"
    source: str = ""


_FAIR_ALLOCATION = "Li et al., 2020, https://arxiv.org/abs/1905.10497"
_EQUITABLE = "Equitable Federated Learning with Activation Clustering"
_DETAILS = {
    "accuracy_mean_clients": _Details("sum_i a_i / m", "0 to 1", "higher"),
    "accuracy_mean_examples": _Details("p = sum_i n_i a_i / sum_i n_i", "0 to 1", "higher"),
    "accuracy_minimum": _Details("min_i a_i", "0 to 1", "higher"),
    "accuracy_worst_10pct": _Details(
        "mean of the ceil(m / 10) smallest a_i", "0 to 1", "higher", _FAIR_ALLOCATION
    ),
    "accuracy_best_10pct": _Details("mean of the ceil(m / 10) largest a_i", "0 to 1", "higher"),
    "accuracy_standard_deviation": _Details("sqrt(sum_i (a_i - mean)^2 / m)", "0 to 0.5", "lower"),
    "sigma_acc": _Details("sqrt(sum_i (a_i - p)^2 / m)", "0 to 1", "lower", _EQUITABLE),
    "client_dissimilarity": _Details(
        "mean of abs(a_i - a_j) over pairs i < j",
        "0 to 1",
        "lower",
        "Submodular Maximization Approaches for Equitable Client Selection in Federated Learning",
    ),
    "client_dissimilarity_noise": _Details(
        "2 sqrt(mean_i(a_i (1 - a_i) / (n_i - 1)) / pi)", ">= 0"
    ),
    "accuracy_gini": _Details(
        "sum_i sum_j abs(a_i - a_j) / (2 m sum_i a_i)", "0 to 1 - 1 / m", "lower"
    ),
    "accuracy_jain_index": _Details(
        "(sum_i a_i)^2 / (m sum_i a_i^2)",
        "1 / m to 1",
        "higher",
        "Jain et al., 1984, https://arxiv.org/abs/cs/9809099",
    ),
    "accuracy_entropy": _Details(
        "-sum_i s_i log(s_i) with s_i = a_i / sum_j a_j",
        "0 to log(m)",
        "higher",
        _FAIR_ALLOCATION,
    ),
    "test_loss_mean_clients": _Details("sum_i l_i / m", ">= 0", "lower"),
    "test_loss_mean_examples": _Details("sum_i n_i l_i / sum_i n_i", ">= 0", "lower"),
    "train_loss_mean_clients": _Details("sum_i t_i / m", ">= 0", "lower"),
    "train_loss_mean_examples": _Details("sum_i k_i t_i / sum_i k_i", ">= 0", "lower"),
    "client_disagreement": _Details(
        "mean of abs(l_i - l_j) over pairs of participants", ">= 0", "lower", _EQUITABLE
    ),
    "participation_gini": _Details(
        "sum_i sum_j abs(r_i - r_j) / (2 m sum_i r_i)", "0 to 1 - 1 / m", "lower"
    ),
    "num_clients_participated": _Details("number of clients with r_i > 0", "0 to m", "higher"),
    "group_accuracy_minimum": _Details("min_g A_g", "0 to 1", "higher"),
    "group_accuracy_gap": _Details("max_g A_g - min_g A_g", "0 to 1", "lower"),
    "group_sigma_acc": _Details(
        "sqrt(sum_i (A_g(i) - p)^2 / m) with g(i) the group of i", "0 to 1", "lower", _EQUITABLE
    ),
    "group_loss_gap": _Details("max_g L_g - min_g L_g", ">= 0", "lower"),
    "perplexity_pooled": _Details("exp(sum_i n_i l_i / sum_i n_i)", ">= 1", "lower"),
    "perplexity_mean_clients": _Details("sum_i exp(l_i) / m", ">= 1", "lower"),
    "perplexity_worst_10pct": _Details(
        "mean of the ceil(m / 10) largest exp(l_i)", ">= 1", "lower"
    ),
} | {name: _Details(*details) for name, details in OF_PEOPLE.items()}
_METRICS = SUMMARIES + GROUP_SUMMARIES + SEQUENCE_SUMMARIES + PEOPLE_SUMMARIES

TERMS = {
    "clients": (
        "all clients with test examples, whether they participate or not; Byzantine clients are "
        "included."
    ),
    "accuracy": "accuracy_mean_clients: clients count equally, whatever their number of examples.",
    "worst 10%": "accuracy_worst_10pct: a mean over clients of each run, then over seeds.",
    "dissimilarity": "client_dissimilarity: expected difference in accuracy of two random clients.",
    "dispersion": (
        "accuracy_standard_deviation, over clients and not over seeds. sigma_acc^2 = dispersion^2 "
        "+ (accuracy - p)^2, so that both are equal for test sets of equal size."
    ),
    "group g": "A_g, for ground-truth groups of the data; methods do not know them.",
    "gap of groups": "group_accuracy_gap, also gap: best group less worst group.",
    "validation": (
        "validation_accuracy_mean_clients. Each metric of test examples exists for validation "
        "examples, which are held out of training examples; except those of groups of people."
    ),
    "(personalized)": (
        "Row of the personalized models of a method: each client is measured with its own model. "
        "The row without it is of the global model; methods without one have no such row. Global "
        "models are compared with global ones, personalized with personalized ones, and with a "
        "method that has none, the models that serve the clients. A sweep shows and ranks the "
        "models that serve the clients. Results have the prefix personalized_."
    ),
    "class-based": (
        "With a_i replaced by sum_c s_ic b_c: s_ic is the share of class c in the test examples "
        "of client i, b_c the accuracy on all test examples of class c. Same expectation, less "
        "noise; used if clients differ only in labels and no method has personalized models."
    ),
    "noise floor": (
        "Mean of a metric over random test sets (binomial, sizes of the data) if all clients had "
        "the accuracy p of the method. A spread that is not above it is no evidence of unfairness. "
        "For groups of people: the difference expected from finite groups if all had equal rates; "
        "only in the tables 'Group fairness by ...' of `run` and `show`."
    ),
    "mean ± half": (
        "Mean over s seeds ± t d / sqrt(s), half of its 95% confidence interval: d is the "
        "standard deviation over seeds (divided by s - 1), t the 97.5% quantile of Student's t "
        "with s - 1 degrees of freedom."
    ),
    "difference": (
        "Mean over seeds of the method less the baseline, of the same seeds where paired; 95% "
        "confidence intervals of Student's t and of the bootstrap."
    ),
    "p Holm, *": (
        "p value of the t test (paired, else Welch's), adjusted for the number of methods (Holm); "
        "* marks p below .05 with at least five seeds."
    ),
    "effect": "Cohen's d: difference divided by its standard deviation over seeds.",
    "seeds needed": "To detect the difference with probability 0.8 by a t test at the 5% level.",
    "worse than": (
        "Share of clients whose test accuracy is lower than with `local`, or with `fine_tuned`, in "
        "the same run: who would be better off without federation, or with the model of FedAvg "
        "trained on their own examples."
    ),
    "NMI": (
        "Normalized mutual information of estimated clusters and ground-truth groups, 2 I / (H + "
        "H'), mean over rounds: 0 to 1, 1 for equal groupings. Positive by chance."
    ),
}
"""Terms of tables that are not names of metrics."""

HINT = "Definitions: fedjax-fair metrics."
"""End of the note under a table."""

_HEAD = """# Metrics

Results contain each metric for every seed and evaluation. Accuracies are fractions in files and
percentages in tables and plots. Uses, limitations and examples are in the docstrings of
`fedjax_fair.metrics.performance`, `fairness`, `groups` and `clustering`.

`fedjax-fair metrics` prints these definitions.
`fedjax-fair metrics --format markdown > docs/metrics.md` generates this page.
"""


def columns() -> dict[str, str]:
    """Returns the definitions of metrics and terms by name."""
    return {metric.name: _sentence(metric) for metric in _METRICS} | TERMS


def page() -> str:
    """Returns the definitions as Markdown."""
    names = (
        "metric",
        "definition",
        "formula",
        "over",
        "weighting",
        "range",
        "better",
        "noise floor",
    )
    rows = [names, ("---",) * len(names)]
    for metric in _METRICS:
        of = _DETAILS[metric.name]
        definition = metric.description + (f" ({of.source})" if of.source else "")
        over = (metric.population, metric.weighting, _range(metric), of.better)
        has_floor = "yes" if _has_floor(metric) else "-"
        rows.append((f"`{metric.name}`", definition, f"`{of.formula}`", *over, has_floor))
    terms = [("term", "definition"), ("---", "---")]
    terms += [(f"`{name}`", text) for name, text in TERMS.items()]
    of_metrics, of_terms = (
        "\n".join(f"| {' | '.join(row)} |" for row in table) for table in (rows, terms)
    )
    symbols = textwrap.fill(SYMBOLS, 120)
    parts = [_HEAD, symbols, of_metrics, SECTION, "## Terms of tables", of_terms]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _has_floor(metric: Metric) -> bool:
    return metric.name in OF_SPREAD or metric.name.removesuffix("_mean_clients") in DIFFERENCES


def _range(metric: Metric) -> str:
    return _DETAILS[metric.name].range + ("" if metric.unit == "1" else f" {metric.unit}")


def _sentence(metric: Metric) -> str:
    of = _DETAILS[metric.name]
    better = f", {of.better} is better" if of.better != "-" else ""
    floor = "; has a noise floor" if _has_floor(metric) else ""
    source = f" ({of.source})" if of.source else ""
    about = f"{metric.population}, weighting: {metric.weighting}{floor}"
    return f"{metric.description}: {of.formula}{source}. {_range(metric)}{better}; {about}."
