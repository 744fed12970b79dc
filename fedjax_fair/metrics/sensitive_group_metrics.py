"""Metrics of group fairness that every evaluation of data with sensitive features computes.

Sensitive groups are the combinations of values of all sensitive features. Metrics of pooled people
sum counts over clients first; metrics of clients are means over the clients for which they are
defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.metrics import group_fairness
from fedjax_fair.metrics.group_fairness import CRITERIA, group_range, highest, lowest
from fedjax_fair.roles import ClientMetrics, GroupSums, Metric
from fedjax_fair.utils.tree import Tree

__all__ = [
    "CLIENTS",
    "LOSS_PARITY",
    "MAX_COUNTED",
    "PEOPLE",
    "PERPLEXITY_PARITY",
    "SENSITIVE_GROUP_SUMMARIES",
    "client_difference",
    "describe",
    "needs_classes",
    "sensitive_group_summaries",
]

MAX_COUNTED = 100
"""Classes up to which people are counted by label and prediction, in memory of its square."""

PEOPLE = "people with test examples"
CLIENTS = "clients with two or more sensitive groups"

_FAIRLEARN = "as fairlearn, https://fairlearn.org"
_CALIBRATION = (
    "max_u E_u, E_u = sum_b abs(labels 1 - sum of scores) / n_u over ten bins b of the predicted "
    "probability of class 1"
)


class Gap(Tree):
    """Difference or ratio between the sensitive groups.

    Args:
        criterion: Name of one of `group_fairness.CRITERIA`.
        compare: ``"difference"`` or ``"ratio"``.
        summary: ``"pooled"`` sums counts over clients; ``"mean"`` and ``"maximum"`` are over the
            clients for which it is defined.
    """

    criterion: str
    compare: str
    summary: str = "pooled"

    def __call__(self, metrics: ClientMetrics) -> Float[Array, ""]:
        assert metrics.sensitive is not None
        if self.summary == "pooled":
            counts = jnp.sum(_counts(self.criterion, metrics.sensitive), axis=0)
            return getattr(group_fairness, self.compare)(self.criterion, counts)
        values = client_difference(self.criterion, metrics.sensitive)
        return jnp.nanmean(values) if self.summary == "mean" else highest(values)


class OfPooledGroups(Tree):
    """Function of the values of the sensitive groups, of pooled people.

    Args:
        function: ``function([groups])``.
        quantity: ``"accuracy"``, ``"loss"``, ``"perplexity"`` or ``"calibration_error"``.
    """

    function: Callable[..., Float[Array, ""]]
    quantity: str

    def __call__(self, metrics: ClientMetrics) -> Float[Array, ""]:
        sums = metrics.sensitive
        assert sums is not None
        if self.quantity == "calibration_error":
            if sums.calibration_error is None:
                return jnp.full((), jnp.nan)
            return self.function(sums.calibration_error)
        total = jnp.sum(sums.correct if self.quantity == "accuracy" else sums.loss, axis=0)
        means = total / jnp.sum(sums.examples, axis=0)
        return self.function(jnp.exp(means) if self.quantity == "perplexity" else means)


def client_difference(criterion: str, sums: GroupSums) -> Float[Array, "*axes clients"]:
    """Computes the difference between the groups of every client."""
    return group_fairness.difference(criterion, _counts(criterion, sums))


def needs_classes(criterion: str) -> bool:
    """Returns whether a criterion, or a metric that begins with its name, needs classes as labels.

    Examples:
        >>> needs_classes("equal_opportunity_difference"), needs_classes("loss_parity_difference")
        (True, False)
    """
    rates = [rates for name, rates in CRITERIA.items() if criterion.startswith(name)]
    return any(rate.by_class is not None for of_one in rates for rate in of_one)


def describe(criterion: str, compare: str = "difference", num_classes: int = 2) -> str:
    """Returns the long name of a difference or ratio.

    Examples:
        >>> describe("demographic_parity", num_classes=3)
        'Demographic parity: difference of selection rate between sensitive groups, worst class'
        >>> describe("demographic_parity")
        'Demographic parity: difference of selection rate between sensitive groups'
        >>> describe("accuracy_parity", "ratio")
        'Accuracy parity: ratio of accuracy between sensitive groups'
    """
    rates = [rate.name.replace("_", " ") for rate in CRITERIA[criterion]]
    which = {"difference": "larger ", "ratio": "smaller "}[compare] if len(rates) > 1 else ""
    title = criterion.replace("_", " ").capitalize()
    about = f"{title}: {which}{compare} of {' and of '.join(rates)} between sensitive groups"
    if num_classes == 2 or not needs_classes(criterion):
        return about
    if criterion == "equalized_odds":
        return (
            f"{title}: {compare} of shares of predictions given the label between sensitive "
            "groups, worst pair"
        )
    return f"{about}, worst class"


def _counts(criterion: str, sums: GroupSums) -> Array:
    """Returns counts by label and prediction, or of correct predictions on the diagonal."""
    if needs_classes(criterion):
        assert sums.counts is not None
        return sums.counts
    wrong = sums.examples - sums.correct
    zeros = jnp.zeros_like(wrong)
    rows = [jnp.stack([sums.correct, wrong], axis=-1), jnp.stack([zeros, zeros], axis=-1)]
    return jnp.stack(rows, axis=-2)


def _formula(criterion: str, form: str, combine: str) -> str:
    parts = [form.format(rate.symbol) for rate in CRITERIA[criterion]]
    return parts[0] if len(parts) == 1 else f"{combine}({', '.join(parts)})"


def _gaps(criteria: list[str], num_classes: int) -> Iterator[Metric]:
    for compare, form, combine in (
        ("difference", "max_u {0}_u - min_u {0}_u", "max"),
        ("ratio", "min_u {0}_u / max_u {0}_u", "min"),
    ):
        for criterion in criteria:
            yield _of_people(
                f"{criterion}_{compare}",
                describe(criterion, compare, num_classes),
                Gap(criterion, compare),
                _formula(criterion, form, combine),
                better="lower" if compare == "difference" else "higher",
                source=_FAIRLEARN,
                heading=criterion.replace("_", "\n"),
                has_noise_floor=compare == "difference",
            )
    for criterion in criteria:
        for summary, title in (("mean", "mean_clients"), ("maximum", "worst_client")):
            yield Metric(
                f"{criterion}_difference_{title}",
                f"{describe(criterion, num_classes=num_classes)}, {summary} over clients",
                "1",
                CLIENTS,
                "uniform",
                Gap(criterion, "difference", summary),
                better="lower",
                formula=f"{summary.removesuffix('imum')}_i of the difference of client i",
                range="0 to 1",
                has_noise_floor=summary == "mean",
            )


def _of_people(
    name: str,
    description: str,
    function: Gap | OfPooledGroups,
    formula: str,
    range: str = "0 to 1",
    unit: str = "1",
    **about: Any,
) -> Metric:
    """Returns a metric of pooled people."""
    about = {"better": "lower", "formula": formula, "range": range} | about
    return Metric(name, description, unit, PEOPLE, "examples", function, **about)


_WORST = (
    _of_people(
        "worst_group_accuracy", "Lowest accuracy of a sensitive group",
        OfPooledGroups(lowest, "accuracy"), "min_u C_u", better="higher",
    ),
    _of_people(
        "worst_group_loss", "Highest mean loss of a sensitive group",
        OfPooledGroups(highest, "loss"), "max_u M_u", ">= 0", "nat",
    ),
    _of_people(
        "worst_group_calibration_error", "Highest calibration error of a sensitive group",
        OfPooledGroups(highest, "calibration_error"), _CALIBRATION,
    ),
)  # fmt: skip

LOSS_PARITY = _of_people(
    "loss_parity_difference",
    "Mean loss: difference between sensitive groups",
    OfPooledGroups(group_range, "loss"),
    "max_u M_u - min_u M_u",
    ">= 0",
    "nat",
)
"""Difference between sensitive groups that every task has."""

PERPLEXITY_PARITY = _of_people(
    "perplexity_parity_difference",
    "Test perplexity: difference between sensitive groups",
    OfPooledGroups(group_range, "perplexity"),
    "max_u exp(M_u) - min_u exp(M_u)",
    ">= 0",
)
"""Difference of the perplexities of sequences."""


def sensitive_group_summaries(num_classes: int) -> tuple[Metric, ...]:
    """Returns the metrics that are defined for a number of classes; below 2, labels are no classes.

    Examples:
        >>> [metric.name for metric in sensitive_group_summaries(1)][:2]
        ['accuracy_parity_difference', 'accuracy_parity_ratio']
    """
    is_counted = 2 <= num_classes <= MAX_COUNTED
    criteria = [name for name in CRITERIA if is_counted or not needs_classes(name)]
    worst = _WORST if num_classes == 2 else _WORST[:-1]  # The calibration error is of two classes.
    return (*_gaps(criteria, num_classes), *worst, LOSS_PARITY)


SENSITIVE_GROUP_SUMMARIES: tuple[Metric, ...] = sensitive_group_summaries(2)
"""Metrics of evaluations with sensitive features."""
