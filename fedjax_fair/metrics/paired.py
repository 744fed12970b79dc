"""What runs can tell of two methods: intervals, effects, p values, how many runs it takes.

Runs on the same seeds are paired; others are compared without (`welch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Difference",
    "bootstrap",
    "compare",
    "effect_size",
    "holm",
    "interval",
    "seeds_needed",
    "welch",
]

_RESAMPLES = 9999  # SciPy's own choice: the ends of an interval then hardly depend on the draws.


class Difference(NamedTuple):
    """The difference between the means of two methods, or a mean alone.

    Attributes:
        low: Lower end of the 95 % interval of Student's t; NaN for a single run.
        mean: The mean difference.
        high: The upper end.
        p: Of Student's test of no difference; NaN for a single run, and where nothing varies, which
            is no evidence of anything.
        deviation: Standard deviation of the differences of pairs; of runs without pairs, the root
            mean square of the standard deviations of both methods.
    """

    low: float
    mean: float
    high: float
    p: float
    deviation: float


def compare(own: np.ndarray, other: np.ndarray) -> Difference:
    """Compares two methods over the same seeds.

    Args:
        own: One number a seed, ``[seeds]``.
        other: Those of the other method, in the same order.

    Returns:
        A ``Difference`` of ``own`` less ``other``.

    Examples:
        >>> found = compare(np.array([3.0, 5.0, 4.0]), np.array([1.0, 2.0, 3.0]))
        >>> found.mean, round(found.low, 2), round(found.high, 2)
        (2.0, -0.48, 4.48)
    """
    return interval(np.asarray(own, np.float64) - np.asarray(other, np.float64))


def interval(values: np.ndarray) -> Difference:
    """The mean of runs, and what Student's t says of its difference to zero.

    Args:
        values: One number a run, ``[runs]``.

    Returns:
        A ``Difference`` to zero.

    Examples:
        >>> found = interval(np.array([2.0, 3.0, 1.0]))
        >>> found.mean, round(found.high - found.mean, 2)
        (2.0, 2.48)
    """
    gaps = np.asarray(values, np.float64)
    mean = float(np.mean(gaps))
    if gaps.size < 2:
        return Difference(np.nan, mean, np.nan, np.nan, np.nan)
    deviation = float(np.std(gaps, ddof=1))
    return _student(mean, deviation / np.sqrt(gaps.size), gaps.size - 1, deviation)


def welch(own: np.ndarray, other: np.ndarray) -> Difference:
    """Compares two methods over runs that have nothing in common.

    Welch, *The generalization of "Student's" problem when several different population variances
    are involved*, 1947.

    Args:
        own: One number a run, ``[runs]``.
        other: Those of the other method; there may be more or fewer.

    Returns:
        A ``Difference`` of ``own`` less ``other``.

    Examples:
        >>> found = welch(np.array([3.0, 5.0, 4.0]), np.array([1.0, 2.0]))
        >>> found.mean, round(found.low, 2), round(found.high, 2)
        (2.5, 0.01, 4.99)
    """
    samples = [np.asarray(values, np.float64) for values in (own, other)]
    mean = float(np.mean(samples[0]) - np.mean(samples[1]))
    if min(sample.size for sample in samples) < 2:
        return Difference(np.nan, mean, np.nan, np.nan, np.nan)
    variances = np.array([np.var(sample, ddof=1) for sample in samples])
    sizes = np.array([sample.size for sample in samples])
    of_mean = variances / sizes
    squares = float(np.sum(of_mean**2 / (sizes - 1)))
    freedom = float(np.sum(of_mean) ** 2) / squares if squares > 0 else float(np.sum(sizes - 1))
    error = float(np.sqrt(np.sum(of_mean)))
    return _student(mean, error, freedom, float(np.sqrt(np.mean(variances))))


def _student(mean: float, error: float, freedom: float, deviation: float) -> Difference:
    from scipy.special import stdtr, stdtrit  # Quickly there, unlike all of scipy.stats.

    half = float(stdtrit(freedom, 0.975)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error)) if error > 0 else np.nan
    return Difference(float(mean - half), mean, float(mean + half), p, deviation)


def bootstrap(*samples: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean, or of the difference of two means, by resampling runs.

    It assumes no normal distribution, but knows no value that was not seen: of fewer than ten runs
    it is often too narrow. Bias-corrected and accelerated (Efron, *Better bootstrap confidence
    intervals*, 1987), from 9,999 samples that are the same in every call.

    Args:
        *samples: The differences of pairs, ``[pairs]``; or the runs of both methods.

    Returns:
        Both ends; NaN for a single run. Where nothing varies both are the difference itself.

    Examples:
        >>> bootstrap(np.array([1.0, 3.0, 2.0, 2.0]))
        (1.25, 2.75)
    """
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    if min(array.size for array in arrays) < 2:
        return np.nan, np.nan
    if all(np.ptp(array) == 0 for array in arrays):
        same = float(_difference_of_means(*arrays, axis=0))
        return same, same
    from scipy import stats

    seed: Any = {"random_state": np.random.default_rng(0)}  # SciPy 1.14 does not know `rng` yet.
    drawn = stats.bootstrap(
        arrays, _difference_of_means, n_resamples=_RESAMPLES, vectorized=True, **seed
    )
    ends = drawn.confidence_interval
    return float(ends.low), float(ends.high)


def _difference_of_means(own: np.ndarray, *other: np.ndarray, axis: int) -> Any:
    return np.mean(own, axis=axis) - sum(np.mean(one, axis=axis) for one in other)


def effect_size(found: Difference) -> float:
    """How large a difference is in standard deviations (Cohen's d).

    Args:
        found: Of pairs, whose differences have the deviation (Cohen's d_z), or of runs without.

    Returns:
        The effect; NaN where nothing varies.

    Examples:
        >>> effect_size(compare(np.array([3.0, 5.0, 4.0]), np.array([1.0, 2.0, 3.0])))
        2.0
    """
    return found.mean / found.deviation if found.deviation > 0 else np.nan


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


def seeds_needed(
    difference: float, deviation: float, power: float = 0.8, *, paired: bool = True
) -> float:
    """Seeds with which a difference is found, with this probability, at the 5 % level.

    The smallest number for which Student's test has the power, were the deviation as it was
    measured.

    Args:
        difference: What is to be found.
        deviation: As in ``Difference``.
        power: The probability.
        paired: Whether both methods have the same seeds, or as many others each.

    Returns:
        The number; infinite for no difference or if a million would not do, NaN if an argument is.

    Examples:
        >>> seeds_needed(difference=0.5, deviation=1.0)
        34.0
        >>> seeds_needed(difference=0.5, deviation=1.0, paired=False)
        64.0
    """
    if not np.isfinite(difference) or not np.isfinite(deviation):
        return np.nan
    if difference == 0:
        return np.inf
    from scipy.special import nctdtr, stdtrit

    means = 1 if paired else 2  # Both vary, where they have no seeds in common.

    def enough(seeds: int) -> bool:
        shift = abs(difference) / deviation * np.sqrt(seeds / means) if deviation > 0 else np.inf
        if shift > 30:  # As good as certain, and more than the distribution computes.
            return True
        freedom = means * (seeds - 1)
        return bool(1 - nctdtr(freedom, shift, stdtrit(freedom, 0.975)) >= power)

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
