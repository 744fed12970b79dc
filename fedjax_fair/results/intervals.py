"""Student's 95% confidence intervals of means over seeds, and numbers as text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Interval", "format_half_width", "format_mean", "format_number", "format_p", "student"]


class Interval(NamedTuple):
    """Mean and ends of the interval, arrays of one shape."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def student(values: ArrayLike) -> Interval:
    """Computes Student's 95% interval of the mean over the last axis.

    Args:
        values: ``[..., seeds]``.

    Returns:
        Arrays ``[...]``. The ends are NaN for a single seed; everything is NaN where a value is.

    Examples:
        >>> [round(float(end), 2) for end in student([1.0, 2.0, 3.0])]
        [2.0, -0.48, 4.48]
    """
    from scipy.special import stdtrit  # Imports much faster than scipy.stats.

    runs = np.asarray(values, np.float64)
    mean, seeds = runs.mean(axis=-1), runs.shape[-1]
    if seeds < 2:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    half = stdtrit(seeds - 1, 0.975) * runs.std(axis=-1, ddof=1) / np.sqrt(seeds)
    return Interval(mean, mean - half, mean + half)


def format_mean(values: ArrayLike, digits: int = 1) -> str:
    """Formats the mean of ``values`` (``[seeds]``) with `format_half_width`.

    Examples:
        >>> format_mean([1.0, 2.0, 3.0]), format_mean([50.0, 50.0]), format_mean([0.5])
        ('2.0 ± 2.5', '50.0', '0.5')
    """
    mean, low, high = (float(part) for part in student(values))
    return format_half_width(mean, (high - low) / 2, f",.{digits}f")


def format_half_width(mean: float, half: float, form: str) -> str:
    """Formats a mean and half the width of its 95% interval, the only meaning of ± in tables.

    Examples:
        >>> format_half_width(2.0, 2.48, ".1f"), format_half_width(2.0, 0.01, ".1f")
        ('2.0 ± 2.5', '2.0')
    """
    shown, width = format_number(mean, form), format_number(half, form)
    return f"{shown} ± {width}" if width.strip("-0.") else shown


def format_p(p: float) -> str:
    """Formats a p-value.

    Examples:
        >>> format_p(0.0312), format_p(1e-7), format_p(1.0), format_p(float("nan"))
        ('.031', '< .001', '1.000', '-')
    """
    return "< .001" if p < 0.001 else format_number(p, ".3f").lstrip("0")


def format_number(value: float, form: str = "+.1f") -> str:
    """Formats a number, ``-`` for NaN; zero has no sign.

    Examples:
        >>> format_number(1.23), format_number(-0.01), format_number(float("nan"))
        ('+1.2', '0.0', '-')
    """
    text = "-" if np.isnan(value) else f"{value:{form}}"
    return text if text.strip("+-0.") else text.strip("+-") or "-"
