"""Metrics of group fairness that every evaluation of data with sensitive features computes.

Groups are the combinations of values of all sensitive features. Metrics of pooled people sum counts
over clients first; metrics of clients are means over the clients for which they are defined.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.metrics import group_fairness as fairness
from fedjax_fair.roles import ClientMetrics, GroupSums, Metric
from fedjax_fair.utils.tree import Tree

__all__ = ["DIFFERENCES", "PEOPLE", "PEOPLE_SUMMARIES", "client_difference", "people_summaries"]

PEOPLE = "people with test examples"
CLIENTS = "clients with two or more groups of people"

DIFFERENCES: dict[str, tuple[Callable[..., Array], str, bool]] = {
    "demographic_parity_difference": (
        fairness.demographic_parity_difference,
        "Demographic parity: difference of selection rates between groups of people",
        True,
    ),
    "equal_opportunity_difference": (
        fairness.equal_opportunity_difference,
        "Equal opportunity: difference of true positive rates between groups of people",
        True,
    ),
    "equalized_odds_difference": (
        fairness.equalized_odds_difference,
        "Equalized odds: larger difference of true and of false positive rates",
        True,
    ),
    "accuracy_parity_difference": (
        fairness.accuracy_difference,
        "Accuracy parity: difference of accuracies between groups of people",
        False,
    ),
}
"""Function of counts, description, and whether two classes are required."""

_RATIOS = {
    "demographic_parity_ratio": (
        fairness.demographic_parity_ratio,
        "Demographic parity: smallest over largest selection rate",
        True,
    ),
    "equal_opportunity_ratio": (
        fairness.equal_opportunity_ratio,
        "Equal opportunity: smallest over largest true positive rate",
        True,
    ),
    "equalized_odds_ratio": (
        fairness.equalized_odds_ratio,
        "Equalized odds: smaller ratio of true and of false positive rates",
        True,
    ),
    "accuracy_parity_ratio": (
        fairness.accuracy_ratio,
        "Accuracy parity: smallest over largest accuracy",
        False,
    ),
}


class Gap(Tree):
    """Function of the counts of people by client, group, label and prediction.

    Args:
        function: Function of counts ``[..., groups, classes, classes]``.
        summary: ``"pooled"`` sums counts over clients; ``"mean"`` and ``"maximum"`` are over the
            clients for which the function is defined.
        is_binary: Whether labels and predictions count, or only whether they are equal.
    """

    function: Callable[..., Array]
    summary: str
    is_binary: bool

    def __call__(self, metrics: ClientMetrics) -> Float[Array, ""]:
        assert metrics.sensitive is not None
        if self.summary == "pooled":
            counts = _counts(metrics.sensitive, self.is_binary)
            return self.function(jnp.sum(counts, axis=0))
        values = client_difference(self.function, metrics.sensitive, self.is_binary)
        return jnp.nanmean(values) if self.summary == "mean" else fairness.highest(values)


class WorstGroup(Tree):
    """Worst value of pooled groups of people: ``"accuracy"``, ``"loss"`` or calibration."""

    quantity: str

    def __call__(self, metrics: ClientMetrics) -> Float[Array, ""]:
        sums = metrics.sensitive
        assert sums is not None
        if self.quantity == "calibration_error":
            if sums.calibration_error is None:
                return jnp.full((), jnp.nan)
            return fairness.highest(sums.calibration_error)
        examples = jnp.sum(sums.examples, axis=0)
        if self.quantity == "accuracy":
            return fairness.lowest(jnp.sum(sums.correct, axis=0) / examples)
        return fairness.highest(jnp.sum(sums.loss, axis=0) / examples)


def client_difference(
    function: Callable[..., Array], sums: GroupSums, is_binary: bool
) -> Float[Array, "*axes clients"]:
    """Computes a function of counts for every client."""
    return function(_counts(sums, is_binary))


def _counts(sums: GroupSums, is_binary: bool) -> Array:
    """Returns counts by label and prediction, or of correct predictions on the diagonal."""
    if is_binary:
        assert sums.counts is not None
        return sums.counts
    wrong = sums.examples - sums.correct
    zeros = jnp.zeros_like(wrong)
    rows = [jnp.stack([sums.correct, wrong], axis=-1), jnp.stack([zeros, zeros], axis=-1)]
    return jnp.stack(rows, axis=-2)


def _gaps() -> list[tuple[Metric, bool]]:
    gaps = []
    for name, (function, description, is_binary) in (DIFFERENCES | _RATIOS).items():
        pooled = Gap(function, "pooled", is_binary)
        gaps.append((Metric(name, description, "1", PEOPLE, "examples", pooled), is_binary))
    for name, (function, description, is_binary) in DIFFERENCES.items():
        for summary, title in {"mean": "mean_clients", "maximum": "worst_client"}.items():
            of_clients = Gap(function, summary, is_binary)
            words = f"{description}, {summary} over clients"
            metric = Metric(f"{name}_{title}", words, "1", CLIENTS, "uniform", of_clients)
            gaps.append((metric, is_binary))
    return gaps


def _worst(name: str, description: str, unit: str) -> Metric:
    quantity = name.removeprefix("worst_group_")
    return Metric(name, description, unit, PEOPLE, "examples", WorstGroup(quantity))


_BY_NEED = [
    *_gaps(),
    (_worst("worst_group_accuracy", "Lowest accuracy of a group of people", "1"), False),
    (_worst("worst_group_loss", "Highest mean loss of a group of people", "nat"), False),
    (
        _worst(
            "worst_group_calibration_error", "Highest calibration error of a group of people", "1"
        ),
        True,
    ),
]

PEOPLE_SUMMARIES: tuple[Metric, ...] = tuple(metric for metric, _ in _BY_NEED)
"""Metrics of evaluations with sensitive features."""


def people_summaries(num_classes: int) -> tuple[Metric, ...]:
    """Selects the metrics that are defined for a number of classes.

    Examples:
        >>> [metric.name for metric in people_summaries(3)][:2]
        ['accuracy_parity_difference', 'accuracy_parity_ratio']
    """
    return tuple(metric for metric, is_binary in _BY_NEED if num_classes == 2 or not is_binary)
