"""The best model of every run so far, by a score of its evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_fair.base import Variables

__all__ = ["BestModelTracker"]


class BestModelTracker:
    """Keeps the variables of every run's best evaluation.

    Args:
        score: From an ``Evaluation`` to a number for each seed; larger is better.
        seeds: The seeds.

    Attributes:
        kept: ``scores``, ``rounds`` (both ``[seeds]``) and ``variables``, leaves ``[seeds, ...]``;
            None before the first evaluation.
    """

    def __init__(self, score: Callable[[Any], Any], seeds: tuple[int, ...]) -> None:
        self._score, self._seeds = score, seeds
        self.kept: dict[str, Any] | None = None

    def update(self, evaluation: Any, variables: Variables) -> None:
        """Looks at an evaluation of these variables, leaves ``[seeds, ...]``.

        The first of several that are equally good is kept; NaN is worse than any number.

        Raises:
            ValueError: If the score is not a number for each seed.
        """
        scores = np.asarray(self._score(evaluation), np.float64)
        if scores.shape != (len(self._seeds),):
            raise ValueError(
                f"best: expected one number for each of {len(self._seeds)} seeds, got an array of "
                f"shape {scores.shape}."
            )
        scores = np.where(np.isnan(scores), -np.inf, scores)
        rounds = np.full(scores.shape, evaluation.round, np.int64)
        own = {"scores": scores, "rounds": rounds, "variables": variables}
        if self.kept is None:
            self.kept = jax.device_get(own)
            return
        better = scores > self.kept["scores"]
        if better.any():
            self.kept = jax.tree.map(
                lambda new, old: np.where(better.reshape((-1,) + (1,) * (old.ndim - 1)), new, old),
                jax.device_get(own),
                self.kept,
            )
