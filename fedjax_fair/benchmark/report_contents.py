"""Tables of a report, from which files and figures are made."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedjax_fair.benchmark.federations import quantity_of
from fedjax_fair.benchmark.measure_labels import MEASURES
from fedjax_fair.benchmark.protocol import BASELINE
from fedjax_fair.benchmark.statistics import OVERALL
from fedjax_fair.metrics.quantities import ACCURACY

__all__ = ["BASELINE", "OVERALL", "RANKED", "SETTINGS_ARE", "Contents"]
__all__ += ["by_method", "settings_are", "shown_measures", "unit_of"]

RANKED = ("accuracy", "standard_deviation")
"""Measures whose differences to the baseline have verdicts, of family F2."""

SETTINGS_ARE = "highest mean validation accuracy over clients"
"""Criterion that selected the settings by accuracies, in words."""


class Contents(NamedTuple):
    """Contents of a report, in pandas tables of fractions, not percent.

    Attributes:
        federations: Names, in their order.
        results: A row per federation and method: ``kind``, ``model`` ("global" or "personalized"),
            a column per measure with the mean over blocks and a column ``{measure}_half`` with
            half of its 95% interval, ``seeds`` (blocks), ``diverged`` (share of seeds),
            ``is_reference`` and ``at_limit`` (whether settings are at the limit of a range).
        statements: As of `verdicts.statements`: what is known.
        ranking: As of `verdicts.overall`: ranks over all federations.
        differences: As of `verdicts.differences`: differences to the baseline per federation.
        undecided: As of `verdicts.undecided`.
        chance: Share of the baseline's variance over clients that chance explains, by federation.
        without_spread: Federations whose spread has no rank and no verdict.
        curves: As of `measures.curves`.
    """

    federations: list[str]
    results: Any
    statements: Any
    ranking: Any
    differences: Any
    undecided: Any
    chance: dict[str, float]
    without_spread: tuple[str, ...]
    curves: Any


def shown_measures(results: Any) -> list[str]:
    """Returns the measures that any row has, in the order of columns."""
    return [name for name in MEASURES if name in results and bool(results[name].notna().any())]


def by_method(contents: Contents, scope: str) -> Any:
    """Returns the comparisons of a scope with the baseline.

    Returns:
        A row per method, the best in accuracy first, with the columns ``{measure}_difference``,
        ``_low``, ``_high``, ``_p`` and ``_verdict`` for each of `RANKED`: differences of ranks over
        all federations, otherwise of measures.
    """
    if scope == OVERALL:
        names = {"accuracy": RANKED[0], "spread": RANKED[1]}
        table = contents.ranking[contents.ranking["order"].isin(list(names))]
        table = table.assign(measure=table["order"].map(names))
    else:
        table = contents.differences
        table = table[(table["federation"] == scope) & (table["family"] == "F2")]
    table = table.set_index("method")
    parts = [
        table.loc[table["measure"] == name, ["difference", "low", "high", "p", "verdict"]]
        for name in RANKED
    ]
    parts = [part.add_prefix(f"{name}_") for name, part in zip(RANKED, parts, strict=True)]
    joined = parts[0].join(parts[1], how="outer")
    sign = 1 if scope == OVERALL else -1  # Less is better in ranks.
    order = (sign * joined[f"{RANKED[0]}_difference"].astype(float)).argsort(kind="stable")
    return joined.iloc[order].reset_index()


def settings_are(federation: str) -> str:
    """Returns the criterion that selected the settings on a federated dataset, in words."""
    quantity = quantity_of(federation)
    words = SETTINGS_ARE.replace("accuracy", quantity.heading)
    return words if quantity.better == "higher" else words.replace("highest", "lowest")


def unit_of(scope: str, measure: str) -> tuple[str, float]:
    """Returns the unit of differences in a scope, and the factor from stored values to it."""
    if scope == OVERALL:
        return "ranks", 1.0
    quantity = quantity_of(scope)
    if quantity == ACCURACY or measure not in RANKED:
        return "points", 100.0
    unit = f"% of the constant predictor's {quantity.heading}"
    is_turned = quantity.better == "lower" and measure == RANKED[0]
    return f"{unit}, + is better" if is_turned else unit, 100.0
