"""Options of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int

from fedjax_fair.metrics import ALL_SUMMARIES, quantities
from fedjax_fair.results import RECORDED
from fedjax_fair.roles import ClientMetric, Metric
from fedjax_fair.utils import checks

__all__ = ["OnNonfinite", "TrainOptions", "evaluated_rounds"]

OnNonfinite = Literal["raise", "drop_client", "skip_round"]

_RESERVED = {
    *("seed", "round", "client", "class", "planted_group", "training_round", "slot"),
    *("group", "group_accuracy", "group_loss", "bytes_up", "bytes_down", "diverged"),
    *("train_examples", "test_examples", "validation_examples"),
    *("sensitive_group", "sensitive_value", "label", "prediction", "output"),
    *RECORDED,
    *(metric.name for metric in ALL_SUMMARIES),
}
_RESERVED_PREFIXES = (
    *("cohort_", "selection_", "aggregation_", "output_"),
    *("sensitive_group_", "client_group_", "sensitive_feature_"),
)


@dataclass(frozen=True)
class TrainOptions:
    """Settings of ``fit``.

    Raises:
        ValueError: If one is out of range.
    """

    rounds: int
    eval_every: int
    train_loss: bool
    on_nonfinite: OnNonfinite
    metrics: Sequence[Metric | ClientMetric] = ()
    best: str | Callable[[Any], Any] | None = None
    memory_limit: int | None = None
    allow_changed_code: bool = False
    until_seconds: float | None = None

    def __post_init__(self) -> None:
        checks.positive_int("rounds", self.rounds)
        checks.positive_int("eval_every", self.eval_every)
        checks.one_of("on_nonfinite", self.on_nonfinite, get_args(OnNonfinite))
        if self.best is not None and not isinstance(self.best, str):
            checks.function("best", self.best, "from an Evaluation to a number for each seed")
        if self.memory_limit is not None:
            checks.non_negative_int("memory_limit", self.memory_limit)
        if self.until_seconds is not None:
            checks.positive("until_seconds", self.until_seconds)
        _check_metrics(self.metrics)


def evaluated_rounds(rounds: int, eval_every: int) -> Int[np.ndarray, " evaluations"]:
    """Returns the rounds of the evaluations: before training, at intervals, and at the end.

    Examples:
        >>> evaluated_rounds(rounds=7, eval_every=3).tolist()
        [0, 3, 6, 7]
    """
    return np.array([*range(0, rounds, eval_every), rounds])


def _check_metrics(metrics: Sequence[Metric | ClientMetric]) -> None:
    """Checks that metrics have new names among the variables of results."""
    if isinstance(metrics, Metric | ClientMetric) or not isinstance(metrics, Sequence):
        raise ValueError(
            f"metrics: expected a list of metrics, got a {type(metrics).__name__}; pass [metric]."
        )
    taken = set(_RESERVED)
    for metric in metrics:
        if isinstance(metric, ClientMetric):
            made = quantities.summaries(metric, client_groups=True, validation=True, sensitive=True)
            taken |= {each.name for each in made}
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
