"""What paired runs can tell: intervals, p values of several comparisons, how many runs it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Paired", "compare", "holm", "seeds_needed"]


class Paired(NamedTuple):
    """Differences between runs of two methods on the same seeds.

    Attributes:
        low: Lower end of the 95 % interval of Student's t; NaN for a single pair.
        mean: The mean difference.
        high: The upper end.
        p: Of Student's paired test of no difference; NaN for a single pair, and where all pairs are
            exactly equal, which is no evidence of anything.
        deviation: Standard deviation of the differences.
    """

    low: float
    mean: float
    high: float
    p: float
    deviation: float


def compare(own: np.ndarray, other: np.ndarray) -> Paired:
    """Compares two methods over the same seeds.

    Args:
        own: One number a seed, ``[seeds]``.
        other: Those of the other method, in the same order.

    Returns:
        A ``Paired`` of ``own`` less ``other``.

    Examples:
        >>> found = compare(np.array([3.0, 5.0, 4.0]), np.array([1.0, 2.0, 3.0]))
        >>> found.mean, round(found.low, 2), round(found.high, 2)
        (2.0, -0.48, 4.48)
    """
    gaps = np.asarray(own, np.float64) - np.asarray(other, np.float64)
    mean = float(np.mean(gaps))
    if gaps.size < 2:
        return Paired(np.nan, mean, np.nan, np.nan, np.nan)
    from scipy import stats  # Half a second that only comparisons should take.

    deviation = float(np.std(gaps, ddof=1))
    error = deviation / np.sqrt(gaps.size)
    half = float(stats.t.ppf(0.975, gaps.size - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, gaps.size - 1)) if error > 0 else np.nan
    return Paired(float(mean - half), mean, float(mean + half), p, deviation)


def holm(p_values: Sequence[float]) -> np.ndarray:
    """P values of several comparisons, adjusted so that one false alarm in all stays at 5 %.

    Holm, *A simple sequentially rejective multiple test procedure*, 1979. NaN stays NaN and does
    not count as a comparison.

    Args:
        p_values: Of each comparison.

    Returns:
        The adjusted ones, in the same order.

    Examples:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, np.float64)
    adjusted = np.full(values.shape, np.nan)
    tried = np.flatnonzero(~np.isnan(values))
    ascending = tried[np.argsort(values[tried], kind="stable")]
    steps = np.arange(len(ascending), 0, -1) * values[ascending]
    adjusted[ascending] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def seeds_needed(difference: float, deviation: float, power: float = 0.8) -> float:
    """Paired seeds with which a difference is found, with this probability, at the 5 % level.

    The smallest number for which Student's paired test has the power, were the deviation of the
    differences as it was measured.

    Args:
        difference: What is to be found.
        deviation: Standard deviation of the differences between paired runs.
        power: The probability.

    Returns:
        The number; infinite for no difference or if a million would not do, NaN if an argument is.

    Examples:
        >>> seeds_needed(difference=0.5, deviation=1.0)
        34.0
    """
    if not np.isfinite(difference) or not np.isfinite(deviation):
        return np.nan
    if difference == 0:
        return np.inf
    from scipy import stats

    def enough(seeds: int) -> bool:
        shift = abs(difference) / deviation * np.sqrt(seeds) if deviation > 0 else np.inf
        if shift > 30:  # As good as certain, and more than the distribution computes.
            return True
        limit = stats.t.ppf(0.975, seeds - 1)
        return bool(stats.nct.sf(limit, seeds - 1, shift) >= power)

    high = 2
    while not enough(high):
        if high > 10**6:
            return np.inf
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle >= 2 and enough(middle) else (middle, high)
    return float(high)
