"""The one kind of uncertainty in figures and on pages: 95 % intervals of a mean over seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Interval", "as_text", "signed", "student"]


class Interval(NamedTuple):
    """A mean and the ends of its interval, arrays of one shape."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def student(values: ArrayLike) -> Interval:
    """Student's 95 % interval of the mean over the last axis.

    Args:
        values: ``[..., seeds]``.

    Returns:
        Arrays of shape ``[...]``. The ends are NaN for a single seed, and all is where a value is.

    Examples:
        >>> found = student([1.0, 2.0, 3.0])
        >>> [round(float(end), 2) for end in found]
        [2.0, -0.48, 4.48]
    """
    from scipy.special import stdtrit  # Quickly there, unlike all of scipy.stats.

    runs = np.asarray(values, np.float64)
    mean, seeds = runs.mean(axis=-1), runs.shape[-1]
    if seeds < 2:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    half = stdtrit(seeds - 1, 0.975) * runs.std(axis=-1, ddof=1) / np.sqrt(seeds)
    return Interval(mean, mean - half, mean + half)


def as_text(values: ArrayLike, digits: int = 1) -> str:
    """The mean and half the width of its interval; no half where all values shown are the same.

    Args:
        values: ``[seeds]``.
        digits: Decimals.

    Examples:
        >>> as_text([1.0, 2.0, 3.0]), as_text([50.0, 50.0]), as_text([0.5])
        ('2.0 ± 2.5', '50.0', '0.5')
    """
    mean, low, high = (float(part) for part in student(values))
    if np.isnan(mean):
        return "\N{EN DASH}"
    half = f"{(high - low) / 2:,.{digits}f}"
    shown = f"{mean:,.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return shown if np.isnan(low) or float(half.replace(",", "")) == 0 else f"{shown} ± {half}"


def signed(number: float) -> str:
    """A difference with its sign, and with none where all digits shown are zero.

    Examples:
        >>> signed(1.23), signed(-0.01)
        ('+1.2', '0.0')
    """
    if f"{abs(number):.1f}" == "0.0":
        return "0.0"
    return f"{number:+.1f}".replace("-", "\N{MINUS SIGN}")
