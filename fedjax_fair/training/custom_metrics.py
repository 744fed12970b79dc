"""Checks of metrics that a user adds."""

from __future__ import annotations

from collections.abc import Sequence

from fedjax_fair.base import ClientMetric, Metric
from fedjax_fair.metrics import ALL_SUMMARIES
from fedjax_fair.results import RECORDED

__all__ = ["check_new"]

_RESERVED = {
    *("seed", "round", "client", "class", "planted_group", "training_round", "slot"),
    *("group", "group_accuracy", "group_loss", "bytes_up", "bytes_down", "diverged"),
    *("train_examples", "test_examples", "validation_examples"),
    *RECORDED,
    *(metric.name for metric in ALL_SUMMARIES),
}
_RESERVED_PREFIXES = ("cohort_", "selection_", "aggregation_")


def check_new(metrics: Sequence[Metric | ClientMetric]) -> None:
    """Checks that metrics have new names among the variables of results.

    Raises:
        ValueError: If an element is not a metric, or a name is reserved or occurs twice.
    """
    if isinstance(metrics, Metric | ClientMetric) or not isinstance(metrics, Sequence):
        raise ValueError(f"metrics: expected a list of metrics, got a {type(metrics).__name__}.")
    taken = set(_RESERVED)
    for metric in metrics:
        if not isinstance(metric, Metric | ClientMetric):
            raise ValueError(
                f"metrics: one of them is a {type(metric).__name__}: expected a Metric or a "
                "ClientMetric, such as metrics.predictions.macro_f1(num_classes=10)."
            )
        names = [metric.name]
        if isinstance(metric, ClientMetric):
            names = [f"test_{metric.name}", f"validation_{metric.name}"]
        for name in names:
            if name in taken or name.startswith(_RESERVED_PREFIXES):
                raise ValueError(
                    f"metrics: the name {metric.name!r} would be that of another variable in "
                    f"results, {name!r}; choose another name."
                )
            taken.add(name)
