"""Measures as readers see them: names, units, and numbers as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.benchmark.federations import quantity_of
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results.formats import format_half_width, format_number

__all__ = [
    "GROUPS",
    "MEASURES",
    "MISSING",
    "Measure",
    "difference",
    "heading",
    "interval",
    "measure_of",
    "value",
]


class Measure(NamedTuple):
    """Texts and format of a measure.

    Attributes:
        label: Heading of a column.
        unit: Unit of a value.
        scale: Factor from stored values to the unit.
        digits: Decimals.
        about: What it is.
    """

    label: str
    unit: str
    scale: float
    digits: int
    about: str


_UNSEEN = "global model on clients that never trained"
_ADAPTED = "after local steps on the unseen client"
_POOLED = "largest difference of two groups, all clients together"
_WITHIN = "mean of the differences within clients"


def _percent(label: str, about: str) -> Measure:
    return Measure(label, "%", 100.0, 1, about)


def _points(label: str, about: str) -> Measure:
    return Measure(label, "points", 100.0, 1, about)


MEASURES = {
    "accuracy": _percent("accuracy", "mean over clients"),
    "worst_10pct": _percent("worst 10%", "mean over the 10% least accurate clients"),
    "standard_deviation": _points("SD", "standard deviation of accuracy over clients"),
    "noise_floor": _points(
        "SD by chance", "SD if all clients were equally accurate, by finite test sets"
    ),
    "dissimilarity": _points("dissimilarity", "mean difference of two clients"),
    "gini": Measure("Gini", "0 to 1", 1.0, 3, "Gini index of accuracies of clients"),
    "loss": Measure("loss", "nats", 1.0, 3, "mean over clients"),
    "worse_than_local_converged": Measure(
        "worse than local_converged", "% of clients", 100.0, 1,
        "clients with lower accuracy than with own training until convergence",
    ),
    "worse_than_fine_tuned": Measure(
        "worse than fine_tuned", "% of clients", 100.0, 1,
        "clients with lower accuracy than with the fine-tuned model of fedavg",
    ),
    "loss_gap_maximum": Measure(
        "largest loss gap", "nats", 1.0, 3,
        "largest loss of a client less its loss with local_converged",
    ),
    "loss_gap_standard_deviation": Measure(
        "SD of loss gaps", "nats", 1.0, 3,
        "over clients, of losses less those with local_converged",
    ),
    "unseen_accuracy": _percent("unseen clients", _UNSEEN),
    "unseen_worst_10pct": _percent("unseen worst 10%", _UNSEEN),
    "adapted_accuracy": _percent("adapted", _ADAPTED),
    "adapted_worst_10pct": _percent("adapted worst 10%", _ADAPTED),
    "demographic_parity_difference": _points("demographic parity", _POOLED),
    "equal_opportunity_difference": _points("equal opportunity", _POOLED),
    "client_demographic_parity_difference": _points("demographic parity per client", _WITHIN),
    "client_equal_opportunity_difference": _points("equal opportunity per client", _WITHIN),
    "megabytes_up": Measure("upload", "MB", 1.0, 1, "all clients, whole training"),
    "megabytes_down": Measure("download", "MB", 1.0, 1, "all clients, whole training"),
    "rounds_to_target": Measure(
        "rounds to target", "rounds", 1.0, 0, "until the stated mean accuracy"
    ),
    "megabytes_to_target": Measure(
        "MB to target", "MB", 1.0, 1, "of all clients until the stated mean accuracy"
    ),
    "relative_compute": Measure(
        "compute", "times fedavg", 1.0, 2,
        "floating-point operations in products of training, of clients and server",
    ),
    "trained_share": Measure(
        "trained", "% of parameters", 100.0, 1, "of methods that train a part of the network"
    ),
}  # fmt: skip
"""Measures by name, in the order of columns."""

_NAMES = list(MEASURES)
GROUPS = {
    "accuracy and fairness": tuple(_NAMES[:11]),
    "unseen clients": tuple(_NAMES[11:15]),
    "group fairness": tuple(_NAMES[15:19]),
    "cost": tuple(_NAMES[19:]),
}
"""Measures that are shown together."""

_OF_QUANTITY = (*_NAMES[:3], "dissimilarity", *GROUPS["unseen clients"])
"""Measures in the unit of what clients are measured by."""

MISSING = "-"


def measure_of(federation: str, name: str) -> Measure:
    """Returns how a measure of a federated dataset is shown, which need not be of accuracies."""
    measure, quantity = MEASURES[name], quantity_of(federation)
    if quantity == ACCURACY or name not in _OF_QUANTITY:
        return measure
    label = measure.label.replace("accuracy", quantity.heading)
    shown_unit = "" if quantity.unit == "1" else quantity.unit
    return measure._replace(label=label, unit=shown_unit, scale=1.0, digits=3)


def heading(federation: str, name: str) -> str:
    """Returns the label and the unit of a measure.

    Examples:
        >>> heading("digits", "standard_deviation")
        'SD (points)'
    """
    measure = measure_of(federation, name)
    return f"{measure.label} ({measure.unit})" if measure.unit else measure.label


def value(name: str, row: Mapping[str, Any], federation: str = "") -> str:
    """Formats a mean and half of its 95% interval, without unit.

    Args:
        name: A measure.
        row: Values by column; the half width is in ``{name}_half``.
        federation: The federated dataset, if it may have no accuracies.

    Examples:
        >>> value("accuracy", {"accuracy": 0.8312, "accuracy_half": 0.012})
        '83.1 ± 1.2'
        >>> value("gini", {"gini": float("nan")})
        '-'
    """
    measure = measure_of(federation, name)
    mean, half = (float(row.get(key, np.nan)) for key in (name, f"{name}_half"))
    if np.isnan(mean):
        return MISSING
    form = f",.{measure.digits}f"
    return format_half_width(measure.scale * mean, measure.scale * half, form)


def difference(number: float, scale: float = 100.0, digits: int = 1) -> str:
    """Formats a signed difference, by default of fractions, in points.

    Examples:
        >>> difference(0.0123), difference(-0.02), difference(float("nan"))
        ('+1.2', '-2.0', '-')
    """
    return format_number(scale * float(number), f"+.{digits}f")


def interval(low: float, high: float, scale: float = 100.0, digits: int = 1) -> str:
    """Formats the ends of an interval; empty if an end is missing.

    Examples:
        >>> interval(-0.01, 0.02), interval(0.1, float("nan"))
        ('-1.0 to +2.0', '')
    """
    if np.isnan(low) or np.isnan(high):
        return ""
    return f"{difference(low, scale, digits)} to {difference(high, scale, digits)}"
