"""Options of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedjax_fair import checks
from fedjax_fair.base import ClientMetric, Metric
from fedjax_fair.training.custom_metrics import check_new

__all__ = ["OnNonfinite", "TrainOptions"]

OnNonfinite = Literal["raise", "drop_client", "skip_round"]


@dataclass(frozen=True)
class TrainOptions:
    """Settings of ``fit``, ``train`` and ``fit_batch``.

    Raises:
        ValueError: If one is out of range.
    """

    rounds: int
    eval_every: int
    train_loss: bool
    on_nonfinite: OnNonfinite
    metrics: Sequence[Metric | ClientMetric] = ()
    best: Callable[[Any], Any] | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        checks.positive_int("rounds", self.rounds)
        checks.positive_int("eval_every", self.eval_every)
        checks.one_of("on_nonfinite", self.on_nonfinite, get_args(OnNonfinite))
        if self.best is not None:
            checks.function("best", self.best, "from an Evaluation to a number for each seed")
        if self.memory_limit is not None:
            checks.non_negative_int("memory_limit", self.memory_limit)
        check_new(self.metrics)
