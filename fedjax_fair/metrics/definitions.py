"""Definitions of all metrics and of the terms in tables, for a terminal and for docs/metrics.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from fedjax_fair.metrics.sensitive_group_metrics import (
    PERPLEXITY_PARITY,
    SENSITIVE_GROUP_SUMMARIES,
)
from fedjax_fair.metrics.speed import DEFINITIONS
from fedjax_fair.metrics.summaries import (
    CENTRAL_SUMMARIES,
    CLIENT_GROUP_SUMMARIES,
    SEQUENCE_SUMMARIES,
    SUMMARIES,
)
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


_METRICS = (
    *(SUMMARIES + CLIENT_GROUP_SUMMARIES + SEQUENCE_SUMMARIES),
    *(CENTRAL_SUMMARIES + SENSITIVE_GROUP_SUMMARIES + (PERPLEXITY_PARITY,)),
)

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
    "central test": "central_accuracy, of the global model, on test examples of no client.",
    "gap of groups": "group_accuracy_gap, also gap: best group less worst group.",
    "validation": (
        "validation_accuracy_mean_clients. Each metric of test examples exists for validation "
        "examples, which are held out of training examples, except for metrics of sensitive groups."
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
        "For sensitive groups: the difference expected from finite groups if all had equal rates; "
        "only in the tables 'Group fairness by ...' of `run` and `show`, also of the client with "
        "the largest difference."
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
    "MAE, RMSE": (
        "mean_absolute_error and root_mean_squared_error of a regression, mean over clients, in "
        "the unit of the label. Worst 10% are the largest errors. Each quantity that clients are "
        "measured by has the same metrics as the accuracy, such as mean_absolute_error_worst_10pct."
    ),
    "R2": (
        "r2 of a regression, 1 - sum e^2 / sum (y - mean)^2 over the examples of a client: 1 for "
        "no error, 0 for the error of predicting the mean."
    ),
    "F1": (
        "label_f1 of several labels: F1 score 2 TP / (2 TP + FP + FN) of each label that a client "
        "has or is predicted to have, mean over labels."
    ),
    "accuracy of labels": "label_accuracy: fraction of correct labels, of several of each example.",
    "perplexity": "perplexity_mean_clients: clients count equally, whatever their text.",
    "worse than": (
        "Share of clients whose test accuracy, or other first quantity, is worse than with "
        "`local`, or with `fine_tuned`, in the same run: who would be better off without "
        "federation, or with the model of FedAvg trained on their own examples."
    ),
    "<variable>_<summary>": (
        "Summary over clients of any variable of clients, such as test_loss_gini in `compare RUN "
        "--metrics test_loss_gini`: mean_clients, minimum, maximum, worst_10pct, best_10pct, "
        "standard_deviation and variance; of values that are not negative also gini, jain_index, "
        "entropy and angle, in degrees, to equal values (test_loss_angle is that of FedMDFG and "
        "FedLF). `results.client_summaries` computes all."
    ),
    "bias": (
        "bias of a regression, with `--training.metrics bias`: mean signed error, predictions less "
        "labels. Closer to 0 is better; the worst 10% are the largest absolute values."
    ),
    "loss gap": (
        "Test loss of a client less the last one of `local_converged` in the same run, which "
        "stands for the lowest loss that the client can reach. `compare RUN --metrics "
        "loss_gap_maximum` compares methods in this or another summary over clients. "
        "`results.loss_gaps` also computes them of training examples."
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
`fedjax_fair.metrics.performance`, `fairness`, `client_groups` and `clustering`.

`fedjax-fair metrics` prints these definitions.
`fedjax-fair metrics --format markdown > docs/metrics.md` generates this page.
"""


_GROUP_FAIRNESS = (
    "## Group fairness",
    "Fairness between clients compares how well the model serves each client. Fairness "
    "between sensitive groups compares how it treats people who differ in sensitive features, "
    "such as sex, wherever their examples are. Results of data with sensitive features have "
    "metrics of both. Sensitive groups are the combinations of all sensitive features; "
    '`results.sensitive_groups.gaps(dataset, ["sex"])` compares the groups of some features, and '
    "`fedjax-fair compare RUN --metrics loss_parity_difference:sex` methods in one difference. "
    "With several features `sensitive_feature_loss` and so on have the values of each alone. "
    "`difference` and `ratio` of `fedjax_fair.metrics.group_fairness` compute metrics from counts.",
    "**Per client and pooled.** A difference of pooled people and a mean of differences of "
    "clients answer two questions, and either can be small while the other is large:",
    "- Pooled rates weight a client by its people of a group. If clients with many people of "
    "one group have high selection rates, the pooled difference is large although every "
    "client treats its groups equally (Simpson's paradox).",
    "- Differences of clients in opposite directions cancel in pooled rates.",
    "- Differences are not negative, so that chance increases them, most in small groups. "
    "The groups of a client are smaller than the groups of all clients, so that a mean over "
    "clients is larger even if the model is fair. The noise floor shows by how much. "
    "`fedjax_fair.metrics.group_noise.interval(criterion, counts)` has bootstrap intervals (import "
    'the module); counts come from `results.sensitive_groups.feature_counts(dataset, ["sex"])`, '
    "summed over clients.",
    "**Empty cells.** A group without people has no rate. By default this also holds for a "
    "group without the people that a rate counts, such as those with label 1; fairlearn sets "
    'such a rate to 0 (`empty="zero"`), so that a client without positive examples of one '
    "group has an equal opportunity difference of up to 1. Groups without a rate are ignored. "
    "A difference of fewer than two groups is NaN, and a mean over clients ignores it. "
    "Notes of tables count the cells without examples; `group_fairness.undefined_groups` counts "
    "such groups, and `sensitive_group_counts` in results shows the size of every cell.",
    "**More than two classes.** With two classes, rates are those of class 1, the favorable one. "
    "With more, demographic parity and equal opportunity compare the selection rate and the true "
    "positive rate of each class against all others; equalized odds compares the share of each "
    "class among the predictions for each label. The largest difference and the smallest ratio "
    'count. Functions have the mean (`agg="mean"`), some classes (`classes=[2]`), and equalized '
    'odds of true and false positive rates (`form="one_vs_rest"`).',
    "**Validation examples.** Metrics of sensitive groups are of test examples only. After "
    "training, `fitted.evaluate(data._replace(test=data.validation))` computes them for validation "
    "examples, to choose settings without test examples.",
    '**Names.** "Equalized odds" and "equal opportunity" are both abbreviated to EOD in the '
    "literature; results spell them out. FairFed uses signed differences of two groups, and "
    'FedFB the largest distance to the rate of all people (`method="to_overall"`), which is '
    "smaller than the difference of groups.",
)

_SPEED = (
    "## Virtual time",
    "Results of runs with a schedule have these metrics by class of devices. A result is one that "
    "counts: it arrived, in time and not too stale. r_i is the number of results of client i. "
    '`metrics.speed.summarize(dataset, by="planted_group")` computes them by ground-truth group, '
    "and with `target=0.8` also `time_to_accuracy`, for which seeds without a value must be "
    "counted: `accuracy_over_time` has no missing values.",
)


def columns() -> dict[str, str]:
    """Returns the definitions of metrics and terms by name."""
    of_time = {
        name: f"{one.description}: {one.formula}. {one.range}"
        f"{f', {one.better} is better' if one.better else ''}."
        for name, one in DEFINITIONS.items()
    }
    return {metric.name: _sentence(metric) for metric in _METRICS} | of_time | TERMS


def page() -> str:
    """Returns the definitions as Markdown."""
    headings = ["metric", "definition", "formula", "over", "weighting", "range", "better"]
    rows = [(*headings, "noise floor")]
    for metric in _METRICS:
        definition = metric.description + (f" ({metric.source})" if metric.source else "")
        over = (metric.population, metric.weighting, _range(metric), metric.better or "-")
        has_floor = "yes" if metric.has_noise_floor else "-"
        rows.append((f"`{metric.name}`", definition, f"`{metric.formula}`", *over, has_floor))
    speeds = [("metric", "definition", "formula", "range", "better")]
    speeds += [
        (f"`{name}`", one.description, f"`{one.formula}`", one.range, one.better or "-")
        for name, one in DEFINITIONS.items()
    ]
    terms = [("term", "definition"), *((f"`{name}`", text) for name, text in TERMS.items())]
    parts = [_HEAD.strip(), *_filled(SYMBOLS), _table(rows), *_filled(*_GROUP_FAIRNESS)]
    parts += [*_filled(*_SPEED), _table(speeds), "## Terms of tables", _table(terms)]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return "\n".join(lines)


def _filled(*texts: str) -> Iterator[str]:
    for text in texts:
        yield textwrap.fill(text, 120, subsequent_indent="  " if text.startswith("- ") else "")


def _range(metric: Metric) -> str:
    return metric.range + ("" if metric.unit == "1" else f" {metric.unit}")


def _sentence(metric: Metric) -> str:
    better = f", {metric.better} is better" if metric.better else ""
    floor = "; has a noise floor" if metric.has_noise_floor else ""
    source = f" ({metric.source})" if metric.source else ""
    about = f"{metric.population}, weighting: {metric.weighting}{floor}"
    return f"{metric.description}: {metric.formula}{source}. {_range(metric)}{better}; {about}."
