"""What a report shows: tables and texts, without any program that made them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedjax_fair.benchmark.measure_labels import MEASURES
from fedjax_fair.benchmark.statistics import OVERALL

__all__ = ["COLUMNS", "OVERALL", "RANKED", "Contents", "shown_measures"]

RANKED = ("accuracy", "standard_deviation")
"""Measures whose differences to the baseline are ranked."""

_SIDES = ("difference", "low", "high", "p")
COLUMNS = {
    "federations": (
        "name", "summary", "clients", "unseen_clients", "rounds", "model", "target",
        "constant_accuracy", "data_digest",
    ),
    "results": (
        "federation", "method", "kind", "model", "seeds", "diverged", "is_reference", "accuracy",
        "standard_deviation",
    ),
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
    "curves": ("federation", "method", "round", "accuracy", "low", "high"),
    "methods": ("method", "kind", "summary", "paper", "tuned", "command"),
}  # fmt: skip
"""Columns that each table has."""


class Contents(NamedTuple):
    """Contents of a report: pandas tables of fractions, not percent, and texts.

    Attributes:
        title: Title of the page.
        protocol: Version of the protocol.
        track: Name of the track.
        criterion: Criterion that selected the settings, in words.
        environment: Versions and device.
        settings: How methods were tuned and evaluated, in words.
        command: Command that reproduces everything.
        federations: A row per federation: ``name``, ``summary``, ``clients``, ``unseen_clients``,
            ``rounds``, ``model``, ``target`` (accuracy, or NaN), ``constant_accuracy`` (of the most
            frequent class) and ``data_digest``.
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
        evidence: A row per method, scope, criterion and measure of fairness, as of
            `verdicts.evidence`.
        curves: A row per federation, method and evaluated round: ``accuracy`` on validation
            examples, mean over seeds, and ``low`` and ``high`` of its 95% interval.
        methods: A row per method: ``kind``, ``summary``, ``paper`` (citation), ``tuned``
            (dictionary of text by federation), ``command``, and optionally ``link`` (address of
            the paper) and ``formula`` (text).
        baseline: Method that differences are taken to.
        overall_unit: Unit of differences in the scope "overall" and of verdicts: "points", or
            another one in which they already are.
        limits: What the results do not show, in words.
        failures: Reasons why methods have no results, each with the names of method and federation.
    """

    title: str
    protocol: str
    track: str
    criterion: str
    environment: dict[str, Any]
    settings: str
    command: str
    federations: Any
    results: Any
    ranking: Any
    verdicts: Any
    evidence: Any
    curves: Any
    methods: Any
    baseline: str = "fedavg"
    overall_unit: str = "points"
    limits: str = "Claims are about these federations, not about all."
    failures: tuple[str, ...] = ()


def shown_measures(results: Any) -> list[str]:
    """Returns the measures that any row has, in the order of columns."""
    return [name for name in MEASURES if name in results and bool(results[name].notna().any())]
