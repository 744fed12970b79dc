"""Differences of methods to a baseline, paired by block, and tests of families of differences.

A block is a tuning seed with its settings, the setting that it selects, and a final seed; the final
seed names it. Blocks are the sampled unit, and federations are fixed, so that results are about
these federations only. Tables of measures are as of `measures.table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_fair.benchmark.federations import quantity_of
from fedjax_fair.metrics import paired
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "HIGHER_IS_BETTER",
    "LEVEL",
    "MARGIN",
    "OVERALL",
    "Family",
    "as_gains",
    "blocks_needed",
    "differences",
    "direction",
    "estimate",
    "replace_diverged",
    "rows_of",
    "select",
    "step_down",
]

LEVEL = 0.05
"""Significance level of adjusted p values."""

MARGIN = 0.005
"""Differences of accuracy and spread below half a point count as equivalent."""

OVERALL = "overall"
"""Name of the scope of all federations."""

_POWER = 0.8
_MIN_BLOCKS = 6
"""The signs of fewer blocks give no p value below `LEVEL`."""
_MAX_FLIPPED = 20
"""Blocks whose signs are enumerated, at most."""

HIGHER_IS_BETTER = (
    "accuracy",
    "worst_10pct",
    "unseen_accuracy",
    "unseen_worst_10pct",
    "adapted_accuracy",
    "adapted_worst_10pct",
)
"""Measures of which a higher value is better, unless they are errors; of others, a lower one is."""

_SPREADS = ("standard_deviation", "dissimilarity")
"""Other measures in the unit of the accuracy, or of another quantity."""


def direction(measure: str) -> int:
    """Returns 1 if a higher value of the measure is better, and -1 if a lower one is."""
    return 1 if measure in HIGHER_IS_BETTER else -1


def as_gains(
    measures: pd.DataFrame, constants: Mapping[tuple[str, str], float], column: str = "value"
) -> pd.DataFrame:
    """Makes errors comparable with accuracies: fractions, of which more are better.

    Errors and their spread are divided by the mean error of the constant predictor, and errors,
    of which lower ones are better, are negative. Accuracies stay as they are.

    Args:
        measures: Table of measures.
        constants: Values of the constant predictor by federation and measure.
        column: Column of the values.
    """

    def factor(federation: str, measure: str) -> float:
        quantity = quantity_of(federation)
        if quantity == ACCURACY or measure not in (*HIGHER_IS_BETTER, *_SPREADS):
            return 1.0
        is_error = quantity.better == "lower" and measure in HIGHER_IS_BETTER
        scale = constants.get((federation, "accuracy"), np.nan)
        return (-1 if is_error else 1) / (scale if scale > 0 else 1)

    table: Any = measures
    factors = [factor(*key) for key in zip(table["federation"], table["measure"], strict=True)]
    return table.assign(**{column: table[column] * factors})


def replace_diverged(
    measures: pd.DataFrame, constants: Mapping[tuple[str, str], float]
) -> pd.DataFrame:
    """Replaces the values of diverged runs by those of the constant predictor.

    Args:
        measures: Table of measures.
        constants: Values by federation and measure. Without an entry, a value stays as it is.

    Examples:
        >>> import pandas as pd
        >>> table = pd.DataFrame(
        ...     {
        ...         "federation": ["digits", "digits"],
        ...         "measure": ["accuracy", "loss"],
        ...         "value": [float("nan"), 9.0],
        ...         "is_diverged": [True, True],
        ...     }
        ... )
        >>> replace_diverged(table, {("digits", "accuracy"): 0.1}).value.tolist()
        [0.1, 9.0]
    """
    table: Any = measures
    keys = zip(table["federation"], table["measure"], strict=True)
    found = np.array([constants.get(key, np.nan) for key in keys], float)
    is_replaced = table["is_diverged"].astype(bool) & ~np.isnan(found)
    return table.assign(value=table["value"].astype(float).mask(is_replaced, found))


def rows_of(measures: pd.DataFrame, measure: str, criterion: str) -> Any:
    """Returns the rows of one measure of the runs chosen by one criterion."""
    return measures[(measures["measure"] == measure) & (measures["criterion"] == criterion)]


def select(measures: pd.DataFrame, measure: str, criterion: str) -> pd.DataFrame:
    """Selects one measure of the runs chosen by one criterion.

    Returns:
        A row per federation and method, in their order, and a column per seed; NaN is missing.

    Raises:
        ValueError: If the measure or the criterion is missing, if a federation, method and seed
            have two values, or if there are fewer than two seeds.
    """
    import pandas as pd

    checks.one_of("measure", measure, tuple(measures["measure"].unique()))
    checks.one_of("criterion", criterion, tuple(measures["criterion"].unique()))
    chosen = rows_of(measures, measure, criterion)
    keys = ["federation", "method", "seed"]
    if (repeated := chosen.duplicated(keys)).any():
        first = ", ".join(f"{name}={chosen.loc[repeated, name].iloc[0]}" for name in keys)
        raise ValueError(
            f"measures: expected one value of {measure!r} per run, got two of {first}."
        )
    seeds = chosen.loc[chosen["value"].notna(), "seed"].nunique()
    if seeds < 2:
        raise ValueError(f"measures: expected two or more seeds with {measure!r}, got {seeds}.")
    parts = {
        federation: own.pivot(index="method", columns="seed", values="value").loc[
            own["method"].unique()
        ]
        for federation, own in chosen.groupby("federation", sort=False)
    }
    return pd.concat(parts, names=["federation"])


def differences(
    measures: pd.DataFrame, measure: str, criterion: str, baseline: str
) -> pd.DataFrame:
    """Computes the differences of all other methods to the baseline, by block.

    Returns:
        A row per federation and method, where the baseline ran, and a column per block. A value
        that is missing or infinite in one of both methods is NaN.

    Raises:
        ValueError: As `select`.

    Examples:
        >>> import pandas as pd
        >>> run = {"federation": "digits", "criterion": "mean", "measure": "accuracy"}
        >>> run |= {"is_diverged": False}
        >>> table = pd.DataFrame(
        ...     run | {"method": method, "seed": 1200 + block, "value": value}
        ...     for method, values in {"fedavg": [0.5, 0.75], "ditto": [0.75, 1.0]}.items()
        ...     for block, value in enumerate(values)
        ... )
        >>> differences(table, "accuracy", "mean", "fedavg").loc["digits", "ditto"].tolist()
        [0.25, 0.25]
    """
    runs: Any = select(measures, measure, criterion)
    names = runs.index.get_level_values("method")
    of_baseline, others = runs[names == baseline].droplevel("method"), runs[names != baseline]
    federations = others.index.get_level_values("federation")
    is_compared = federations.isin(of_baseline.index)
    others, federations = others[is_compared], federations[is_compared]
    return (others - of_baseline.loc[federations].to_numpy()).replace([np.inf, -np.inf], np.nan)


def estimate(gaps: pd.DataFrame, se_pool: np.ndarray | None = None) -> pd.DataFrame:
    """Estimates mean differences with Student's intervals of B - 1 degrees of freedom.

    Args:
        gaps: Differences ``[hypotheses, blocks]``; NaN is missing.
        se_pool: Standard errors ``[hypotheses]`` by the test pool, which all blocks share. NaN
            counts as 0.

    Returns:
        A row per hypothesis: ``blocks`` without NaN; the mean ``difference``; the ``deviation`` of
        a block; ``se_blocks`` and ``se_pool``; the 95% interval by blocks alone, from
        ``low_blocks`` to ``high_blocks``, and with both standard errors, from ``low`` to ``high``;
        and ``p_equivalent``, of two one-sided tests against `MARGIN` with both. It is below 0.05 if
        the 90% interval is within the margin. With one block, only the difference is known.

    Examples:
        >>> import pandas as pd
        >>> row = estimate(pd.DataFrame([[2.0, 3.0, 1.0]]), np.array([0.5])).loc[0]
        >>> row[["difference", "high_blocks", "high"]].round(2).tolist()
        [2.0, 4.48, 5.29]
    """
    import pandas as pd
    from scipy.special import stdtr, stdtrit  # scipy.stats takes much longer to import.

    blocks = gaps.notna().sum(axis=1).to_numpy()
    mean = gaps.mean(axis=1).to_numpy()
    freedom = np.where(blocks > 1, blocks - 1, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):  # A loss may be infinite.
        deviation = gaps.std(axis=1).to_numpy()
        by_blocks = deviation / np.sqrt(blocks)
        pool = np.full(len(gaps), np.nan) if se_pool is None else np.asarray(se_pool, float)
        both = np.hypot(by_blocks, np.nan_to_num(pool))
        distance = (MARGIN - abs(mean)) / both
    quantile = stdtrit(freedom, 1 - LEVEL / 2)
    return pd.DataFrame(
        {
            "blocks": blocks, "difference": mean, "deviation": deviation,
            "se_blocks": by_blocks, "se_pool": pool,
            "low_blocks": mean - quantile * by_blocks, "high_blocks": mean + quantile * by_blocks,
            "low": mean - quantile * both, "high": mean + quantile * both,
            "p_equivalent": stdtr(freedom, -distance),
        },
        gaps.index,
    )  # fmt: skip


class Family(NamedTuple):
    """Tests of a family of hypotheses.

    Attributes:
        p: Adjusted p value of each hypothesis, NaN with fewer than two blocks.
        threshold: What the absolute normal score of a hypothesis must exceed in the first step to
            be rejected at `LEVEL`; infinite with too few blocks.
    """

    p: np.ndarray
    threshold: float


def step_down(gaps: np.ndarray, se_pool: np.ndarray | None = None) -> Family:
    r"""Adjusts p values of mean differences for all hypotheses of a family.

    Westfall and Young's step-down procedure with the maximum of \|t\| over all sign flips of
    blocks. A flip changes the sign of a block in all hypotheses, which keeps their dependence, so
    that the familywise error is controlled if the differences of blocks are jointly symmetric
    around 0. An observed t has both standard errors, and flips have that of blocks alone, because
    the error by the test pool is equal in all blocks.

    Values of \|t\| are compared as normal scores (Wallace, 1959), which are increasing in them, so
    that hypotheses with fewer blocks do not dominate the maximum.

    Args:
        gaps: Differences ``[hypotheses, blocks]``; NaN is missing.
        se_pool: Standard errors ``[hypotheses]`` by the test pool, as for `estimate`.

    Raises:
        ValueError: If there are more than 20 blocks, whose flips are too many.

    Examples:
        >>> gaps = np.array([[1.0, 2, 3, 2, 1, 2, 3, 2], [1, -1, 2, -2, 1, -2, 2, -1]])
        >>> step_down(gaps).p.tolist()
        [0.015625, 1.0]
    """
    values = np.asarray(gaps, float)
    if values.shape[1] > _MAX_FLIPPED:
        raise ValueError(
            f"gaps of {values.shape[1]} blocks: expected at most {_MAX_FLIPPED}; all "
            "combinations of their signs are enumerated."
        )
    number = np.sum(~np.isnan(values), axis=1)
    p = np.full(len(values), np.nan)
    tested = np.flatnonzero(number > 1)
    if not len(tested):
        return Family(p, np.inf)
    number, values = number[tested], np.nan_to_num(values[tested])
    pool = np.zeros(len(tested)) if se_pool is None else np.nan_to_num(se_pool)[tested]
    # The other half of the flips has the same |t|. The first flip changes no sign.
    codes = np.arange(2 ** (values.shape[1] - 1))
    signs = 1.0 - 2.0 * (codes[:, None] >> np.arange(values.shape[1]) & 1)
    squares = number * np.sum(values**2, axis=1)
    # t^2 = (n - 1) r / (1 - r), with r = (sum of n values)^2 / (n times the sum of their squares).
    # The variance of a flip, a difference of large sums, is not needed.
    shares = (signs @ values.T) ** 2 / np.where(squares > 0, squares, 1)
    of_pool = number**2 * (number - 1) * pool**2
    total = squares + of_pool
    observed = _score(shares[0] * (squares / np.where(total > 0, total, 1)), number)
    scores = _score(shares, number)
    order = np.argsort(-observed, kind="stable")
    # Maxima over the hypotheses that are not rejected before.
    largest = np.maximum.accumulate(scores[:, order[::-1]], axis=1)[:, ::-1]
    # Equal sums in another order may differ by rounding.
    reached = np.mean(largest >= observed[order] * (1 - 1e-9), axis=0)
    p[tested[order]] = np.maximum.accumulate(reached)
    rejected = int(np.ceil(LEVEL * len(codes))) - 1
    threshold = np.sort(largest[:, 0])[::-1][rejected] if rejected else np.inf
    return Family(p, float(threshold))


def _score(share: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns the normal score of t with n - 1 degrees of freedom, t^2 = (n - 1) r / (1 - r)."""
    freedom = number - 1
    with np.errstate(divide="ignore"):
        logarithm = -np.log1p(-np.minimum(share, 1))
    return (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * logarithm)


def blocks_needed(
    deviation: float, difference: float, threshold: float = 1.96, se_pool: float = 0.0
) -> float:
    """Computes the number of blocks with which a true difference is found with probability 0.8.

    Args:
        deviation: Standard deviation of a block.
        difference: The true difference, above 0.
        threshold: Normal score that t must exceed, of `Family`.
        se_pool: Standard error by the test pool, which more blocks do not reduce.

    Returns:
        Infinity for more than a million; NaN for an unknown deviation.

    Examples:
        >>> blocks_needed(deviation=1.0, difference=0.5)
        34.0
        >>> blocks_needed(deviation=1.0, difference=0.5, threshold=3.5)
        82.0
    """
    from scipy.special import ndtr, stdtrit

    if np.isnan(deviation) or np.isinf(threshold):
        return np.nan

    def test(blocks: int) -> tuple[float, float, float]:
        error = np.hypot(deviation / np.sqrt(blocks), np.nan_to_num(se_pool))
        shift = difference / error if error > 0 else np.inf
        return shift, blocks - 1, -stdtrit(blocks - 1, ndtr(-threshold))

    return paired.runs_needed(test, _POWER, at_least=_MIN_BLOCKS)
