"""Definitions of metrics of group fairness, for `fedjax_fair.metrics.definitions`."""

from __future__ import annotations

import textwrap

__all__ = ["OF_PEOPLE", "SECTION"]

_FAIRLEARN = "as fairlearn, https://fairlearn.org"
_ODDS = "max(max_u T_u - min_u T_u, max_u F_u - min_u F_u)"
_FORMULAS = {
    "demographic_parity": ("max_u S_u - min_u S_u", "min_u S_u / max_u S_u"),
    "equal_opportunity": ("max_u T_u - min_u T_u", "min_u T_u / max_u T_u"),
    "equalized_odds": (_ODDS, "min(min_u T_u / max_u T_u, min_u F_u / max_u F_u)"),
    "accuracy_parity": ("max_u C_u - min_u C_u", "min_u C_u / max_u C_u"),
}
_CALIBRATION = (
    "max_u E_u, E_u = sum_b abs(labels 1 - sum of scores) / n_u over ten bins b of the predicted "
    "probability of class 1"
)


def _details() -> dict[str, tuple[str, ...]]:
    details: dict[str, tuple[str, ...]] = {}
    for name, (difference, ratio) in _FORMULAS.items():
        details[f"{name}_difference"] = (difference, "0 to 1", "lower", _FAIRLEARN)
        details[f"{name}_ratio"] = (ratio, "0 to 1", "higher", _FAIRLEARN)
        for summary, function in {"mean_clients": "mean_i", "worst_client": "max_i"}.items():
            formula = f"{function} of the difference of client i"
            details[f"{name}_difference_{summary}"] = (formula, "0 to 1", "lower")
    return details


OF_PEOPLE = _details() | {
    "worst_group_accuracy": ("min_u C_u", "0 to 1", "higher"),
    "worst_group_loss": ("max_u M_u", ">= 0", "lower"),
    "worst_group_calibration_error": (_CALIBRATION, "0 to 1", "lower"),
}
"""Formula, range, direction and perhaps source of each metric of `PEOPLE_SUMMARIES`."""

_PARAGRAPHS = (
    "## Group fairness",
    "Fairness between clients compares how well the model serves each client. Fairness "
    "between groups of people compares how it treats people who differ in sensitive features, "
    "such as sex, wherever their examples are. Results of data with sensitive features have "
    "metrics of both. Groups are the combinations of all sensitive features; "
    '`results.people.gaps(dataset, ["sex"])` compares the groups of some features. The functions '
    "of `fedjax_fair.metrics.group_fairness` compute metrics from counts.",
    "**Per client and pooled.** A difference of pooled people and a mean of differences of "
    "clients answer two questions, and either can be small while the other is large:",
    "- Pooled rates weight a client by its people of a group. If clients with many people of "
    "one group have high selection rates, the pooled difference is large although every "
    "client treats its groups equally (Simpson's paradox).",
    "- Differences of clients in opposite directions cancel in pooled rates.",
    "- Differences are not negative, so that chance increases them, most in small groups. "
    "The groups of a client are smaller than those of all clients, so that a mean over "
    "clients is larger even if the model is fair. The noise floor shows by how much. "
    "`fedjax_fair.metrics.group_noise.interval(name, counts)` has bootstrap intervals (import the "
    'module); counts are those of `results.people.feature_counts(dataset, ["sex"])`, summed over '
    "clients.",
    "**Empty cells.** A group without people has no rate. By default this also holds for a "
    "group without the people that a rate counts, such as those with label 1; fairlearn sets "
    'such a rate to 0 (`empty="zero"`), so that a client without positive examples of one '
    "group has an equal opportunity difference of up to 1. Groups without a rate are ignored. "
    "A difference of fewer than two groups is NaN, and a mean over clients ignores it. "
    "`group_fairness.undefined_groups` counts such groups, and `sensitive_group_counts` in "
    "results shows the size of every cell.",
    "**Validation examples.** Metrics of groups of people are of test examples only. After "
    "training, `fitted.evaluate(data._replace(test=data.validation))` computes them for validation "
    "examples, to choose settings without test examples.",
    '**Names.** "Equalized odds" and "equal opportunity" are both abbreviated to EOD in the '
    "literature; results spell them out. FairFed uses signed differences of two groups, and "
    'FedFB the largest distance to the rate of all people (`method="to_overall"`), which is '
    "smaller than the difference of groups.",
)

SECTION = "\n\n".join(
    textwrap.fill(text, 120, subsequent_indent="  " if text.startswith("- ") else "")
    for text in _PARAGRAPHS
)
"""Part of docs/metrics.md."""
