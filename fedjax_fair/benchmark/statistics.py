"""Paired comparisons of methods with a baseline, per federation and over all federations.

Results over all federations are about these federations only: seeds are the sampled unit, and
federations are fixed. All functions read the table of measures (`measures.table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.benchmark.federations import quantity_of
from fedjax_fair.metrics import paired
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results.comparison import MIN_SEEDS
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "HIGHER_IS_BETTER",
    "LEVEL",
    "OVERALL",
    "as_gains",
    "by_scope",
    "compare",
    "differences",
    "direction",
    "methods_of",
    "overall",
    "replace_diverged",
    "scales_of",
    "seed_means",
    "select",
]

LEVEL = 0.05
"""Significance level of Holm-adjusted p values."""

OVERALL = "overall"
"""Name of the scope of all federations."""

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

_COLUMNS = ("federation", "method", "criterion", "seed", "measure", "value", "is_diverged")


def direction(measure: str) -> int:
    """Returns 1 if a higher value of the measure is better, and -1 if a lower one is."""
    return 1 if measure in HIGHER_IS_BETTER else -1


def as_gains(measures: pd.DataFrame, constants: Mapping[tuple[str, str], float]) -> pd.DataFrame:
    """Makes errors comparable with accuracies: fractions, of which more are better.

    Errors and their spread are divided by the mean error of the constant predictor, and errors,
    of which lower ones are better, are negative. Accuracies stay as they are.

    Args:
        measures: Table of measures.
        constants: Values of the constant predictor by federation and measure.
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
    return table.assign(value=table["value"] * factors)


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


def select(measures: pd.DataFrame, measure: str, criterion: str) -> pd.DataFrame:
    """Selects one measure of the runs chosen by one criterion.

    Returns:
        A row per federation and method, in their order, and a column per seed; NaN is missing.

    Raises:
        ValueError: If a column, the measure or the criterion is missing, if a federation, method
            and seed have two values, or if there are fewer than two seeds.
    """
    import pandas as pd

    if missing := [name for name in _COLUMNS if name not in measures]:
        raise ValueError(
            f"measures: expected the columns {', '.join(_COLUMNS)}; {', '.join(missing)} missing."
        )
    checks.one_of("measure", measure, tuple(measures["measure"].unique()))
    checks.one_of("criterion", criterion, tuple(measures["criterion"].unique()))
    chosen: Any = measures[(measures["measure"] == measure) & (measures["criterion"] == criterion)]
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


def methods_of(runs: pd.DataFrame) -> tuple[str, ...]:
    """Returns the methods of `select`, in their order."""
    return tuple(runs.index.get_level_values("method").unique())


def scales_of(runs: pd.DataFrame, method: str) -> pd.Series:
    """Computes the standard deviation of a method over seeds, by federation."""
    is_method = runs.index.get_level_values("method") == method
    values: Any = runs[is_method].droplevel("method")
    return values.apply(lambda own: paired.interval(own.dropna().to_numpy()).deviation, axis=1)


def differences(
    runs: pd.DataFrame, method: str, other: str, scales: pd.Series | None = None
) -> pd.DataFrame:
    """Computes the differences ``method - other`` by seed and federation.

    Args:
        runs: Runs of one measure, of `select`.
        method: A method.
        other: The method that it is compared with.
        scales: Numbers by which the differences of each federation are divided. Federations
            without a positive one are left out.

    Returns:
        A row per seed with runs in all columns, and a column per federation in which both methods
        have two or more runs with equal seeds.
    """
    names = runs.index.get_level_values("method")
    own, others = (runs[names == name].droplevel("method") for name in (method, other))
    gaps: Any = own - others.reindex(own.index)
    is_kept = gaps.notna().sum(axis=1) > 1
    if scales is not None:
        of_gaps = scales.reindex(gaps.index)
        gaps, is_kept = gaps.div(of_gaps, axis=0), is_kept & (of_gaps > 0)
    return gaps[is_kept].T.dropna()


def seed_means(gaps: pd.DataFrame) -> np.ndarray:
    """Averages `differences` over federations, for each seed."""
    with np.errstate(invalid="ignore"):  # Infinite losses have no mean.
        return gaps.to_numpy().T.mean(axis=0) if gaps.size else np.zeros(0)


def compare(measures: pd.DataFrame, measure: str, baseline: str, criterion: str) -> pd.DataFrame:
    """Compares all methods with a baseline in each federation, paired by seed.

    Args:
        measures: Table of measures.
        measure: A measure of the table.
        baseline: A method of the table.
        criterion: Criterion that selected the settings.

    Returns:
        A row per federation and method: ``mean`` over seeds; ``difference`` to the baseline over
        the ``pairs`` of runs with equal seeds, with its 95% interval from ``low`` to ``high``
        (Student's t) and the p value ``p``; ``p_holm``, adjusted for the methods of the federation
        (also those that equal the baseline in every seed, whose p is NaN); and ``is_significant``,
        whether ``p_holm < 0.05`` with at least five pairs. Columns of differences are NaN for the
        baseline, and for all methods where the baseline has not run.

    Raises:
        ValueError: For an unknown measure, baseline or criterion, and fewer than two seeds.

    Examples:
        >>> import pandas as pd
        >>> run = {"federation": "digits", "criterion": "mean", "measure": "accuracy"}
        >>> run |= {"is_diverged": False}
        >>> table = pd.DataFrame(
        ...     run | {"method": method, "seed": 100 + seed, "value": value}
        ...     for method, values in {"fedavg": [0.7, 0.8], "ditto": [0.75, 0.95]}.items()
        ...     for seed, value in enumerate(values)
        ... )
        >>> compared = compare(table, "accuracy", "fedavg", "mean").set_index("method")
        >>> round(compared.difference["ditto"].item(), 3), compared.pairs["ditto"].item()
        (0.1, 2)
    """
    return _compare(_select_with(measures, measure, baseline, criterion), baseline)


def _select_with(measures: Any, measure: str, baseline: str, criterion: str) -> Any:
    runs = select(measures, measure, criterion)
    checks.one_of("baseline", baseline, methods_of(runs))
    return runs


def _compare(runs: Any, baseline: str) -> Any:
    import pandas as pd

    rows = []
    for (federation, method), values in runs.iterrows():
        own = values.dropna()
        is_compared = method != baseline and (federation, baseline) in runs.index
        gaps = (own - runs.loc[federation, baseline]).dropna() if is_compared else own.iloc[:0]
        rows.append(
            {"federation": federation, "method": method, "mean": own.mean(), "pairs": len(gaps)}
            | _test(gaps.to_numpy())
        )
    table = pd.DataFrame(rows)
    parts = [_adjust(own) for _, own in table.groupby("federation", sort=False)]
    return pd.concat(parts, ignore_index=True)


def _test(gaps: np.ndarray) -> dict[str, float]:
    test = paired.interval(gaps)
    return {"difference": test.mean, "low": test.low, "high": test.high, "p": test.p}


def _adjust(table: Any) -> Any:
    """Adds Holm-adjusted p values over the comparisons of a table, and the significance."""
    adjusted = np.array(paired.holm(table["p"].tolist(), int((table["pairs"] > 1).sum())))
    is_significant = (adjusted < LEVEL) & (table["pairs"] >= MIN_SEEDS)
    return table.assign(p_holm=adjusted, is_significant=is_significant)


def overall(
    measures: pd.DataFrame, measure: str, baseline: str, criterion: str, *, is_scaled: bool = True
) -> pd.DataFrame:
    """Compares all methods with a baseline over all federations in which both ran.

    The differences of a federation are divided by the baseline's standard deviation over seeds in
    that federation, and averaged over federations for each seed. Student's interval is that of the
    means per seed. Only seeds with runs in all these federations count.

    Args:
        measures: Table of measures.
        measure: A measure of the table.
        baseline: A method of the table.
        criterion: Criterion that selected the settings.
        is_scaled: Whether to divide by the baseline's standard deviation. If not, differences have
            the unit of the measure.

    Returns:
        A row per method without the baseline: ``difference``, ``low``, ``high``, ``p``, ``p_holm``
        (over all methods) and ``is_significant`` as for `compare`; ``pairs``, the number of seeds;
        ``federations``, names separated by commas, and ``num_federations``; ``same_sign``, the
        number of federations whose difference has the sign of the overall one; ``is_opposed``,
        whether a federation differs significantly in the other direction; ``is_stable``, whether
        the 95% interval still lies on the same side of zero, or still includes it, if any one
        federation is left out; and ``is_separated``, whether the difference is significant with at
        least 5 of 6 signs equal, none opposed, and stable.

    Raises:
        ValueError: For an unknown measure, baseline or criterion, and fewer than two seeds.
    """
    import pandas as pd

    runs = _select_with(measures, measure, baseline, criterion)
    by_federation = _compare(runs, baseline).set_index(["method", "federation"])
    scales = scales_of(runs, baseline) if is_scaled else None
    rows = []
    for method in methods_of(runs):
        if method == baseline:
            continue
        gaps: Any = differences(runs, method, baseline, scales)
        means = seed_means(gaps)
        whole = _test(means)
        parts = by_federation.loc[[(method, name) for name in gaps]]
        signs, sign = np.sign(parts["difference"].to_numpy()), np.sign(whole["difference"])
        rest = (gaps.drop(columns=name) for name in gaps if gaps.shape[1] > 1)
        rows.append(
            {"method": method, **whole, "pairs": len(means)}
            | {"federations": ", ".join(gaps), "num_federations": gaps.shape[1]}
            | {
                "same_sign": int(np.sum(signs == sign)),
                "is_opposed": bool(np.any(parts["is_significant"] & (signs == -sign))),
                "is_stable": all(_side(_test(seed_means(one))) == _side(whole) for one in rest),
            }
        )
    if not rows:
        raise ValueError(f"measures: expected another method than the baseline {baseline!r}.")
    table = _adjust(pd.DataFrame(rows))
    is_agreed = 6 * table["same_sign"] >= 5 * table["num_federations"]
    is_separated = table["is_significant"] & is_agreed & ~table["is_opposed"] & table["is_stable"]
    return table.assign(is_separated=is_separated)


def by_scope(
    measures: pd.DataFrame, measure: str, baseline: str, criterion: str, *, is_scaled: bool = True
) -> pd.DataFrame:
    """Returns the rows of `compare` and `overall`, by ``scope``; ``is_clear`` is significance.

    Arguments are as of `overall`, whose scope is ``overall``; others are federations.
    """
    import pandas as pd

    arguments = (measures, measure, baseline, criterion)
    whole: Any = overall(*arguments, is_scaled=is_scaled)
    parts: Any = compare(*arguments)
    columns = ["method", "scope", "difference", "low", "high", "p_holm", "is_clear"]
    both = (
        whole.assign(scope=OVERALL, is_clear=whole["is_separated"])[columns],
        parts.assign(scope=parts["federation"], is_clear=parts["is_significant"])[columns],
    )
    return pd.concat(both, ignore_index=True)


def _side(test: dict[str, float]) -> int:
    return int(test["low"] > 0) - int(test["high"] < 0)
