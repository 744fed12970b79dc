"""Verdicts: whether a method is fairer than a baseline, and whether accuracy is not inferior.

The primary result is the standard deviation of accuracy over clients, with settings selected by the
criterion ``mean``. A verdict is robust if it is the same for all fairness measures and criteria.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.benchmark import statistics
from fedjax_fair.benchmark.protocol import CRITERIA
from fedjax_fair.benchmark.statistics import OVERALL
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FAIRNESS_MEASURES", "NO_VERDICT", "evidence", "primary"]

FAIRNESS_MEASURES = ("standard_deviation", "worst_10pct", "gini")
"""Measures of fairness; the first is the primary one."""

NO_VERDICT = "no verdict"


def evidence(
    measures: pd.DataFrame, methods: Sequence[str], baseline: str, *, margin: float = 0.01
) -> pd.DataFrame:
    """Compares methods with a baseline in every fairness measure under every criterion.

    Args:
        measures: Table of measures. P values are adjusted for all methods in it (Holm).
        methods: Methods of the table.
        baseline: Another method of the table.
        margin: Accuracy is not inferior if the lower limit of the 95% interval of its difference is
            above ``-margin``. Overall, this is the mean over federations.

    Returns:
        A row per method, scope (``overall`` or a federation), criterion and measure: ``gain``, the
        difference to the baseline, positive if fairer (overall, in standard deviations of the
        baseline), with its interval from ``low`` to ``high`` and ``p_holm``;
        ``accuracy_difference`` and ``accuracy_low``, the lower limit; and the ``verdict``:
        "fairer", "fairer, trade-off" (accuracy may be inferior), "less fair" or "no verdict".

    Raises:
        ValueError: For an unknown or missing measure, method or criterion, equal methods, fewer
            than two seeds, or a negative margin.
    """
    import pandas as pd

    if not margin >= 0:
        raise ValueError(f"margin={margin!r}: expected a number >= 0.")
    if baseline in methods or not methods:
        raise ValueError(
            f"methods={methods!r}: expected other methods than the baseline; leave it out."
        )
    for name in methods:
        checks.one_of("methods", name, tuple(measures["method"].unique()))
    criteria = [name for name in CRITERIA[1:] if name in set(measures["criterion"])]
    parts = []
    for criterion in (CRITERIA[0], *criteria):
        accuracy = statistics.by_scope(measures, "accuracy", baseline, criterion, is_scaled=False)
        accuracy: Any = accuracy[["method", "scope", "difference", "low"]]
        for measure in FAIRNESS_MEASURES:
            found = statistics.by_scope(measures, measure, baseline, criterion)
            both = found.merge(
                accuracy, how="left", on=["method", "scope"], suffixes=("", "_of_accuracy")
            )
            parts.append(
                _judge(both, statistics.direction(measure), margin).assign(
                    criterion=criterion, measure=measure
                )
            )
    table: Any = pd.concat(parts)
    table = table[table["method"].isin(methods)]
    order = {
        "method": {name: i for i, name in enumerate(methods)},
        "scope": {name: i for i, name in enumerate(dict.fromkeys([OVERALL, *table["scope"]]))},
    }
    return table.sort_values(
        ["method", "scope"], key=lambda names: names.map(order[names.name]), kind="stable",
        ignore_index=True,
    )  # fmt: skip


def _judge(found: Any, sign: int, margin: float) -> Any:
    import pandas as pd

    gain, ends = sign * found["difference"], sign * found[["low", "high"]]
    is_kept = found["low_of_accuracy"] > -margin
    if_clear = np.where(gain < 0, "less fair", np.where(is_kept, "fairer", "fairer, trade-off"))
    return pd.DataFrame(
        {
            "method": found["method"],
            "scope": found["scope"],
            "gain": gain,
            "low": ends.min(axis=1, skipna=False),
            "high": ends.max(axis=1, skipna=False),
            "p_holm": found["p_holm"],
            "accuracy_difference": found["difference_of_accuracy"],
            "accuracy_low": found["low_of_accuracy"],
            "verdict": np.where(found["is_clear"], if_clear, NO_VERDICT),
        }
    )


def primary(evidence: pd.DataFrame) -> pd.DataFrame:
    """Returns the primary verdicts of `evidence`, and how many others agree.

    Returns:
        A row per method and scope, first ``overall``: that of the standard deviation and the
        criterion ``mean``; ``agreeing``, the number of the nine combinations of measure and
        criterion with the same verdict; ``fairer_in``, the number of them with "fairer" or
        "fairer, trade-off"; and ``is_robust``, whether all nine agree. A combination that is
        missing does not agree.
    """
    rows: Any = evidence.assign(is_fairer=evidence["verdict"].str.startswith("fairer"))
    keys = ["method", "scope"]
    rows = rows.assign(
        agreeing=rows.groupby([*keys, "verdict"])["measure"].transform("size"),
        fairer_in=rows.groupby(keys)["is_fairer"].transform("sum"),
    ).drop(columns="is_fairer")
    is_primary = (rows["measure"] == FAIRNESS_MEASURES[0]) & (rows["criterion"] == CRITERIA[0])
    table = rows[is_primary].reset_index(drop=True)
    return table.assign(is_robust=table["agreeing"] == len(FAIRNESS_MEASURES) * len(CRITERIA))
