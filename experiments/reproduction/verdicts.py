"""Verdicts of the protocol: paired tests of differences, and what they say about a claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from fedjax_fair.metrics import paired

__all__ = ["Result", "Verdict", "judge", "sign_flip"]

Verdict = Literal["reproduced", "refuted", "undecided"]
LEVEL = 0.05


class Result(NamedTuple):
    """Test of a difference within a family.

    Attributes:
        mean: Mean paired difference.
        low: Lower limit of the 95% interval (Student's t).
        high: Upper limit.
        p: P value of the t test, adjusted (Holm).
        p_sign_flip: P value of the sign-flip permutation test, adjusted.
        verdict: What it says about the published difference.
    """

    mean: float
    low: float
    high: float
    p: float
    p_sign_flip: float
    verdict: Verdict


def sign_flip(differences: np.ndarray) -> float:
    """Computes the exact two-sided p value of the sign-flip permutation test of a zero mean.

    Args:
        differences: One per seed, at most 22.

    Examples:
        >>> sign_flip(np.array([1.0, 2.0, 3.0]))
        0.25
    """
    values = np.asarray(differences, np.float64)
    if not 0 < values.size <= 22:
        raise ValueError(f"differences: expected 1 to 22 values, got {values.size}.")
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    # Sums that differ by rounding only are equal.
    extreme = np.abs(sums) >= np.abs(values.sum()) - 1e-12 * np.abs(values).sum()
    return float(np.mean(extreme))


def judge(
    differences: Mapping[str, np.ndarray], published: Mapping[str, float]
) -> dict[str, Result]:
    """Tests a family of claims about the sign of a difference.

    A claim is *reproduced* if the difference has the published sign and both adjusted p values are
    below .05. It is *refuted* if this holds for the opposite sign, or if the interval at level
    1 - .05 / m (Bonferroni, m claims) excludes every difference of half the published size or more.
    Otherwise it is *undecided*.

    Args:
        differences: Paired differences, ``[seeds]``, by claim. They are all claims of the family.
        published: The paper's difference by claim.

    Raises:
        ValueError: If the claims differ, or a published difference is zero.
    """
    if differences.keys() != published.keys():
        raise ValueError(f"published: expected {sorted(differences)}, got {sorted(published)}.")
    if not all(published.values()):
        raise ValueError("published: a difference of zero has no sign.")
    tests = {claim: paired.interval(values) for claim, values in differences.items()}
    # Runs that are equal in every seed count as a comparison.
    p = paired.holm([test.p for test in tests.values()], len(tests))
    flips = paired.holm([sign_flip(values) for values in differences.values()])
    results = {}
    for claim, adjusted, flipped in zip(tests, p, flips, strict=True):
        test, expected = tests[claim], published[claim]
        sign = np.sign(expected)
        half = stats.t.ppf(1 - LEVEL / (2 * len(tests)), differences[claim].size - 1)
        half *= test.deviation / np.sqrt(differences[claim].size)
        verdict: Verdict = "undecided"
        if adjusted < LEVEL and flipped < LEVEL:
            verdict = "reproduced" if sign * test.mean > 0 else "refuted"
        elif sign * test.mean + half < abs(expected) / 2:
            verdict = "refuted"
        results[claim] = Result(
            test.mean, test.low, test.high, float(adjusted), float(flipped), verdict
        )
    return results
