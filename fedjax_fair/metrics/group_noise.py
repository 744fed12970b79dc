"""Chance in metrics of group fairness: noise floors and intervals from sizes of cells.

Small groups have different rates by chance alone, and a client has smaller groups than all clients
together. A difference that is not above its noise floor is no evidence of unfairness.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedjax_fair.metrics.group_fairness import CRITERIA, difference
from fedjax_fair.utils import checks

__all__ = ["Interval", "expected_difference", "expected_largest", "interval", "known_mean"]

_MAX_VALUES = 4_000_000
"""Simulated counts in memory."""
_MAX_COUNT = 2**31


class Interval(NamedTuple):
    """Ends of an interval.

    Attributes:
        low: Lower ends; NaN where the metric is undefined.
        high: Upper ends.
    """

    low: Float[np.ndarray, "*batch"]
    high: Float[np.ndarray, "*batch"]


def expected_difference(
    criterion: str,
    counts: Int[np.ndarray, "*batch groups classes classes"],
    draws: int = 200,
) -> Float[np.ndarray, "*batch"]:
    """Estimates a difference if all groups had the same rates.

    Predictions are sampled for the people of each cell. Their rates are those of all people: of
    each class for demographic parity, of each class given the label for equal opportunity and
    equalized odds, of correct predictions for accuracy parity.

    Args:
        criterion: Name of one of `group_fairness.CRITERIA`.
        counts: People by group, label and prediction; floats without fractions are accepted.
        draws: Maximum number of simulated predictions, from a fixed seed.

    Returns:
        The means; NaN where the difference is undefined in all draws.

    Raises:
        ValueError: If the criterion is unknown, or counts are no integers >= 0 of classes.

    Examples:
        >>> counts = np.array([[[25, 25], [0, 0]], [[25, 25], [0, 0]]])
        >>> round(float(expected_difference("demographic_parity", counts)), 1)
        0.1
    """
    return known_mean(_simulate(criterion, counts, draws), axis=0)


def expected_largest(
    criterion: str,
    counts: Int[np.ndarray, "*batch clients groups classes classes"],
    draws: int = 200,
) -> Float[np.ndarray, "*batch"]:
    """Estimates the largest difference of all clients if all groups had the same rates.

    It is above the largest of the clients' `expected_difference`, because another client has the
    largest one by chance in each draw. Arguments and errors are as there.

    Examples:
        >>> counts = np.array([[[[25, 25], [0, 0]], [[25, 25], [0, 0]]]] * 20)
        >>> round(float(expected_largest("demographic_parity", counts)), 1)
        0.2
    """
    values = _simulate(criterion, counts, draws)
    is_known = ~np.isnan(values)
    largest = np.where(is_known, values, -np.inf).max(axis=-1)
    return known_mean(np.where(is_known.any(axis=-1), largest, np.nan), axis=0)


def _simulate(criterion: str, counts: np.ndarray, draws: int) -> Float[np.ndarray, "draws *batch"]:
    """Samples differences of groups with equal rates."""
    counts = _checked(criterion, counts, draws)
    by_cell = counts.reshape(-1, *counts.shape[-2:]).sum(axis=0)
    draws = max(1, min(draws, _MAX_VALUES // counts.size))
    rng = np.random.default_rng(0)
    people = counts.sum(axis=-1)
    if criterion == "accuracy_parity":
        whole = people.sum(axis=-1)
        rate = np.trace(by_cell) / max(by_cell.sum(), 1)
        correct = rng.binomial(whole, rate, (draws, *whole.shape))
        # Correct ones on the diagonal of two classes, wrong ones beside.
        rows = np.stack([correct, whole - correct], axis=-1)
        cells = np.stack([rows, np.zeros_like(rows)], axis=-2)
    elif criterion == "demographic_parity":
        rates = _shares(by_cell.sum(axis=0), by_cell.sum())
        chosen = _draw(rng, people.sum(axis=-1), rates, draws)
        # Everybody in the row of label 0: the labels do not matter.
        cells = np.zeros((draws, *counts.shape), np.int64)
        cells[..., 0, :] = chosen
    else:
        rates = _shares(by_cell, by_cell.sum(axis=1, keepdims=True))
        cells = _draw(rng, people, rates, draws)
    return _evaluate(criterion, cells)


def known_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Averages over an axis, without NaN; NaN if there is nothing else."""
    is_known = ~np.isnan(values)
    total, number = np.where(is_known, values, 0).sum(axis=axis), is_known.sum(axis=axis)
    return np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)


def interval(
    criterion: str,
    counts: Int[np.ndarray, "*batch groups classes classes"],
    level: float = 0.95,
    draws: int = 500,
) -> Interval:
    """Estimates an interval of a difference by the bootstrap.

    People of each group are sampled with replacement, so that sizes of groups stay. The ends are
    percentiles. A difference is never negative, so that the interval of equal groups is above 0:
    compare it with `expected_difference`.

    Args:
        criterion: Name of one of `group_fairness.CRITERIA`.
        counts: People by group, label and prediction; floats without fractions are accepted.
        level: Share of samples between the ends, in ``(0, 1)``.
        draws: Maximum number of samples, from a fixed seed.

    Raises:
        ValueError: As `expected_difference`, or if ``level`` is no probability.

    Examples:
        >>> counts = np.array([[[90, 10], [0, 0]], [[10, 90], [0, 0]]])
        >>> low, high = interval("demographic_parity", counts)
        >>> bool(0.65 < low < 0.8 < high < 0.95)
        True
    """
    counts = _checked(criterion, counts, draws)
    checks.probability("level", level)
    draws = max(1, min(draws, _MAX_VALUES // counts.size))
    rng = np.random.default_rng(0)
    flat = counts.reshape(*counts.shape[:-2], -1)
    sizes = flat.sum(axis=-1)
    shares = _shares(flat, sizes[..., None])
    samples = rng.multinomial(sizes, shares, (draws, *sizes.shape))
    values = _evaluate(criterion, samples.reshape(draws, *counts.shape))
    ends = np.full((2, *values.shape[1:]), np.nan)
    is_known = ~np.isnan(values).all(axis=0)
    tail = (1 - level) / 2
    ends[:, is_known] = np.nanquantile(values[:, is_known], [tail, 1 - tail], axis=0)
    return Interval(ends[0], ends[1])


def _checked(criterion: str, counts: np.ndarray, draws: int) -> np.ndarray:
    checks.one_of("criterion", criterion, tuple(CRITERIA))
    checks.positive_int("draws", draws)
    given = counts = np.asarray(counts)
    # Results with missing evaluations have floats.
    if given.dtype.kind == "f" and (np.abs(given) < _MAX_COUNT).all():
        counts = given.astype(np.int64)
    is_count = counts.dtype.kind in "iu" and counts.size and counts.min() >= 0
    is_count = is_count and np.array_equal(counts, given)
    if not is_count or counts.ndim < 3 or counts.shape[-2] != counts.shape[-1]:
        raise ValueError(
            "counts: expected integers >= 0 of shape [..., groups, classes, classes], got "
            f"{given.dtype} of shape {given.shape}{' with NaN' if np.isnan(given).any() else ''}; "
            "pass counts as of group_fairness.count_groups."
        )
    return counts


def _shares(part: np.ndarray, whole: np.ndarray | np.integer) -> np.ndarray:
    """Divides; of nobody, everybody is in the first class."""
    nobody = np.zeros(np.shape(part))
    nobody[..., :1] = 1
    return np.divide(part, whole, out=nobody, where=whole > 0)


def _draw(
    rng: np.random.Generator, sizes: np.ndarray, shares: np.ndarray, draws: int
) -> np.ndarray:
    """Draws the class of ``sizes`` predictions with the probabilities ``shares``."""
    # The last class first, so that two classes draw as `binomial` does.
    drawn = rng.multinomial(sizes, shares[..., ::-1], (draws, *sizes.shape))
    return drawn[..., ::-1]


def _evaluate(criterion: str, counts: np.ndarray) -> np.ndarray:
    return np.asarray(_difference(criterion, jnp.asarray(counts, jnp.int32)))


_difference = jax.jit(difference, static_argnums=0)
