"""Verdicts: whether a method is fairer than a baseline, and whether accuracy is not inferior.

The primary result is the standard deviation of accuracy over clients, with settings selected by the
criterion ``mean``. A verdict is robust if it is the same for all fairness measures and criteria.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedjax_fair.benchmark import measure_table, statistics
from fedjax_fair.benchmark.protocol import CRITERIA

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CRITERIA",
    "FAIRNESS_MEASURES",
    "NO_VERDICT",
    "OVERALL",
    "evidence",
    "fairer",
    "primary",
]

FAIRNESS_MEASURES = ("standard_deviation", "worst_10pct", "gini")
"""Measures of fairness; the first is the primary one."""

NO_VERDICT = "no verdict"
OVERALL = "overall"
"""Name of the rows over all federations."""


def evidence(
    measures: pd.DataFrame,
    method: str | Sequence[str],
    baseline: str,
    *,
    margin: float = 0.01,
    constants: Mapping[tuple[str, str], float] | None = None,
) -> pd.DataFrame:
    """Compares a method with a baseline in every fairness measure under every criterion.

    Args:
        measures: Table of measures. P values are adjusted for all methods in it (Holm).
        method: A method of the table, or several.
        baseline: Another method of the table.
        margin: Accuracy is not inferior if the lower limit of the 95% interval of its difference is
            above ``-margin``. Overall, this is the mean over federations.
        constants: Values of the constant predictor by federation and measure, which replace
            those of diverged runs.

    Returns:
        A row per method, scope (``overall`` or a federation), criterion and measure: ``gain``, the
        difference to the baseline, positive if fairer (overall, in standard deviations of the
        baseline), with its interval from ``low`` to ``high`` and ``p_holm``;
        ``accuracy_difference`` and ``accuracy_low``, the lower limit; ``is_accuracy_kept``;
        ``diverged``, the share of diverged runs; and the ``verdict``: "fairer", "fairer, trade-off"
        (accuracy may be inferior), "less fair" or "no verdict".

    Raises:
        ValueError: For an unknown or missing measure, method or criterion, equal methods, fewer
            than two seeds, or a negative margin.
    """
    import pandas as pd

    if not margin >= 0:
        raise ValueError(f"margin={margin!r}: expected a number >= 0.")
    methods = (method,) if isinstance(method, str) else tuple(method)
    if baseline in methods or not methods:
        raise ValueError(f"method={method!r}: expected other methods than the baseline.")
    present = set(measures["criterion"]) if "criterion" in measures else set(CRITERIA)
    criteria = [name for name in CRITERIA if name in present or name == CRITERIA[0]]
    rows = []
    for criterion in criteria:
        accuracy = _scopes(measures, "accuracy", methods, baseline, criterion, False, constants)
        for measure in FAIRNESS_MEASURES:
            found = _scopes(measures, measure, methods, baseline, criterion, True, constants)
            sign = measure_table.direction(measure)
            for (name, scope), one in found.items():
                rows.append(
                    {"method": name, "baseline": baseline, "scope": scope}
                    | {"criterion": criterion, "measure": measure}
                    | _row(one, accuracy.get((name, scope)), sign, margin)
                )
    table: Any = pd.DataFrame(rows)
    scopes = list(dict.fromkeys([OVERALL, *table["scope"]]))
    order = sorted(
        table.index,
        key=lambda row: (
            methods.index(table["method"][row]),
            scopes.index(table["scope"][row]),
        ),
    )
    return table.loc[order].reset_index(drop=True)


def _scopes(
    measures: pd.DataFrame,
    measure: str,
    methods: tuple[str, ...],
    baseline: str,
    criterion: str,
    is_scaled: bool,
    constants: Mapping[tuple[str, str], float] | None,
) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns comparisons by method and scope; ``is_clear`` is its significance."""
    runs = measure_table.select(measures, measure, criterion, constants)
    for name in methods:
        measure_table.check_method("method", name, runs)
    arguments = (measures, measure, baseline, criterion)
    whole: Any = statistics.overall(*arguments, is_scaled=is_scaled, constants=constants)
    parts: Any = statistics.compare(*arguments, constants=constants)
    whole = whole.assign(federation=OVERALL, is_clear=whole["is_separated"])
    parts = parts.assign(is_clear=parts["is_significant"])
    return {
        (row["method"], row["federation"]): row
        for table in (whole, parts)
        for row in table[table["method"].isin(methods)].to_dict("records")
    }


def _row(
    one: dict[str, Any], accuracy: dict[str, Any] | None, sign: int, margin: float
) -> dict[str, Any]:
    nan = float("nan")
    accuracy = accuracy or {"difference": nan, "low": nan}
    ends = sorted((sign * one["low"], sign * one["high"]))
    is_kept = bool(accuracy["low"] > -margin)
    gain = sign * one["difference"]
    verdict = NO_VERDICT
    if one["is_clear"]:
        verdict = "less fair" if gain < 0 else "fairer" if is_kept else "fairer, trade-off"
    return {
        "gain": gain,
        "low": ends[0],
        "high": ends[1],
        "p_holm": one["p_holm"],
        "accuracy_difference": accuracy["difference"],
        "accuracy_low": accuracy["low"],
        "is_accuracy_kept": is_kept,
        "diverged": one["diverged"],
        "verdict": verdict,
    }


def fairer(
    measures: pd.DataFrame,
    method: str | Sequence[str],
    baseline: str,
    *,
    margin: float = 0.01,
    constants: Mapping[tuple[str, str], float] | None = None,
) -> pd.DataFrame:
    """Decides whether a method is fairer than a baseline, overall and per federation.

    Args:
        measures: Table of measures. P values are adjusted for all methods in it (Holm).
        method: A method of the table, or several.
        baseline: Another method of the table.
        margin: As for `evidence`.
        constants: As for `evidence`.

    Returns:
        The rows of `primary`.

    Raises:
        ValueError: As for `evidence`.
    """
    return primary(evidence(measures, method, baseline, margin=margin, constants=constants))


def primary(evidence: pd.DataFrame) -> pd.DataFrame:
    """Returns the primary verdicts of `evidence`, and how many others agree.

    Returns:
        A row per method and scope, first ``overall``: that of the standard deviation and the
        criterion ``mean``; ``agreeing``, the number of the nine combinations of measure and
        criterion with the same verdict; ``fairer_in``, the number of them with "fairer" or
        "fairer, trade-off"; and ``is_robust``, whether all nine agree. A combination that is
        missing does not agree.
    """
    rows: Any = evidence
    is_primary = (rows["measure"] == FAIRNESS_MEASURES[0]) & (rows["criterion"] == CRITERIA[0])
    table = rows[is_primary].reset_index(drop=True)
    table["agreeing"] = [
        int((rows[["method", "scope", "verdict"]] == row).all(axis=1).sum())
        for row in table[["method", "scope", "verdict"]].values.tolist()
    ]
    is_fairer = rows["verdict"].str.startswith("fairer")
    counts = rows[is_fairer].groupby(["method", "scope"]).size().to_dict()
    pairs = zip(table["method"], table["scope"], strict=True)
    table["fairer_in"] = [counts.get(pair, 0) for pair in pairs]
    table["is_robust"] = table["agreeing"] == len(FAIRNESS_MEASURES) * len(CRITERIA)
    return table
