"""Verdicts of the protocol: paired tests of differences, and what they say about a claim."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

from fedjax_fair.metrics import paired

__all__ = [
    "Comparison", "Result", "Verdict", "add_verdicts", "detectable", "equivalent", "judge",
    "sign_flip",
]  # fmt: skip

Verdict = Literal[
    "reproduced", "contradicted", "size excluded", "same direction", "opposite direction",
    "not informative", "undecided",
]  # fmt: skip
LEVEL = 0.05
POWER = 0.8
MOST_COINCIDING = 1 / 3
"""Share of equal rounds above which a mean over rounds says little about a difference."""
OF_PAPERS = "last round"
"""The endpoint that the papers report."""
PATTERNS, KEY = 100_000, 61
"""Random signs, and their key, where all patterns are too many."""


class Comparison(NamedTuple):
    """Paired differences by which a claim is judged.

    Attributes:
        differences: Paired differences, ``[seeds]``.
        sign: The claimed sign, 1 or -1.
        published: The paper's difference; NaN if it has none.
        endpoint: Name of the endpoint; ``OF_PAPERS`` is what the published difference is of.
        coinciding: Share of the evaluated rounds in which both methods have equal results.
    """

    differences: np.ndarray
    sign: float
    published: float
    endpoint: str
    coinciding: float


class Result(NamedTuple):
    """Test of a difference within a family.

    Attributes:
        mean: Mean paired difference.
        low: Lower limit of the 95% interval (Student's t).
        high: Upper limit.
        p: P value of the t test, adjusted (Holm).
        p_sign_flip: P value of the sign-flip permutation test, adjusted.
        detectable: Smallest difference found with probability 0.8 at the first step of Holm.
        verdict: What it says about the claim on this endpoint.
    """

    mean: float
    low: float
    high: float
    p: float
    p_sign_flip: float
    detectable: float
    verdict: Verdict


def sign_flip(differences: np.ndarray) -> float:
    """Computes the two-sided p value of the sign-flip permutation test of a zero mean.

    It is exact up to 22 seeds, and of 100,000 random patterns with more.

    Args:
        differences: One per seed.

    Examples:
        >>> sign_flip(np.array([1.0, 2.0, 3.0]))
        0.25
    """
    values = np.asarray(differences, np.float64)
    if not values.size:
        raise ValueError("differences: expected one or more values, got none.")
    sums = np.zeros(1)
    if values.size > 22:
        signs = np.random.default_rng(KEY).choice((-1.0, 1.0), (PATTERNS, values.size))
        sums = np.append(signs @ values, values.sum())  # The observed pattern counts.
    else:
        for value in values:
            sums = np.concatenate([sums + value, sums - value])
    # Sums that differ by rounding only are equal.
    extreme = np.abs(sums) >= np.abs(values.sum()) - 1e-12 * np.abs(values).sum()
    return float(np.mean(extreme))


def detectable(deviation: float, seeds: int, claims: int = 1) -> float:
    """Returns the smallest difference that a t test finds with probability 0.8.

    Args:
        deviation: Standard deviation of the paired differences.
        seeds: Number of seeds.
        claims: Number of claims at the first step of Holm.

    Examples:
        >>> round(detectable(0.55, 20), 2), round(detectable(0.55, 20, 20), 2)
        (0.36, 0.54)
    """
    return float(deviation * _noncentrality(seeds, claims) / np.sqrt(seeds))


@cache
def _noncentrality(seeds: int, claims: int) -> float:
    limit = stats.t.ppf(1 - LEVEL / (2 * claims), seeds - 1)
    found: Any = optimize.brentq(
        lambda nc: stats.nct.sf(limit, seeds - 1, nc) - POWER, 0.1, 3 * limit + 3
    )
    return found


def equivalent(differences: np.ndarray, margin: float) -> bool:
    """Returns whether the 90% interval of the mean is within a margin (two one-sided tests)."""
    half = stats.t.ppf(1 - LEVEL, len(differences) - 1) * stats.sem(differences)
    return bool(abs(np.mean(differences)) + half < margin)


def judge(family: Mapping[Any, Comparison]) -> dict[Any, Result]:
    """Tests a family of claims about the sign of a difference.

    On the endpoint of the papers a claim is *reproduced* if the difference has the claimed sign and
    both adjusted p values are below .05, and *contradicted* if this holds for the opposite sign. On
    other endpoints it has the *same direction* or the *opposite direction*. Otherwise

    - *size excluded*, on the endpoint of the papers only: the interval at level 1 - .05 / m
      (Bonferroni, m claims) excludes every difference of half the published size or more, and the
      results are equal in a third of the rounds or fewer;
    - *not informative*, on other endpoints: the results are equal in more rounds;
    - *undecided*: none of these.

    Raises:
        ValueError: If a sign is not 1 or -1, or a share is not in ``[0, 1]``.
    """
    for claim, one in family.items():
        if one.sign not in (-1, 1):
            raise ValueError(f"{claim}: sign={one.sign}: expected 1 or -1.")
        if not 0 <= one.coinciding <= 1:
            raise ValueError(f"{claim}: coinciding={one.coinciding}: expected a share in [0, 1].")
    tests = {claim: paired.interval(one.differences) for claim, one in family.items()}
    # Runs that are equal in every seed count as a comparison.
    p = paired.holm([test.p for test in tests.values()], len(tests))
    flips = paired.holm([sign_flip(one.differences) for one in family.values()])
    results = {}
    for (claim, one), adjusted, flipped in zip(family.items(), p, flips, strict=True):
        test, seeds = tests[claim], len(one.differences)
        half = stats.t.ppf(1 - LEVEL / (2 * len(tests)), seeds - 1)
        half *= test.deviation / np.sqrt(seeds)
        is_of_papers = one.endpoint == OF_PAPERS
        verdict: Verdict = "undecided"
        if adjusted < LEVEL and flipped < LEVEL:
            has_sign = one.sign * test.mean > 0
            if is_of_papers:
                verdict = "reproduced" if has_sign else "contradicted"
            else:
                verdict = "same direction" if has_sign else "opposite direction"
        elif one.coinciding > MOST_COINCIDING:
            verdict = "undecided" if is_of_papers else "not informative"
        elif is_of_papers and one.sign * test.mean + half < abs(one.published) / 2:
            verdict = "size excluded"
        results[claim] = Result(
            test.mean, test.low, test.high, float(adjusted), float(flipped),
            detectable(test.deviation, seeds, len(tests)), verdict,
        )  # fmt: skip
    return results


def add_verdicts(table: pd.DataFrame, above: str, below: str) -> pd.DataFrame:
    """Adds ``p_holm`` and ``verdict``, of the claims among the rows of a study.

    Args:
        table: Rows with a ``difference`` and a ``p``, which is NaN where the row is no claim.
        above: Verdict on a significant difference above 0.
        below: The same below 0. Other claims are undecided, and other rows have no verdict.
    """
    p_holm = np.array(paired.holm(table["p"].tolist()))
    is_claim, is_significant = table["p"].notna(), p_holm < LEVEL
    verdicts = np.select(
        [is_significant & (table["difference"] > 0), is_significant, is_claim],
        [above, below, "undecided"],
        "",
    )
    return table.assign(p_holm=p_holm, verdict=verdicts)
