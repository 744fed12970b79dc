"""Statistical comparison of methods over runs: intervals, p values, effect sizes, power.

Runs with the same seeds are compared as pairs (`interval` of the differences), others by `welch`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.utils import checks

__all__ = [
    "Difference",
    "bootstrap",
    "effect_size",
    "holm",
    "interval",
    "runs_needed",
    "seeds_needed",
    "welch",
]

_RESAMPLES = 9999  # SciPy's default.
_MAX_RUNS = 2**20


class Difference(NamedTuple):
    """Mean difference of two methods, or a single mean compared to zero.

    All but the mean are NaN for a single run, and all for a value that is not finite.

    Attributes:
        low: Lower limit of the 95 % confidence interval (Student's t).
        mean: Mean difference.
        high: Upper limit.
        p: P value of Student's test of no difference; NaN for zero variance.
        deviation: Standard deviation of the paired differences; without pairs, root mean square of
            the standard deviations of both methods. 0 for runs equal up to rounding of float32.
    """

    low: float
    mean: float
    high: float
    p: float
    deviation: float


def interval(values: np.ndarray) -> Difference:
    """Compares the mean of one value per run, such as paired differences, to zero.

    Examples:
        >>> difference = interval(np.array([2.0, 3.0, 1.0]))
        >>> difference.mean, round(difference.high - difference.mean, 2)
        (2.0, 2.48)
    """
    sample = np.asarray(values, np.float64)
    deviation = float(np.sqrt(_variance(sample)))
    return _student(_mean(sample), deviation / np.sqrt(sample.size), sample.size - 1, deviation)


def welch(first: np.ndarray, second: np.ndarray) -> Difference:
    """Compares the values of two methods in any numbers of independent runs.

    Welch, *The generalization of "Student's" problem when several different population variances
    are involved*, 1947. The difference is ``first`` minus ``second``.

    Examples:
        >>> difference = welch(np.array([3.0, 5.0, 4.0]), np.array([1.0, 2.0]))
        >>> difference.mean, round(difference.low, 2), round(difference.high, 2)
        (2.5, 0.01, 4.99)
    """
    samples = [np.asarray(values, np.float64) for values in (first, second)]
    mean = _mean(samples[0]) - _mean(samples[1])
    sizes = np.array([sample.size for sample in samples])
    variances = np.array([_variance(sample) for sample in samples])
    of_means = variances / sizes
    squares = float(np.sum(of_means**2 / (sizes - 1)))
    freedom = float(np.sum(of_means) ** 2) / squares if squares > 0 else float(np.sum(sizes - 1))
    error = float(np.sqrt(np.sum(of_means)))
    return _student(mean, error, freedom, float(np.sqrt(np.mean(variances))))


def _mean(sample: np.ndarray) -> float:
    return float(np.mean(sample)) if sample.size and _has_variance(sample) else np.nan


def _variance(sample: np.ndarray) -> float:
    """Computes the variance, exactly 0 for equal values; NaN for fewer than two."""
    if sample.size < 2 or not _has_variance(sample):
        return np.nan
    return 0.0 if _is_constant(sample) else float(np.var(sample, ddof=1))


def _has_variance(sample: np.ndarray) -> bool:
    return bool(np.all(np.abs(sample) < 1e150))  # Squares are finite.


def _is_constant(sample: np.ndarray) -> bool:
    return bool(np.ptp(sample) <= max(1e-6 * np.max(np.abs(sample)), 1e-150))


def _student(mean: float, error: float, freedom: float, deviation: float) -> Difference:
    from scipy.special import stdtr, stdtrit  # scipy.stats takes much longer to import.

    half = float(stdtrit(freedom, 0.975)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error)) if error > 0 else np.nan
    return Difference(float(mean - half), mean, float(mean + half), p, deviation)


def bootstrap(*samples: np.ndarray) -> tuple[float, float]:
    """Computes the 95 % bootstrap interval of a mean or of a difference of two means.

    Bias-corrected and accelerated (Efron, *Better bootstrap confidence intervals*, 1987), from
    9,999 resamples with a fixed seed. Too narrow for fewer than ten runs.

    Args:
        *samples: Paired differences, ``[pairs]``, or the runs of both methods.

    Returns:
        Lower and upper limit: NaN for a single run or a value that is not finite, the difference
        itself for zero variance.

    Examples:
        >>> bootstrap(np.array([1.0, 3.0, 2.0, 2.0]))
        (1.25, 2.75)
    """
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    if not all(array.size > 1 and _has_variance(array) for array in arrays):
        return np.nan, np.nan
    if all(map(_is_constant, arrays)):
        constant = float(_difference_of_means(*arrays, axis=0))
        return constant, constant
    from scipy import stats

    seed: Any = {"random_state": np.random.default_rng(0)}  # SciPy 1.14 lacks the argument `rng`.
    limits = stats.bootstrap(
        arrays, _difference_of_means, n_resamples=_RESAMPLES, vectorized=True, **seed
    ).confidence_interval
    return float(limits.low), float(limits.high)


def _difference_of_means(first: np.ndarray, *second: np.ndarray, axis: int) -> Any:
    return np.mean(first, axis=axis) - sum(np.mean(sample, axis=axis) for sample in second)


def effect_size(difference: Difference) -> float:
    """Returns a difference in standard deviations: Cohen's d, or d_z for pairs.

    It is NaN for zero variance.

    Examples:
        >>> effect_size(interval(np.array([2.0, 3.0, 1.0])))
        2.0
    """
    return difference.mean / difference.deviation if difference.deviation > 0 else np.nan


def holm(p_values: Sequence[float], num_comparisons: int | None = None) -> np.ndarray:
    """Adjusts p values for multiple comparisons, which controls the family-wise error rate.

    Holm, *A simple sequentially rejective multiple test procedure*, 1979.

    Args:
        p_values: P values; NaN stays NaN.
        num_comparisons: Size of the family, including comparisons without a p value, such as runs
            that are equal in every seed. By default the number of p values that are not NaN.

    Raises:
        ValueError: If ``num_comparisons`` is less than the number of p values.

    Examples:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
        >>> holm([0.01, float("nan")], num_comparisons=2).tolist()
        [0.02, nan]
    """
    values = np.asarray(p_values, np.float64)
    adjusted = np.full(values.shape, np.nan)
    valid = np.flatnonzero(~np.isnan(values))
    ascending = valid[np.argsort(values[valid], kind="stable")]
    family = len(ascending) if num_comparisons is None else num_comparisons
    if family < len(ascending):
        raise ValueError(
            f"num_comparisons={family}: expected at least the {len(ascending)} p values; pass None "
            "to count them."
        )
    steps = np.arange(family, family - len(ascending), -1) * values[ascending]
    adjusted[ascending] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def seeds_needed(
    difference: float, deviation: float, power: float = 0.8, *, paired: bool = True
) -> float:
    """Computes the number of seeds for which Student's test at the 5 % level has a given power.

    Args:
        difference: The true difference.
        deviation: The true deviation, as in `Difference`.
        power: Probability of a significant result, in ``[0, 1)``.
        paired: Whether both methods have the same seeds.

    Returns:
        Seeds per method: infinity for no difference or more than a million, NaN for a difference or
        deviation that is not finite.

    Raises:
        ValueError: If ``power`` is out of range.

    Examples:
        >>> seeds_needed(difference=0.5, deviation=1.0)
        34.0
        >>> seeds_needed(difference=0.5, deviation=1.0, paired=False)
        64.0
    """
    checks.unit_interval("power", power)
    if not np.isfinite(difference) or not np.isfinite(deviation):
        return np.nan
    if difference == 0:
        return np.inf
    from scipy.special import stdtrit

    means = 1 if paired else 2  # Both methods vary if they have no seeds in common.

    def test(seeds: int) -> tuple[float, float, float]:
        shift = abs(difference) / deviation * np.sqrt(seeds / means) if deviation > 0 else np.inf
        freedom = means * (seeds - 1)
        return shift, freedom, stdtrit(freedom, 0.975)

    return runs_needed(test, power, at_least=2)


def runs_needed(
    test: Callable[[int], tuple[float, float, float]], power: float, at_least: int
) -> float:
    """Finds the smallest number of runs for which a t test has a given power.

    Args:
        test: Function of the number of runs that returns the noncentrality, the degrees of freedom
            and the limit that t must exceed.
        power: Probability of a significant result.
        at_least: Smallest number of runs to try.

    Returns:
        The number; infinity for more than a million.
    """
    from scipy.special import nctdtr

    def is_enough(runs: int) -> bool:
        shift, freedom, limit = test(runs)
        # Above 30 the power is 1, and `nctdtr` fails.
        return bool(shift > 30 or 1 - nctdtr(freedom, shift, limit) >= power)

    if not is_enough(_MAX_RUNS):
        return np.inf
    tried = range(at_least, _MAX_RUNS)
    return float(at_least + bisect.bisect_left(tried, True, key=is_enough))
