"""Variables of results of the quantities that clients are measured by, and their units."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fedjax_fair.metrics.quantities import ACCURACY, Quantity
from fedjax_fair.roles import LABEL_UNIT, ClientMetric, ClientMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedjax_fair.data.federated import FederatedData
    from fedjax_fair.roles import Model

__all__ = ["attribute", "describe", "record", "units_of"]

_DIMS = {
    "sensitive_group": ("sensitive_group",),
    "client_group": ("client", "sensitive_group"),
    "sensitive_feature": ("sensitive_value",),
    "output": ("output",),
}
"""Kinds of values besides those of clients."""


def record(clients: ClientMetrics) -> dict[str, Any]:
    """Returns values of quantities that are not of clients alone, by name of the variable."""
    if clients.quantities is None:
        return {}
    fields = {
        "sensitive_group": "groups",
        "client_group": "client_groups",
        "sensitive_feature": "features",
        "output": "outputs",
    }
    return {
        f"{kind}_{name}": value
        for kind, field in fields.items()
        for name, value in getattr(clients.quantities, field).items()
    }


def describe(
    metric: ClientMetric, units: dict[str, str]
) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Returns the dimensions after seed and round, and the attributes, of variables by name."""
    about = {"units": units.get(metric.unit, metric.unit), "better": metric.better}
    about |= {"heading": metric.heading or metric.name, "scale": metric.scale}
    of_clients = {
        f"{kind}_{metric.name}": f"{metric.description}, {kind} examples"
        for kind in ("test", "validation")
    }
    whole = "test examples of each"
    others = {
        "sensitive_group": f"{metric.description}, pooled {whole} sensitive group",
        "client_group": f"{metric.description}, {whole} client and sensitive group",
        "sensitive_feature": f"{metric.description}, pooled {whole} value of a sensitive feature",
        "output": f"{metric.description}, pooled test examples, of each target",
    }
    return {
        name: (("client",), {"long_name": long_name} | about)
        for name, long_name in of_clients.items()
    } | {
        f"{kind}_{metric.name}": (_DIMS[kind], {"long_name": long_name} | about)
        for kind, long_name in others.items()
    }


def units_of(data: FederatedData, model: Model | None) -> dict[str, str]:
    """Returns the units of results in place of those of metrics.

    An error has the unit of the label if the user gave it, else the unit of the column of the label
    if its name is known; an error of classes counts them. The loss has the unit of the model's.
    """
    label = "1"
    if data.train.has_targets:
        names = () if data.encoding is None else data.encoding.label
        label = data.label_unit or (f"unit of {', '.join(names)}" if names else LABEL_UNIT)
    units = {LABEL_UNIT: label, f"({LABEL_UNIT})^2": label if label == "1" else f"({label})^2"}
    loss = "nat" if model is None else model.loss_unit
    return units | {"loss": units.get(loss, loss)}


def attribute(quantities: Sequence[Quantity]) -> dict[str, str]:
    """Returns the attribute of results that names their quantities; none for accuracy alone."""
    names = [each.name for each in quantities]
    return {} if names == [ACCURACY.name] else {"quantities": json.dumps(names)}
