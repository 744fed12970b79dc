"""The best model of every run, by a score of its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from fedjax_fair.roles import Metric, Variables
from fedjax_fair.utils import checks

__all__ = ["BestModelTracker", "BestModels", "score_by_name"]


class BestModels(NamedTuple):
    """Scores, rounds ``[seeds]`` and variables ``[seeds, ...]`` of the best evaluations."""

    scores: Float[np.ndarray, " seeds"]
    rounds: Int[np.ndarray, " seeds"]
    variables: Variables


def score_by_name(
    name: str, summaries: Sequence[Metric]
) -> Callable[[Any], Float[np.ndarray, " seeds"]]:
    """Returns the score of an evaluation by one of its summary metrics, larger where it is better.

    Raises:
        ValueError: If there is no such metric, or neither higher nor lower values are better.
    """
    ranked = {each.name: each for each in summaries if each.better in ("higher", "lower")}
    checks.one_of("best", name, tuple(ranked))
    sign = 1 if ranked[name].better == "higher" else -1
    return lambda evaluation: sign * evaluation.summaries[name]


class BestModelTracker:
    """Keeps the variables of the best evaluation of every run, in ``best``.

    ``score`` maps an ``Evaluation`` to a score for each seed; larger is better.
    """

    def __init__(self, score: Callable[[Any], Any], num_seeds: int) -> None:
        self._score, self._num_seeds = score, num_seeds
        self.best: BestModels | None = None

    def update(self, evaluation: Any, variables: Variables) -> None:
        """Compares an evaluation of these variables with the best one.

        Of equal scores the first one wins; NaN loses.

        Raises:
            ValueError: If there is not one score for each seed.
        """
        # A function of the complete evaluation can weigh a mean against a gap.
        scores = np.asarray(self._score(evaluation), np.float64)
        if scores.shape != (self._num_seeds,):
            raise ValueError(
                f"best: expected one number for each of {self._num_seeds} seeds, got an array of "
                f"shape {scores.shape}; reduce the axis of clients, for example by .mean(-1)."
            )
        scores = np.where(np.isnan(scores), -np.inf, scores)
        rounds = np.full(scores.shape, evaluation.round, np.int64)
        latest = BestModels(scores, rounds, variables)
        if self.best is None:
            self.best = jax.device_get(latest)
            return
        better = scores > self.best.scores
        if better.any():
            self.best = jax.tree.map(
                lambda new, old: np.where(better.reshape((-1,) + (1,) * (old.ndim - 1)), new, old),
                jax.device_get(latest),
                self.best,
            )
