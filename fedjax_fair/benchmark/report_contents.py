"""Tables of a report, from which files and figures are made."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedjax_fair.benchmark.federations import quantity_of
from fedjax_fair.benchmark.measure_labels import MEASURES
from fedjax_fair.benchmark.statistics import OVERALL
from fedjax_fair.metrics.quantities import ACCURACY

__all__ = ["BASELINE", "COLUMNS", "OVERALL", "RANKED", "SETTINGS_ARE", "Contents"]
__all__ += ["settings_are", "shown_measures", "unit_of"]

BASELINE = "fedavg"
"""Method that differences are taken to."""

RANKED = ("accuracy", "standard_deviation")
"""Measures whose differences to the baseline are shown; the first is that of the ranking."""

SETTINGS_ARE = "highest mean validation accuracy over clients"
"""Criterion that selected the settings by accuracies, in words."""

_SIDES = ("difference", "low", "high", "p")
COLUMNS = {
    "ranking": (
        "scope", "method", "rank", "letters",
        *(f"{measure}_{side}" for measure in RANKED for side in _SIDES),
    ),
    "verdicts": (
        "method", "verdict", "fairer_in", "accuracy_difference", "standard_deviation_difference",
        "standard_deviation_low", "standard_deviation_high",
    ),
    "evidence": (
        "method", "scope", "criterion", "measure", "gain", "low", "high", "p_holm",
        "accuracy_difference", "accuracy_low", "verdict",
    ),
}  # fmt: skip
"""Columns of comparisons, also where nothing can be compared."""


class Contents(NamedTuple):
    """Contents of a report, in pandas tables of fractions, not percent.

    Attributes:
        federations: Names, in their order.
        results: A row per federation and method: ``kind``, ``model`` ("global" or "personalized"),
            a column per measure with the mean over seeds and a column ``{measure}_half`` with
            half of its 95% interval, ``seeds``, ``diverged`` (share of seeds) and
            ``is_reference``.
        ranking: A row per ``scope`` ("overall" or a federation) and method, the best first:
            ``rank`` (NaN: not ranked), ``letters`` (methods with a common letter cannot be told
            apart), and for ``accuracy`` and ``standard_deviation`` the columns
            ``{measure}_difference`` to the baseline, ``_low``, ``_high`` and ``_p``.
        verdicts: A row per method over all federations: ``verdict``, ``fairer_in`` (of nine
            combinations of criterion and measure), ``accuracy_difference`` (a fraction), and
            ``standard_deviation_difference`` in the overall unit, with ``_low`` and ``_high``.
        evidence: As of `verdicts.evidence`.
        curves: As of `measures.curves`.
    """

    federations: list[str]
    results: Any
    ranking: Any
    verdicts: Any
    evidence: Any
    curves: Any


def shown_measures(results: Any) -> list[str]:
    """Returns the measures that any row has, in the order of columns."""
    return [name for name in MEASURES if name in results and bool(results[name].notna().any())]


def settings_are(federation: str) -> str:
    """Returns the criterion that selected the settings on a federated dataset, in words."""
    quantity = quantity_of(federation)
    words = SETTINGS_ARE.replace("accuracy", quantity.heading)
    return words if quantity.better == "higher" else words.replace("highest", "lowest")


def unit_of(scope: str) -> tuple[str, float]:
    """Returns the unit of differences in a scope, and the factor from stored values to it."""
    if scope == OVERALL:
        return f"seed SDs of {BASELINE}", 1.0
    if quantity_of(scope) == ACCURACY:
        return "points", 100.0
    return "% of the constant predictor's, + is better", 100.0
