"""Paired comparisons of methods with a baseline, per federation and over all federations.

Results over all federations are about these federations only: seeds are the sampled unit, and
federations are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_fair.benchmark import measure_table
from fedjax_fair.metrics import paired
from fedjax_fair.results.comparison import MIN_SEEDS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LEVEL", "compare", "interquartile_mean", "overall", "paired_by_seed", "seed_means"]

LEVEL = 0.05
"""Significance level of Holm-adjusted p values."""


def compare(
    measures: pd.DataFrame,
    measure: str,
    baseline: str,
    criterion: str,
    *,
    constants: Mapping[tuple[str, str], float] | None = None,
) -> pd.DataFrame:
    """Compares all methods with a baseline in each federation, paired by seed.

    Args:
        measures: Table of measures.
        measure: A measure of the table.
        baseline: A method of the table.
        criterion: Criterion that selected the settings.
        constants: Values of the constant predictor by federation and measure, which replace
            those of diverged runs.

    Returns:
        A row per federation and method: ``mean`` over the method's ``seeds``; ``difference`` to
        the baseline over the ``pairs`` of runs with equal seeds, with its 95% interval from ``low``
        to ``high`` (Student's t) and the p value ``p``; ``p_holm``, adjusted for the methods of
        the federation (also those that equal the baseline in every seed, whose p is NaN);
        ``is_significant``, whether ``p_holm < 0.05`` with at least five pairs; and
        ``diverged``, the share of diverged runs. Columns of differences are NaN for the
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
    runs = measure_table.select(measures, measure, criterion, constants)
    measure_table.check_method("baseline", baseline, runs)
    return _compare(runs, baseline)


def _compare(runs: measure_table.Runs, baseline: str) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([_federation(runs, name, baseline) for name in runs.values], ignore_index=True)


def _federation(runs: measure_table.Runs, federation: str, baseline: str) -> pd.DataFrame:
    """Computes the rows of one federation."""
    import pandas as pd

    values: Any = runs.values[federation]
    rows = []
    for method in values.index:
        own = values.loc[method].dropna()
        is_compared = method != baseline and baseline in values.index
        gaps = (own - values.loc[baseline]).dropna() if is_compared else own.iloc[:0]
        test = paired.interval(gaps.to_numpy())
        rows.append(
            {
                "federation": federation,
                "method": method,
                "mean": own.mean(),
                "difference": test.mean,
                "low": test.low,
                "high": test.high,
                "p": test.p,
                "pairs": len(gaps),
                "seeds": len(own),
                "diverged": runs.diverged[federation][method],
            }
        )
    return _adjusted(pd.DataFrame(rows))


def _adjusted(table: Any) -> pd.DataFrame:
    """Adds Holm-adjusted p values over the comparisons of a table, and the significance."""
    adjusted = paired.holm(table["p"].tolist(), int((table["pairs"] > 1).sum()))
    table.insert(table.columns.get_loc("p") + 1, "p_holm", adjusted)
    is_significant = (table["p_holm"] < LEVEL) & (table["pairs"] >= MIN_SEEDS)
    table.insert(table.columns.get_loc("p_holm") + 1, "is_significant", is_significant)
    return table


class Paired(NamedTuple):
    """Differences of two methods in all federations.

    Attributes:
        federations: Federations in which both methods have two or more runs with equal seeds.
        gaps: Differences of shape ``[federations, seeds]``, for seeds with runs in all of them.
    """

    federations: tuple[str, ...]
    gaps: np.ndarray


def paired_by_seed(
    runs: measure_table.Runs,
    method: str,
    other: str,
    baseline: str,
    *,
    is_scaled: bool = True,
) -> Paired:
    """Computes the differences ``method - other`` by federation and seed.

    Args:
        runs: Runs of one measure.
        method: A method.
        other: The method that it is compared with.
        baseline: Method whose standard deviation over seeds scales a federation. Federations in
            which it has not run, or has zero variance, are left out.
        is_scaled: Whether to scale; if not, no federation is left out for the baseline.
    """
    import pandas as pd

    rows = {}
    for federation, values in runs.values.items():
        if method not in values.index or other not in values.index:
            continue
        scale = 1.0
        if is_scaled:
            reference = values.loc[baseline] if baseline in values.index else values.iloc[0, :0]
            scale = paired.interval(reference.dropna().to_numpy()).deviation
        gaps = (values.loc[method] - values.loc[other]).dropna()
        if scale > 0 and len(gaps) > 1:
            rows[federation] = gaps / scale
    if not rows:
        return Paired((), np.zeros((0, 0)))
    return Paired(tuple(rows), pd.DataFrame(rows).dropna().to_numpy().T)


def interquartile_mean(values: np.ndarray) -> float:
    """Computes the mean without the lowest and the highest quarter of the values.

    Examples:
        >>> interquartile_mean(np.array([0.0, 1.0, 2.0, 30.0]))
        1.5
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=None)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut])) if len(ordered) else np.nan


def overall(
    measures: pd.DataFrame,
    measure: str,
    baseline: str,
    criterion: str,
    *,
    is_scaled: bool = True,
    constants: Mapping[tuple[str, str], float] | None = None,
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
        constants: As for `compare`.

    Returns:
        A row per method without the baseline: ``difference``, ``low``, ``high``, ``p``, ``p_holm``
        (over all methods) and ``is_significant`` as for `compare`; ``interquartile_mean`` over all
        federations and seeds; ``pairs``, the number of seeds; ``federations``, names separated by
        commas, and ``num_federations``; ``same_sign``, the number of federations whose difference
        has the sign of the overall one; ``is_opposed``, whether a federation differs significantly
        in the other direction; ``left_out_low`` and ``left_out_high``, the range of the difference
        if one federation is left out (NaN for a single federation), and ``is_stable``, whether the
        95% interval then still lies on the same side of zero, or still includes it; ``diverged``,
        the share of diverged runs; and ``is_separated``, whether the difference is significant
        with at least 5 of 6 signs equal, none opposed, and stable.

    Raises:
        ValueError: For an unknown measure, baseline or criterion, and fewer than two seeds.
    """
    import pandas as pd

    runs = measure_table.select(measures, measure, criterion, constants)
    measure_table.check_method("baseline", baseline, runs)
    by_federation: Any = _compare(runs, baseline)
    rows = []
    for method in (name for name in runs.methods if name != baseline):
        found = paired_by_seed(runs, method, baseline, baseline, is_scaled=is_scaled)
        those = by_federation[
            (by_federation["method"] == method)
            & by_federation["federation"].isin(found.federations)
        ]
        rows.append({"method": method} | _summary(found) | _agreement(found, those))
        shares = [shares[method] for shares in runs.diverged.values() if method in shares.index]
        rows[-1]["diverged"] = float(np.mean(shares))
    if not rows:
        raise ValueError(f"measures: expected another method than the baseline {baseline!r}.")
    table: Any = _adjusted(pd.DataFrame(rows))
    table["is_separated"] = (
        table["is_significant"]
        & (6 * table["same_sign"] >= 5 * table["num_federations"])
        & ~table["is_opposed"]
        & table["is_stable"]
    )
    return table


def _summary(found: Paired) -> dict[str, Any]:
    test = paired.interval(seed_means(found.gaps))
    return {
        "difference": test.mean,
        "low": test.low,
        "high": test.high,
        "p": test.p,
        "interquartile_mean": interquartile_mean(found.gaps),
        "pairs": found.gaps.shape[1],
        "federations": ", ".join(found.federations),
        "num_federations": len(found.federations),
    }


def _agreement(found: Paired, rows: Any) -> dict[str, Any]:
    """Computes whether federations agree. ``rows`` are those of `compare`."""
    whole = paired.interval(seed_means(found.gaps))
    count = len(found.federations)
    left_out = [
        paired.interval(seed_means(np.delete(found.gaps, index, axis=0)))
        for index in range(count if count > 1 else 0)
    ]
    means = [one.mean for one in left_out] or [np.nan]
    signs = np.sign(rows["difference"].to_numpy())
    return {
        "same_sign": int(np.sum(signs == np.sign(whole.mean))),
        "is_opposed": bool(np.any(rows["is_significant"] & (signs == -np.sign(whole.mean)))),
        "left_out_low": min(means),
        "left_out_high": max(means),
        "is_stable": all(_side(one) == _side(whole) for one in left_out),
    }


def seed_means(gaps: np.ndarray) -> np.ndarray:
    """Averages differences ``[federations, seeds]`` over federations, for each seed."""
    with np.errstate(invalid="ignore"):  # Infinite losses have no mean.
        return gaps.mean(axis=0) if gaps.size else np.zeros(0)


def _side(test: paired.Difference) -> int:
    return int(test.low > 0) - int(test.high < 0)
