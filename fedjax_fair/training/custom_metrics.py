"""Metrics that a user adds: what they may be, and may be called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedjax_fair.base import ClientMetric, Metric
from fedjax_fair.metrics import ALL_SUMMARIES
from fedjax_fair.results import RECORDED

__all__ = ["check_new"]

_DIMENSIONS = {"seed", "round", "client", "class", "planted_group", "training_round", "slot"}
_OTHERS = {"group", "group_accuracy", "group_loss", "bytes_up", "bytes_down", "diverged"} | {
    f"{part}_examples" for part in ("train", "test", "validation")
}
_TAKEN = _DIMENSIONS | _OTHERS | set(RECORDED) | {metric.name for metric in ALL_SUMMARIES}
_PREFIXES = ("cohort_", "selection_", "aggregation_")


def check_new(metrics: Sequence[Metric | ClientMetric]) -> None:
    """Requires metrics whose variables in results have names of their own.

    Raises:
        ValueError: If one is no metric, or a name is taken or given twice.
    """
    if isinstance(metrics, Metric | ClientMetric) or not isinstance(metrics, Sequence):
        raise ValueError(f"metrics: expected a list of metrics, got a {type(metrics).__name__}.")
    taken = set(_TAKEN)
    for metric in metrics:
        if not isinstance(metric, Metric | ClientMetric):
            raise ValueError(
                f"metrics: one of them is a {type(metric).__name__}: expected a Metric or a "
                "ClientMetric, such as metrics.predictions.macro_f1(num_classes=10)."
            )
        for name in _names(metric):
            if name in taken or name.startswith(_PREFIXES):
                raise ValueError(
                    f"metrics: the name {metric.name!r} would be that of another variable in "
                    f"results, {name!r}."
                )
            taken.add(name)


def _names(metric: Metric | ClientMetric) -> Iterable[str]:
    if isinstance(metric, Metric):
        return (metric.name,)
    return (f"test_{metric.name}", f"validation_{metric.name}")
